"""The studio used as a person would, in a real browser.

Most pages show a fleet of four, on which everything is solved at once. Statements about many runs and many clients are
checked on a sweep of twelve runs and a fleet of forty, at desktop and phone width, in light and dark.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser, Page, expect  # noqa: E402

import fedgap  # noqa: E402
from fedgap.config import Experiment, Scenario  # noqa: E402
from fedgap.config.init_template import write_template  # noqa: E402
from fedgap.config.yaml_files import write_document  # noqa: E402
from tests.web.run_folders import named_fleet, small_document, write_sweep  # noqa: E402
from tests.web.studio_server import Studio  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
PATIENCE_MS = 120_000
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS = {f"{width}-{theme}": {"viewport": size, "color_scheme": theme}
         for width, size in (("desktop", DESKTOP), ("phone", PHONE)) for theme in ("light", "dark")}
"""How a browser shows the studio. `make test` runs all tests in the first way, `make test-all` in all four."""
SHOTS = os.environ.get("FEDGAP_SHOTS")
"""A folder for pictures of what the tests see."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio that has opened a scenario of four clients, with twelve runs of a sweep and no other."""
    folder = tmp_path_factory.mktemp("browser")
    write_document(small_document(), folder / "small.yaml")
    write_sweep(folder / "runs" / "schemes")
    with Studio(folder / "runs", opened="small.yaml", folder=folder) as running:
        yield running


@pytest.fixture(autouse=True, params=list(LOOKS) if os.environ.get("FEDGAP_FULL") == "1" else list(LOOKS)[:1])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the test's pages in one way after another."""
    monkeypatch.setattr("tests.e2e.test_studio_browser.PRESENT", LOOKS[request.param])


PRESENT: dict[str, Any] = LOOKS["desktop-light"]


@contextmanager
def opened_page(browser: Browser, studio: Studio, address: str | None = None) -> Iterator[Page]:
    """A page whose errors, and whose requests to other hosts, fail the test."""
    context = browser.new_context(**PRESENT, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=studio.address)
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    trouble: list[str] = []
    strangers: list[str] = []
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    # A refusal that the test provoked is an answer, not an error of the page.
    opened.on("console", lambda line: trouble.append(line.text) if line.type == "error" and not re.search(
        r"status of (401|404|422)|ERR_CONNECTION_REFUSED", line.text) else None)
    opened.on("request", lambda request: strangers.append(request.url) if not request.url.startswith(
        (studio.address, "data:", "blob:")) else None)
    opened.goto(address or studio.url)
    yield opened
    context.close()
    assert not trouble
    assert not strangers, "the page talked to another host"


@pytest.fixture
def page(browser: Browser, studio: Studio) -> Iterator[Page]:
    with opened_page(browser, studio) as opened:
        yield opened


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def planned(page: Page) -> None:
    expect(page.locator("#plan-stage")).to_have_text(re.compile("^(certified optimal|feasible)$"))
    drawn(page, "chart-energy")


def drawn(page: Page, chart: str) -> None:
    """Waits for a chart: they appear one after another, once their library is there."""
    expect(page.locator(f"#{chart} .main-svg").first).to_be_attached()


def fact(page: Page, name: str) -> str:
    return page.locator(f"#numbers [data-fact='{name}'] dd").inner_text()


def bars(page: Page, chart: str) -> list[list[float]]:
    """What Plotly drew."""
    return page.evaluate(f"(document.getElementById('{chart}').data ?? []).map((trace) => trace.y)")


def grown(page: Page, chart: str, least: int) -> int:
    """Waits until the chart's first curve has as many points; how many it has then."""
    for _ in range(PATIENCE_MS // 200):
        drawn = bars(page, chart)
        if drawn and len(drawn[0]) >= least:
            return len(drawn[0])
        page.wait_for_timeout(200)
    raise AssertionError(f"{chart} did not grow to {least} points")


def slide(page: Page, key: str, presses: int, arrow: str) -> None:
    """Move a slider by keyboard, as a person without a mouse."""
    page.locator(f"[data-slider='{key}']").focus()
    for _ in range(presses):
        page.keyboard.press(arrow)


def fits(page: Page, name: str) -> None:
    """The page is soon no wider than the screen; charts follow the window a moment later."""
    for _ in range(PATIENCE_MS // 200):
        if page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"{name} is too wide")


def looks(page: Page, name: str) -> Iterator[str]:
    """The page at both widths, in light and dark; it may never be wider than the screen."""
    for width, size in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        for theme in ("light", "dark"):
            page.select_option("#theme", theme)
            page.wait_for_timeout(150)
            fits(page, f"{name} ({width}, {theme})")
            shoot(page, f"{name}-{width}-{theme}")
            yield f"{width}-{theme}"


def copied(page: Page, button: str) -> str:
    page.click(button)
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


# --- what the command line opens ------------------------------------------------------------------------------------

def test_what_init_writes_is_opened_and_its_experiment_trained(browser: Browser, tmp_path: Path) -> None:
    """YAML with its CSV, an own model by file and own data by file; the copied commands reproduce the page."""
    write_template(tmp_path)
    (tmp_path / "mymodel.py").write_text(
        "from torch import nn\n__fedgap__ = ['make']\n\n\ndef make(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))\n")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(240, 1, 4, 4)).astype(np.float32), np.arange(240) % 10
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    (tmp_path / "mine.yaml").write_text("scenario: scenario.yaml\nrounds: 3\ndata: {name: mine.npz}\n"
                                        "model: {name: 'mymodel:make'}\nevaluate_every: 1\nscheme: proposed\n"
                                        "learning: {local_steps: 2}\n")
    with Studio(None, opened="mine.yaml", folder=tmp_path) as running, opened_page(browser, running) as page:
        planned(page)
        expect(page.locator("#preset option:checked")).to_have_text("mine.yaml")
        expect(page.locator("[data-cell='clients[0].name']")).to_have_value("kitchen")
        expect(page.locator("#scheme")).to_have_value("proposed")
        page.fill("[data-key='budget.delay_s']", "30")
        page.keyboard.press("Enter")
        expect(page.locator("#numbers [data-fact='delay'] dd")).to_contain_text("of 30")
        page.reload()  # the file's name is in the address
        planned(page)
        expect(page.locator("#numbers [data-fact='delay'] dd")).to_contain_text("of 30")
        page.click("#train-plan")
        expect(page.locator("#run-start")).to_be_focused()
        expect(page.locator("#run-own-text")).to_contain_text("model (mymodel:make)")
        expect(page.locator("#run-own-text")).to_contain_text("mine.npz")
        command = copied(page, "#run-copy")
        assert command == "fedgap train mine.yaml budget.delay_s=30 scheme=proposed"
        page.fill("#run-name", "mine")
        page.click("#run-start")
        expect(page.locator("#watch-title")).to_have_text("mine")
        expect(page.locator("#watch-state")).to_have_text(re.compile("finished|failed"))
        expect(page.locator("#watch-message")).to_have_text("all rounds are done")
        assert grown(page, "chart-loss", 3) == 3
        trained = Experiment.load(tmp_path / "runs" / "mine" / "config.yaml")
        changes = command.split()[3:]
        here = Path.cwd()
        os.chdir(tmp_path)
        try:
            same = Experiment.load("mine.yaml", changes)
        finally:
            os.chdir(here)
        for key in ("data", "model", "partition", "pruning", "scheme", "seed", "evaluate_every", "engine"):
            assert trained.to_dict()[key] == same.to_dict()[key], key
        ours, theirs = trained.planning_scenario(), same.planning_scenario()
        assert ours.to_dict() == theirs.to_dict()


def test_a_scenario_file_leads_with_its_forecast(browser: Browser, tmp_path: Path) -> None:
    write_template(tmp_path)
    with Studio(None, opened="scenario.yaml", folder=tmp_path) as running, opened_page(browser, running) as page:
        planned(page)
        plan = fedgap.plan(Scenario.load(tmp_path / "scenario.yaml"))
        assert plan.forecast is not None
        assert plan.forecast.low is not None
        expect(page.locator("#scheme")).to_have_value("forecast")  # as `fedgap plan` chooses it
        expect(page.locator("#lead-value")).to_have_text(f"{100 * plan.forecast.accuracy:.1f} %")
        expect(page.locator("#lead-range")).to_contain_text(f"{100 * plan.forecast.low:.1f} % to")
        assert plan.prices is not None
        delay = -100 * (plan.prices["delay"] or 0.0)
        said = re.search(r"One more second would bring: \+([\d.]+) percentage points", page.inner_text("#prices"))
        assert said is not None
        assert float(said[1]) == pytest.approx(delay, rel=0.1)
        expect(page.locator("#lead-remark code")).to_have_text("fedgap calibrate")  # not in backticks
        expect(page.locator("#gap-text")).to_contain_text("is about its objective, not about θ")
        expect(page.locator("#schemes-stage")).to_have_text("all solved")
        expect(page.locator("#schemes-note")).to_contain_text("was chosen by its forecast accuracy")
        cells = page.locator("#schemes tr:not(.dim) td:last-child").all_inner_texts()
        shown = [float(text.removesuffix(" %")) for text in cells]
        assert len(shown) == 6
        assert max(shown) <= round(100 * plan.forecast.accuracy, 1)
        assert "`" not in page.inner_text("main")
        lead, numbers = page.locator("#lead").bounding_box(), page.locator("#numbers").bounding_box()
        assert lead is not None
        assert numbers is not None
        assert lead["y"] < numbers["y"]
        page.select_option("#scheme", "no_pruning")
        planned(page)
        expect(page.locator("[data-key='learning.local_steps']")).to_have_value("auto")
        page.select_option("#mode", "as_printed")
        planned(page)
        command = copied(page, "#copy-command")
        assert command == "fedgap plan scenario.yaml mode=as_printed --scheme no_pruning"
        theta = fact(page, "bound θ")
        ran = subprocess.run([sys.executable, "-m", *command.split(), "--json"], cwd=tmp_path, capture_output=True,
                             text=True, check=True)
        assert json.loads(ran.stdout)["theta"] == pytest.approx(float(theta), rel=1e-4)


def test_a_folder_of_runs_opens_the_run_page(browser: Browser, studio: Studio) -> None:
    with Studio(None, opened=str(studio.runs / "schemes")) as running, opened_page(browser, running) as page:
        expect(page.locator("#view-run")).to_be_visible()
        expect(page.locator("details.group summary")).to_contain_text("schemes 12 runs, all finished")
        run = "runs~scheme=proposed,seed=2"  # of a single run's folder the page is told the name
        told = {"kind": "runs", "name": "x", "document": None, "run": run, "training": None}
        page.route("**/api/opened", lambda route: route.fulfill(json=told))
        page.goto("about:blank")
        page.goto(running.url)
        expect(page.locator("#watch-numbers [data-fact='accuracy (one seed)'] dd")).to_have_text("84.0 %")


# --- the plan page --------------------------------------------------------------------------------------------------

@pytest.mark.full
def test_without_an_applicable_forecast_the_page_says_why(page: Page) -> None:
    planned(page)
    expect(page.locator("#lead-value")).to_be_empty()
    expect(page.locator("#lead-range")).to_contain_text("fitted to the learner of the mode practical. Choose that mode")
    expect(page.locator("#theta-meaning")).to_contain_text("θ is the paper’s bound on the mean squared gradient")
    expect(page.locator("#prices")).to_contain_text(re.compile(r"One more second would bring: θ lower by [\d.]+"))
    page.select_option("#mode", "practical")
    expect(page.locator("#lead-value")).to_have_text(re.compile(r"^\d\d\.\d %$"))


def test_every_symbol_has_a_tooltip_for_mouse_keyboard_and_touch(browser: Browser, studio: Studio, page: Page) -> None:
    planned(page)
    bare = page.evaluate("""[...document.querySelectorAll('main *')].flatMap((e) => [...e.childNodes]
        .filter((n) => n.nodeType === 3 && /[θαλσφτη]/.test(n.data) && !e.closest(
            '.symbol, .chart, button, select, option, pre, caption, summary') && e.offsetParent)
        .map((n) => n.data.trim()))""")
    assert bare == []
    symbols = set(page.evaluate("[...document.querySelectorAll('.symbol')].map((e) => e.textContent)"))
    assert {"θ", "σ", "τ", "η", "φ", "PUE", "λ"} <= symbols
    tip = page.locator("#symbol-tip")
    page.locator("#plan-form .symbol:text-is('σ')").focus()
    expect(tip).to_contain_text("Dirichlet")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#numbers .symbol").first.hover()
    expect(tip).to_contain_text("lower is better")
    touch = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    phone = touch.new_page()
    phone.set_default_timeout(PATIENCE_MS)
    phone.goto(studio.url)
    expect(phone.locator("#frontier-stage")).to_have_text("all solved")  # charts that arrive move the page
    phone.locator("#plan-form .symbol:text-is('τ')").tap()
    tip = phone.locator("#symbol-tip")
    expect(tip).to_contain_text("local steps")
    phone.evaluate("scrollBy(0, 20)")
    expect(tip).to_be_visible()
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    assert phone.evaluate("document.activeElement.id") != "f-learning-local_steps"
    touch.close()


@pytest.mark.full
def test_colours_are_logarithmic_over_decades_and_only_for_what_was_solved(page: Page, tmp_path: Path) -> None:
    planned(page)
    wide = small_document(budget={"energy_j": 25.0, "delay_s": 40.0})  # at half of it hardly anybody can take part
    page.set_input_files("#upload", write_document(wide, tmp_path / "wide.yaml"))
    expect(page.locator("#numbers [data-fact='delay'] dd")).to_contain_text("of 40")
    expect(page.locator("#frontier-stage")).to_have_text("all solved")
    page.wait_for_timeout(300)
    heat, *_, here = page.evaluate("document.getElementById('chart-frontier').data")
    solved = [(z, text) for row, texts in zip(heat["z"], heat["text"], strict=True)
              for z, text in zip(row, texts, strict=True) if z is not None]
    values = [float(text.removeprefix("θ ")) for _, text in solved]
    assert max(values) / min(values) > 10
    assert [z for z, _ in solved] == pytest.approx(np.log10(values), rel=1e-3)
    assert here["y"] == [25]
    assert all(float(text) >= 1 for text in heat["colorbar"]["ticktext"])  # the bar says θ, not its logarithm
    page.evaluate("""window.coloured = []; window.watchHeat = setInterval(() => {
        const chart = document.getElementById('chart-frontier');
        coloured.push([document.getElementById('frontier-stage').textContent,
                       chart.data[0].z.flat().filter((z) => z !== null).length]); }, 20)""")
    page.fill("[data-key='learning.rate']", "0.013")  # another question: what was solved for the last one must go
    page.keyboard.press("Enter")
    expect(page.locator("#frontier-stage")).to_contain_text("pending, ")
    page.wait_for_timeout(300)
    seen = page.evaluate("clearInterval(watchHeat); coloured")
    assert min(count for stage, count in seen if stage.startswith("pending")) < len(solved)
    expect(page.locator("#frontier-note")).to_contain_text("cells without colour were not solved")


def test_a_grid_that_was_not_finished_is_not_called_solved(page: Page) -> None:
    planned(page)
    expect(page.locator("#frontier-stage")).to_have_text("all solved")
    answer = [{"stage": "grid", "energy_j": [1.0, 2.0], "delay_s": [1.0, 2.0]},
              {"stage": "frontier", "energy_j": 1.0, "delay_s": 1.0, "theta": 3.0, "accuracy": None,
               "status": "optimal"},
              {"stage": "failed", "message": "no answer within 120 s"}, {"stage": "done"}]
    page.route("**/api/plan", lambda route: route.fulfill(body="".join(json.dumps(one) + "\n" for one in answer)))
    page.fill("[data-key='learning.rate']", "0.014")
    page.keyboard.press("Enter")
    expect(page.locator("#frontier-stage")).to_have_text("1 of 4 solved; no answer within 120 s")
    page.wait_for_timeout(300)
    expect(page.locator("#frontier-stage")).to_have_text("1 of 4 solved; no answer within 120 s")


def test_forty_named_clients_and_only_a_real_straggler(browser: Browser, tmp_path: Path) -> None:
    write_document(named_fleet(40), tmp_path / "forty.yaml")
    with Studio(tmp_path / "runs", opened="forty.yaml", folder=tmp_path) as running, \
            opened_page(browser, running, f"{running.address}/#/plan?file=forty.yaml&scheme=all_clients") as page:
        planned(page)  # with everybody, so also with the last, who computes five times as long
        expect(page.locator("#chart-time")).to_have_attribute("aria-label", re.compile("The others wait for garden 8"))
        assert page.evaluate("document.getElementById('chart-time').data[3].x") == ["39"]
        for look in looks(page, "forty"):
            page.locator("#chart-energy").scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            places = page.evaluate("""[...document.querySelectorAll('#chart-energy .xtick text')]
                .map((e) => e.getBoundingClientRect()).map((b) => b.x + b.width / 2).sort((a, b) => a - b)""")
            assert len(places) >= 8
            assert min(np.diff(places)) >= 9, f"labels overlap ({look})"


def test_in_a_good_plan_nobody_is_a_straggler(page: Page) -> None:
    planned(page)
    expect(page.locator("#time-note")).to_contain_text("No straggler")
    expect(page.locator("#theta-meaning")).to_contain_text("θ is the paper’s bound on the mean squared gradient")
    assert "no_generalization" in page.locator("#scheme option").all_inner_texts()  # as in files and tables
    asked = page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    assert sum(name.endswith("/api/scenario") for name in asked) == 1  # the first load asks for nothing twice
    assert page.evaluate("document.getElementById('chart-time').data[3].x") == []
    expect(page.locator("#straggler-key")).to_be_hidden()
    assert page.evaluate("""[...document.querySelectorAll('#chart-terms .ytick text')].every((text) =>
        text.getBoundingClientRect().left >= document.getElementById('chart-terms').getBoundingClientRect().left)""")


def test_the_plan_page_fits_every_screen(page: Page) -> None:
    planned(page)
    expect(page.locator("#schemes-stage")).to_have_text("all solved")
    for look in looks(page, "plan"):
        assert page.evaluate("document.documentElement.dataset.theme") == look.partition("-")[2]
        expect(page.locator("#train-plan")).to_be_visible()


@pytest.mark.full
def test_a_slider_moves_the_plan_and_the_address_brings_it_back(page: Page) -> None:
    planned(page)
    before, drawn = fact(page, "bound θ"), bars(page, "chart-clients")
    slide(page, "budget.delay_s", 10, "ArrowRight")
    expect(page.locator("[data-key='budget.delay_s']")).not_to_have_value("30")
    expect(page.locator("#numbers [data-fact='bound θ'] dd")).not_to_have_text(before)
    planned(page)
    assert bars(page, "chart-clients") != drawn
    after = fact(page, "bound θ")
    assert float(after) < float(before)  # more time, a better plan
    expect(page.locator("#schemes-stage")).to_have_text("all solved")
    assert page.locator("#schemes tbody button").count() == 6
    shoot(page, "plan-light")
    address = page.url
    page.reload()
    planned(page)
    assert fact(page, "bound θ") == after
    page.goto("about:blank")
    page.goto(address)
    planned(page)
    assert fact(page, "bound θ") == after
    page.locator("#segments input").first.check()  # which rounds the charts show is part of the state, too
    page.reload()
    planned(page)
    expect(page.locator("#segments input").first).to_be_checked()
    assert not page.locator(".modebar-btn[data-title*='Share']").count()  # nothing that leads to another host


def test_budgets_that_do_not_fit_are_advice(page: Page) -> None:
    planned(page)
    least = fedgap.plan(Scenario.from_dict(small_document(), ["budget.delay_s=5"])).least_budget
    assert least is not None
    page.fill("[data-key='budget.delay_s']", "5")
    page.keyboard.press("Enter")
    expect(page.locator("#plan-stage")).to_have_text("does not fit")
    said = re.search(r"needs ([\d.]+) s", page.inner_text("#advice"))
    assert said is not None
    assert least["delay_s"] <= float(said[1]) <= 1.001 * (least["delay_s"] or 0.0)  # rounded up
    expect(page.locator("#chart-clients")).to_be_hidden()
    expect(page.locator("#prices")).to_be_hidden()
    shoot(page, "infeasible")
    page.fill("[data-key='budget.delay_s']", said[1])
    page.keyboard.press("Enter")
    planned(page)
    expect(page.locator("#advice")).to_be_hidden()
    expect(page.locator("#chart-clients")).to_be_visible()


@pytest.mark.full
def test_advice_does_not_wait_for_the_solver(page: Page) -> None:
    page.select_option("#preset", "city")
    page.select_option("#scheme", "no_pruning")  # is planned again with fewer rounds, which takes seconds
    planned(page)
    page.evaluate("""window.seen = [];
        new MutationObserver(() => {
          const chart = document.getElementById('chart-clients');
          seen.push([document.getElementById('plan-stage').textContent, document.getElementById('advice').textContent,
                     chart.classList.contains('past'), chart.querySelectorAll('.main-svg').length]);
        }).observe(document.getElementById('plan-stage'), { childList: true });""")
    page.fill("[data-key='budget.energy_j']", "200")
    page.keyboard.press("Enter")
    expect(page.locator("#advice")).to_contain_text(re.compile(r"needs 400\.9 J"))
    pending = [row for row in page.evaluate("seen") if row[0] == "does not fit; being confirmed"]
    assert pending  # before the solver has given up
    assert all(charts > 0 for *_, charts in pending)  # the last plan, dimmed, and no empty chart


def test_what_is_wrong_is_said_at_the_field(page: Page, tmp_path: Path) -> None:
    planned(page)
    page.fill("#plan-form [data-key=rounds]", "none")
    page.keyboard.press("Tab")
    expect(page.locator("#plan-form [data-error=rounds]")).to_contain_text("must be a number")
    expect(page.locator("#plan-form [data-key=rounds]")).to_have_attribute("aria-invalid", "true")
    page.fill("#plan-form [data-key=rounds]", "50")
    page.keyboard.press("Tab")
    expect(page.locator("#plan-form [data-error=rounds]")).to_be_empty()
    cell = page.locator("[data-cell='clients[2].max_power_w']")
    cell.fill("-1")
    cell.press("Tab")
    expect(page.locator("#fleet-error")).to_contain_text("clients[2].max_power_w: must be above 0")
    expect(cell).to_have_attribute("aria-invalid", "true")
    cell.fill("0.01")
    cell.press("Tab")
    planned(page)
    expect(page.locator("#fleet-error")).to_be_empty()
    bad = tmp_path / "bad.csv"
    bad.write_text("phi,uplink_gain\n1,2\nmany,3\n")
    page.set_input_files("#upload", bad)
    expect(page.locator("#upload-error")).to_contain_text("bad.csv: clients[")
    shoot(page, "field-errors")
    worse = tmp_path / "worse.yaml"
    worse.write_text("rounds: <img src=x onerror=alert(1)>\nclients: []\n")
    page.set_input_files("#upload", worse)
    expect(page.locator("#upload-error")).to_contain_text("worse.yaml: ")
    assert page.locator("#upload-error img").count() == 0  # text stays text
    expect(page.locator("#fleet tbody tr")).to_have_count(4)  # the fleet there was is still there


@pytest.mark.full
def test_the_fleet_is_edited_and_goes_out_and_in(page: Page, tmp_path: Path) -> None:
    planned(page)
    name = page.locator("[data-cell='clients[0].name']")
    name.fill("<b>phone</b>")
    name.press("Tab")
    expect(page.locator("#fleet input[data-cell='clients[0].name']")).to_have_value("<b>phone</b>")
    with page.expect_download() as saved:
        page.click("#download-csv")
    saved.value.save_as(tmp_path / "fleet.csv")
    page.click("#add-client")
    expect(page.locator("#fleet tbody tr")).to_have_count(5)
    page.locator("#fleet button[aria-label^=Remove]").nth(4).click()
    expect(page.locator("#fleet tbody tr")).to_have_count(4)
    rows = (tmp_path / "fleet.csv").read_text().splitlines()
    (tmp_path / "fleet.csv").write_text("\n".join(rows[:4]) + "\n")
    page.set_input_files("#upload", tmp_path / "fleet.csv")
    expect(page.locator("#fleet tbody tr")).to_have_count(3)
    planned(page)
    with page.expect_download() as saved:
        page.click("#download-yaml")
    saved.value.save_as(tmp_path / "scenario.yaml")
    theta = fact(page, "bound θ")
    page.reload()  # an edited fleet is in the address, too
    expect(page.locator("#fleet tbody tr")).to_have_count(3)
    planned(page)
    assert fact(page, "bound θ") == theta
    page.select_option("#preset", "small.yaml")
    expect(page.locator("#fleet tbody tr")).to_have_count(4)
    page.set_input_files("#upload", tmp_path / "scenario.yaml")
    expect(page.locator("#fleet tbody tr")).to_have_count(3)
    planned(page)
    assert fact(page, "bound θ") == theta
    assert page.locator("main b:text('phone')").count() == 0
    page.click("#copy-command")  # what is copied for an edited fleet runs beside the downloaded file
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == "fedgap plan scenario.yaml"
    ran = subprocess.run([sys.executable, "-m", *command.split(), "--json"], cwd=tmp_path, capture_output=True,
                         text=True, check=True)
    assert json.loads(ran.stdout)["theta"] == pytest.approx(float(theta), rel=1e-4)


@pytest.mark.full
def test_labels_are_edited_where_the_plan_pools_them(page: Page) -> None:
    planned(page)
    before = fact(page, "bound θ")
    assert not page.locator("[data-cell='clients[0].phi']").is_editable()
    expect(page.locator("#phi-note")).to_contain_text("φ is only shown")
    assert "phi-note" in (page.locator("[data-cell='clients[0].phi']").get_attribute("aria-describedby") or "")
    labels = page.locator("[data-cell='clients[2].label_counts']")
    labels.fill("100;100;100;100;100;100;100;100;100;a few")
    labels.press("Tab")
    expect(page.locator("#fleet-error")).to_contain_text("clients[2].label_counts")
    expect(labels).to_have_attribute("aria-invalid", "true")
    labels.fill(";".join(["100"] * 10))
    labels.press("Tab")
    expect(page.locator("#numbers [data-fact='bound θ'] dd")).not_to_have_text(before)
    planned(page)
    assert float(fact(page, "bound θ")) < float(before)
    page.select_option("#mode", "as_printed")
    expect(page.locator("[data-cell='clients[0].phi']")).to_be_editable()
    expect(page.locator("#phi-note")).to_contain_text("it replaces the one computed")


@pytest.mark.full
def test_the_keyboard_keeps_its_place_in_the_fleet(page: Page) -> None:
    planned(page)
    page.locator("[data-cell='clients[1].bandwidth_hz']").fill("200000")
    page.keyboard.press("Tab")
    expect(page.locator("[data-cell='clients[1].bandwidth_hz']")).to_have_attribute("data-shown", "200000")
    assert page.evaluate("document.activeElement.dataset.cell") == "clients[1].max_power_w"
    page.keyboard.type("0.4")
    page.locator("[data-slider='budget.delay_s']").evaluate("(e) => e.dispatchEvent(new Event('input'))")
    page.wait_for_timeout(500)
    assert page.evaluate("document.activeElement.value").startswith("0.")  # half-typed, and kept
    cell = page.locator("[data-cell='clients[1].bandwidth_hz']")
    for wrong in ("none", "-3"):
        cell.fill(wrong)
        cell.press("Tab")
        expect(cell).to_have_attribute("aria-invalid", "true")
    cell.fill("200000")  # back to what was accepted, not to the file's
    cell.press("Tab")
    planned(page)
    assert "bandwidth_hz%3D200000" in page.url


@pytest.mark.full
def test_clients_with_names_alike_have_bars_of_their_own(page: Page) -> None:
    planned(page)
    for n in range(2):
        name = page.locator(f"[data-cell='clients[{n}].name']")
        name.fill(f"a-rather-long-name-{n}")
        name.press("Tab")
    planned(page)
    page.wait_for_timeout(500)
    assert page.evaluate("new Set(document.getElementById('chart-energy').data[0].x).size") == 5
    texts = page.evaluate("document.getElementById('chart-energy').layout.xaxis.ticktext")
    assert texts[:2] == ["a-rather-lo…"] * 2


@pytest.mark.full
def test_what_is_copied_runs(page: Page, studio: Studio) -> None:
    """Mode, scheme and learner included; from the opened file and from a preset."""
    planned(page)
    page.fill("[data-key='budget.delay_s']", "28")
    page.keyboard.press("Enter")
    page.select_option("#mode", "as_printed")
    page.select_option("#scheme", "no_pruning")
    page.select_option("[data-key='learning.upload_bits']", "8")
    expect(page.locator("#numbers [data-fact='delay'] dd")).to_contain_text("of 28")
    planned(page)
    theta = float(fact(page, "bound θ"))
    command = copied(page, "#copy-command")
    assert command == ("fedgap plan small.yaml budget.delay_s=28 mode=as_printed learning.upload_bits=8 "
                       "--scheme no_pruning")
    folder = studio.runs.parent
    ran = subprocess.run([sys.executable, "-m", *command.split(), "--json"], cwd=folder, capture_output=True, text=True,
                         check=True)
    assert json.loads(ran.stdout)["theta"] == pytest.approx(theta, rel=1e-4)
    variables: dict[str, object] = {}
    here = Path.cwd()
    os.chdir(folder)
    try:
        exec(copied(page, "#copy-python"), variables)
    finally:
        os.chdir(here)
    assert variables["plan"].theta == pytest.approx(theta, rel=1e-4)  # type: ignore[attr-defined]
    page.evaluate("location.hash = '#/plan?preset=city&scheme=proposed'")  # where `fedgap plan` would choose another
    expect(page.locator("#fleet tbody tr")).to_have_count(40)
    assert copied(page, "#copy-command") == "fedgap plan city --scheme proposed"
    page.click("nav a[data-view=run]")
    assert copied(page, "#run-copy") == ("fedgap train embedded scenario=city partition.target_size= "
                                         "partition.concentration=1 scheme=proposed")


@pytest.mark.full
def test_a_target_accuracy_is_answered_with_budgets(page: Page) -> None:
    planned(page)
    page.evaluate("location.hash = '#/plan?file=small.yaml&set=forecast.like%3Dlenet5-mnist'"
                  " + '&set=learning.local_steps%3D8'")
    planned(page)
    page.fill("#budget-accuracy", "120")
    page.click("#budget-form button")
    expect(page.locator("#budget-error")).to_contain_text("accuracy: ")
    page.fill("#budget-accuracy", "90")
    page.click("#budget-form button")
    expect(page.locator("#budget-stage")).to_have_text("found")
    expect(page.locator("#budget-error")).to_be_empty()
    expect(page.locator("#budget-sentence")).to_contain_text("90 % with 90 % confidence takes")
    expect(page.locator("#budget-table tbody tr")).to_have_count(3)
    drawn(page, "chart-budget")
    joules = bars(page, "chart-budget")[0]
    assert len(joules) >= 4
    assert joules[0] > joules[-1]  # more seconds, fewer joules
    shoot(page, "budget-light")
    page.locator("#budget-table button").first.click()
    planned(page)
    expect(page.locator("#scheme")).to_have_value("forecast")
    expect(page.locator("#budget-stage")).to_have_text("for the previous scenario")


def learner(page: Page) -> list[str]:
    """What the Plan view shows of the learner."""
    return [page.locator(f"[data-key='learning.{key}']").input_value()
            for key in ("local_steps", "upload_bits", "server.optimiser", "batches")]


@pytest.mark.full
def test_the_learner_is_chosen_and_stays_in_the_address(page: Page) -> None:
    planned(page)
    steps = page.locator("[data-key='learning.local_steps']")
    expect(steps).to_have_value("1")
    assert learner(page) == ["1", "32", "sgd", "as_is"]
    page.select_option("#mode", "practical")  # the mode's learner is shown
    expect(steps).to_have_value("auto")
    assert learner(page) == ["auto", "32", "momentum", "balanced"]
    steps.fill("0")
    steps.press("Tab")
    expect(page.locator("[data-error='learning.local_steps']")).to_contain_text("must be at least 1")
    steps.fill("4")
    steps.press("Tab")
    page.select_option("[data-key='learning.upload_bits']", "8")
    page.select_option("[data-key='learning.server.optimiser']", "adam")
    page.select_option("[data-key='learning.batches']", "target")
    expect(page.locator("#gap-text")).to_contain_text("does not cover the 4 local steps")
    expect(page.locator("[data-error='learning.local_steps']")).to_be_empty()
    planned(page)
    page.reload()
    planned(page)
    expect(steps).to_have_value("4")
    assert learner(page) == ["4", "8", "adam", "target"]


# --- the run page ---------------------------------------------------------------------------------------------------

def test_the_chosen_run_is_on_top_and_a_sweep_is_folded(page: Page) -> None:
    page.click("nav a[data-view=run]")
    group = page.locator("details.group")
    expect(group).to_have_count(1)
    expect(group.locator("summary")).to_have_text("schemes 12 runs, all finished")
    names = group.locator("[data-run]").all_inner_texts()
    assert names[:2] == ["all_clients, seed 0", "all_clients, seed 1"]  # what was swept, in order
    assert len(names) == 12
    page.click("[data-run='schemes~runs~scheme=proposed,seed=1']")
    expect(page.locator("#watch-title")).to_have_text("proposed, seed 1")
    expect(page.locator("#watch-title")).to_be_focused()
    expect(page.locator("tr.chosen [data-run]")).to_have_text("proposed, seed 1")
    for look in looks(page, "run"):
        watch, runs, form = (page.locator(part).bounding_box() for part in ("#watch", "#runs", "#run-form"))
        assert watch is not None
        assert runs is not None
        assert form is not None
        assert watch["y"] < runs["y"]
        assert watch["y"] <= form["y"] + 20, look  # on a phone the form comes last
    group.locator("summary").click()
    expect(page.locator("#runs [data-run]").first).to_be_hidden()
    page.wait_for_timeout(3500)  # the list is asked for again, and stays folded
    expect(page.locator("#runs [data-run]").first).to_be_hidden()


def test_a_run_without_rounds_has_sentences_in_place_of_charts(page: Page, studio: Studio) -> None:
    folder = studio.runs / "begun"
    shutil.copytree(studio.runs / "schemes" / "runs" / "scheme=proposed,seed=0", folder)
    (folder / "summary.json").unlink()
    rounds = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("")
    page.click("nav a[data-view=run]")
    expect(page.locator("details.group")).to_have_count(2)  # a single run beside the sweep
    page.click("[data-run=begun]")
    for chart, says in (("loss", "No round has ended yet"), ("accuracy", "not been evaluated"), ("joules", "No joules"),
                        ("seconds", "No seconds"), ("participation", "No round has ended yet")):
        expect(page.locator(f"#chart-{chart}")).to_contain_text(says)
        expect(page.locator(f"#chart-{chart} svg")).to_have_count(0)
    with open(folder / "rounds.jsonl", "a") as log:
        log.write(rounds[0])
    assert grown(page, "chart-loss", 1) == 1  # and a chart as soon as there is something to show
    expect(page.locator("#chart-accuracy")).to_contain_text("not been evaluated")
    shutil.rmtree(folder)


def test_forecast_and_reality_in_one_chart(page: Page, studio: Studio) -> None:
    """A run of four rounds, written by hand: two evaluations, each with a corrected forecast."""
    folder = studio.runs / "by-hand"
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "job.json").write_text("{}")
    forecast = {"accuracy": 0.96, "low": 0.94, "high": 0.97, "confidence": 0.9, "origin": "a pilot"}
    (folder / "plan.json").write_text(json.dumps({"rounds": 4, "scheme": "forecast", "forecast": forecast}))
    rows = [{"round": n, "clients": [0], "energy_total_j": n + 1.0, "delay_total_s": n + 1.0, "train_loss": 1.0}
            for n in range(4)]
    for row, accuracy, corrected in ((rows[1], 0.8, 0.95), (rows[3], 0.93, 0.935)):
        row |= {"test_loss": 0.5, "test_accuracy": accuracy, "validation_accuracy": accuracy + 0.01,
                "forecast": forecast | {"accuracy": corrected, "low": corrected - 0.01, "high": corrected + 0.01}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page.click("nav a[data-view=run]")
    page.click("[data-run=by-hand]")
    expect(page.locator("#chart-forecast")).to_have_attribute("aria-label", re.compile(r"Planned: 96\.00 %.*93\.50 %"))
    curves = {trace["name"]: trace["y"] for trace in page.evaluate(
        "document.getElementById('chart-forecast').data.map(({ name, y }) => ({ name, y }))")}
    assert curves["planned"] == [96, 96]
    assert curves["corrected"] == pytest.approx([95, 93.5])
    assert curves["test set"] == pytest.approx([80, 93])
    assert curves["validation"] == pytest.approx([81, 94])
    expect(page.locator("#forecast-note")).to_contain_text("a pilot")
    shutil.rmtree(folder)


def steered(number: int, **more: object) -> str:
    """A line of a run with a policy: shop is always there, the van left after the second round."""
    there = [0, 1] if number < 2 else [0]
    return json.dumps({
        "round": number, "clients": there[-1:], "energy_total_j": 2.0 * (number + 1), "delay_total_s": number + 1.0,
        "train_loss": 1.0, "available": there, "energy_left_j": 10.0 - 2.0 * number, "delay_left_s": 10.0 - number,
        "forecast_accuracy": 0.9 - 0.01 * number, **more}) + "\n"


def test_the_timeline_of_a_run_with_a_policy_grows_with_it(page: Page, studio: Studio) -> None:
    """Three rounds written by hand, then a fourth; in the third the van has left, and the shop's gain is 20 dB down."""
    folder = studio.runs / "steered"
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "job.json").write_text("{}")
    (folder / "plan.json").write_text(json.dumps({"rounds": 8, "scheme": "forecast"}))
    (folder / "config.yaml").write_text("policy: replan\n")
    (folder / "scenario.yaml").write_text("rounds: 8\nbudget: {energy_j: 10.0, delay_s: 10.0}\n"
                                          "clients: [{name: shop}, {name: <b>van</b>}]\n")
    lines = [steered(0), steered(1, dropped=[1]),
             steered(2, planned_again="the world differs; <b>van</b> left", gain=[0.01, 1.0], idle_s=3.0)]
    (folder / "rounds.jsonl").write_text("".join(lines))
    page.click("nav a[data-view=run]")
    page.click("[data-run=steered]")
    expect(page.locator("#chart-part")).to_have_attribute("aria-label", "Who took part in each of 3 rounds: shop 1, "
                                                                        "<b>van</b> 2.")

    def traces(chart: str) -> list[dict[str, list[object]]]:
        drawn(page, chart)
        keep = "({ x, y, z, text }) => ({ x, y, z, text })"
        return page.evaluate(f"document.getElementById('{chart}').data.map({keep})")

    cells, waited, again = traces("chart-part")
    assert cells["z"] == [[1, 1, 2], [2, 3, 0]]  # there, took part, no update came, away
    assert (waited["x"], again["x"]) == ([3], [3])
    assert again["text"] == ["round 3 was planned again:<br>the world differs; &lt;b>van&lt;/b> left"]
    assert traces("chart-channels")[0]["z"] == [[0, 0, -20], [0, 0, None]]
    expect(page.locator("#chart-clocks")).to_be_hidden()
    expect(page.locator("#chart-queues")).to_be_hidden()
    _, joules, seconds = traces("chart-left")
    assert joules["y"] == pytest.approx([100, 80, 60, 40])
    assert seconds["y"] == pytest.approx([100, 90, 80, 70])
    expect(page.locator("#chart-forecast")).to_have_attribute("aria-label", re.compile("policy now expects 88.00 %"))
    page.locator("#chart-part").scroll_into_view_if_needed()
    box = page.locator("#chart-part .scatterlayer .trace").last.locator("path.point").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#chart-part .hoverlayer")).to_contain_text("the world differs; <b>van</b> left")
    with open(folder / "rounds.jsonl", "a") as log:
        log.write(steered(3, policy={"energy_queue": 0.5, "delay_queue": 0.0}))
    expect(page.locator("#chart-queues")).to_be_visible()
    assert traces("chart-part")[0]["x"] == [1, 2, 3, 4]
    page.click("#timeline-count")
    expect(page.locator("#timeline-list li")).to_have_text(["the world differs; <b>van</b> left"])
    page.set_viewport_size({"width": 380, "height": 800})
    page.select_option("#theme", "dark")
    fits(page, "the timeline")
    shoot(page, "timeline-phone-dark")
    shutil.rmtree(folder)


LONG = 60
"""Rounds of a run that is still going when it is stopped."""


def start(page: Page, seed: int, rounds: int, model: str = "mlp", evaluate_every: int = 2) -> None:
    page.select_option("#run-model", model)
    page.fill("#run-rounds", str(rounds))
    page.fill("#run-evaluate_every", str(evaluate_every))
    page.fill("#run-seed", str(seed))
    page.click("#run-form button[type=submit]")
    expect(page.locator("#watch-title")).to_have_text(f"embedded-proposed-seed{seed}")


@pytest.mark.full
def test_a_run_is_started_watched_stopped_and_resumed(browser: Browser, tmp_path: Path) -> None:
    write_document(small_document(), tmp_path / "small.yaml")
    with Studio(tmp_path / "runs", opened="small.yaml", folder=tmp_path) as running, \
            opened_page(browser, running) as page:
        page.click("nav a[data-view=run]")
        page.fill("#run-rounds", "0")
        page.click("#run-form button[type=submit]")
        expect(page.locator("#run-form [data-error=rounds]")).to_contain_text("must be")
        start(page, 0, LONG, "lenet5", evaluate_every=1)
        expect(page.locator("#watch-state")).to_have_text("running")
        early = grown(page, "chart-loss", 3)
        assert grown(page, "chart-loss", early + 1) > early
        shoot(page, "run-light")
        page.click("#stop")
        expect(page.locator("#watch-state")).to_have_text("stopped")
        page.reload()
        expect(page.locator("#watch-title")).to_have_text("embedded-proposed-seed0")  # still there
        expect(page.locator("#watch-state")).to_have_text("stopped")
        grown(page, "chart-loss", early)
        page.click("#resume")
        expect(page.locator("#watch-state")).to_have_text("finished")
        assert grown(page, "chart-loss", LONG) == LONG
        drawn(page, "chart-participation")
        assert sum(bars(page, "chart-participation")[0]) > 0
        start(page, 1, 12)
        expect(page.locator("#watch-state")).to_have_text("finished")


@pytest.mark.full
def test_a_watched_run_goes_on_through_a_restart(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    with Studio(tmp_path / "runs") as first:
        port = first.port
        page.goto(first.url)
        page.click("nav a[data-view=run]")
        start(page, 0, 400, "lenet5", 1)  # slow enough to be there when it is stopped
        seen = grown(page, "chart-loss", 3)
        first.process.kill()
        first.process.wait()
    expect(page.locator("#notice")).to_contain_text("does not answer")
    with Studio(tmp_path / "runs", port) as second:
        expect(page.locator("#notice")).to_be_hidden()
        more = grown(page, "chart-loss", seen + 1)  # without a reload
        numbers = page.evaluate("document.getElementById('chart-loss').data[0].x")
        assert numbers[:more] == list(range(1, more + 1))  # none twice, none left out
        page.click("#stop")  # with the token of the server that is gone
        expect(page.locator("#watch-message")).to_contain_text("token")
        page.goto(second.url)
        page.click("nav a[data-view=run]")
        page.click("[data-run=embedded-proposed-seed0]")
        expect(page.locator("#watch-title")).to_be_focused()
        page.click("#stop")
        expect(page.locator("#watch-state")).to_have_text("stopped")
    context.close()


# --- the compare page -----------------------------------------------------------------------------------------------

def test_a_sweep_of_twelve_is_compared_by_scheme(page: Page, tmp_path: Path) -> None:
    page.click("nav a[data-view=compare]")
    expect(page.locator("#nothing")).to_be_visible()
    page.check("[data-sweep=schemes]")
    legend = page.locator("#compare-legend li")
    expect(legend).to_have_count(3)  # groups, not runs
    assert sorted(legend.all_inner_texts()) == ["all_clients 4 seeds", "no_pruning 4 seeds", "proposed 4 seeds"]
    drawn(page, "compare-accuracy")
    means = {trace["name"]: trace for trace in page.evaluate(
        "document.getElementById('compare-accuracy').data.filter((t) => t.meta === 'mean')")}
    assert means["proposed (4 seeds)"]["y"] == pytest.approx([20.75, 41.5, 62.25, 83.0])
    bands = page.evaluate("document.getElementById('compare-accuracy').data.filter((t) => t.fill).length")
    assert bands == 3
    proposed = page.locator("#group-outcomes tr:has(td:text-is('proposed'))")
    expect(proposed).to_contain_text("83.0 ± 4.1 %")
    first = page.locator("#pick input[value*=proposed]").first.get_attribute("value")
    assert first is not None
    page.select_option("#compare-reference", label="proposed")
    expect(page.locator("#differences-title")).to_contain_text("Difference from proposed")
    expect(page.locator("#differences tr:has(td:text-is('all_clients'))")).to_contain_text("+1.50 ± 0.92")
    expect(page.locator("#differences tr:has(td:text-is('no_pruning'))")).to_contain_text("−5")
    page.check("[name=against][value=energy_total_j]")
    for look in looks(page, "compare"):
        key, chart = (page.locator(part).bounding_box() for part in ("#compare-legend", "#compare-accuracy"))
        assert key is not None
        assert chart is not None
        assert key["height"] < chart["height"] / 2, look
    page.reload()  # the runs, the axis and the reference are in the address
    expect(page.locator("#differences-title")).to_contain_text("Difference from proposed")
    assert page.is_checked("[name=against][value=energy_total_j]")
    for kind, sign in (("png", b"\x89PNG"), ("svg", b"<svg")):
        with page.expect_download(lambda file, kind=kind: file.suggested_filename == f"fedgap-loss.{kind}") as saved:
            page.click(f"#export-{kind}")
        saved.value.save_as(tmp_path / f"picture.{kind}")
        assert (tmp_path / f"picture.{kind}").read_bytes().startswith(sign)
    with page.expect_download(lambda file: file.suggested_filename == "fedgap-runs.csv") as saved:
        page.click("#export-csv")
    saved.value.save_as(tmp_path / "runs.csv")
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 12 * 8
    assert lines[0].startswith("run,round,delay_total_s,energy_total_j")


def test_runs_that_differ_in_everything_keep_a_legend_of_bounded_height(page: Page) -> None:
    page.click("nav a[data-view=compare]")
    boxes = page.locator("#pick input[value]")
    expect(boxes).to_have_count(12)
    boxes.nth(0).check()
    boxes.nth(5).check()
    expect(page.locator("#compare-legend li")).to_have_count(2)
    expect(page.locator("#compare-legend li").first).to_contain_text(re.compile("seed [0-3]"))
    expect(page.locator("#band-note")).to_contain_text("Each line is a single run")
    page.evaluate("""() => { const list = document.getElementById('compare-legend'), one = list.firstChild;
        for (let i = 0; i < 60; i += 1) list.append(one.cloneNode(true)); }""")
    box = page.locator("#compare-legend").bounding_box()
    assert box is not None
    assert box["height"] < 120  # it scrolls instead


# --- addresses, the token, the keyboard -----------------------------------------------------------------------------

def test_an_address_that_was_cut_off_says_so(page: Page) -> None:
    planned(page)
    page.evaluate("location.hash = '#/plan?doc=abc'")
    expect(page.locator("#notice")).to_contain_text("incomplete")
    planned(page)
    page.evaluate("location.hash = '#/compare?runs=gone'")
    expect(page.locator("#notice")).to_contain_text("do not exist: gone")


def test_without_the_token_one_may_look_but_not_start(browser: Browser, studio: Studio) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{studio.address}/#/run")
    page.click("#run-form button[type=submit]")
    expect(page.locator("#run-error")).to_contain_text("token")
    context.close()


def test_controls_have_names_and_the_keyboard_reaches_them(page: Page) -> None:
    planned(page)
    nameless = page.evaluate("""[...document.querySelectorAll('input, select, button, a, [role=figure], [role=region]')]
        .filter((e) => e.offsetParent && !(e.ariaLabel || e.labels?.length || e.textContent.trim()
                       || e.getAttribute('aria-labelledby')))
        .map((e) => e.outerHTML.slice(0, 120))""")
    assert not [html for html in nameless if "modebar" not in html]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.view") == "plan"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#view-run")).to_be_visible()
    assert page.locator("nav a[aria-current=page]").inner_text() == "Run"
