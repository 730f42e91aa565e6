"""From a slider's movement to the redrawn plan, measured in the browser itself; and how long the studio takes to start.

    python benchmarks/studio_latency.py [--moves 60] [--starts 10] [--loads 10]
                                        [--out benchmarks/results/studio_latency.json]

With ``--moves 0``, ``--starts 0`` or ``--loads 0`` that part is left as the file has it.

Chromium (headless) opens the studio, and the sliders of both budgets are moved by the arrow keys, a third of a second
apart, so that every move interrupts what the last one still has to fill in. The page notes the time from the slider's
event to the end of the frame that shows the new plan's numbers and the charts on the screen (`performance.measure`),
and how long the certificate took after that. A start is from `fedgap studio` being executed to its page being served,
with the processor seconds that the server itself took until then. A first load is from opening the address in a browser
without a cache, right after the start, to the frame that shows the first plan's numbers, by the page's own clock. What
the machine did besides is recorded as its load.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

PRESETS = ("paper-mnist", "paper-cifar10")
SLIDERS = ("budget.delay_s", "budget.energy_j")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip


FIRST_FRAMES = """window.firstFrames = {};
const parts = { numbers: "#numbers [data-fact]", charts: "#chart-clients .main-svg" };
const note = (name) => requestAnimationFrame(() => setTimeout(() => { firstFrames[name] = performance.now(); }));
new MutationObserver(() => {
  for (const [name, selector] of Object.entries(parts)) {
    if (document.querySelector(selector)) { delete parts[name]; note(name); }
  }
}).observe(document, { childList: true, subtree: true });"""
"""Script that records when the first plan's numbers and charts are on the screen, in ms since the navigation."""


def moves(page: Page, preset: str, slider: str, count: int) -> list[float]:
    """Move the slider ``count`` times; returns the milliseconds of each move."""
    page.select_option("#preset", preset)
    page.wait_for_selector("#plan-stage.good")
    page.wait_for_timeout(1500)
    page.evaluate("performance.clearMeasures('slider-to-plan')")
    page.locator(f"[data-slider='{slider}']").focus()
    for i in range(count):
        page.keyboard.press("ArrowRight" if i % 20 < 14 else "ArrowLeft")
        page.wait_for_timeout(330)
    page.wait_for_timeout(500)
    found: list[float] = page.evaluate("performance.getEntriesByName('slider-to-plan').map((m) => m.duration)")
    return found


def certificates(page: Page, count: int) -> list[float]:
    """Milliseconds until the plan is certified while the slider does not move."""
    times = []
    for _ in range(count):
        page.locator(f"[data-slider='{SLIDERS[0]}']").focus()
        began = page.evaluate("performance.now()")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#plan-stage.good")
        times.append(page.evaluate("performance.now()") - began)
    return times


def serve(runs: str) -> tuple[subprocess.Popen[str], str]:
    """Start a studio; returns its process and its address."""
    command = [sys.executable, "-m", "fedgap", "studio", "--no-browser", "--port", "0", "--runs", runs]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().split()[1]


def end(server: subprocess.Popen[str]) -> None:
    """End the studio as Ctrl-C does."""
    server.send_signal(signal.SIGINT)
    server.wait(30)


def starts(count: int) -> dict[str, Any]:
    """Seconds from executing the command until its page is served, and the server's processor seconds until then."""
    walls, processors = [], []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as runs:
            began = time.perf_counter()
            server, address = serve(runs)
            connection = http.client.HTTPConnection(address.split("/")[2])
            connection.request("GET", "/")
            assert b"fedgap studio" in connection.getresponse().read()
            walls.append(time.perf_counter() - began)
            connection.close()
            if Path("/proc/self/stat").is_file():
                user, system = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                processors.append((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
            end(server)
    return {"starts": count, "median_s": round(statistics.median(walls), 2), "worst_s": round(max(walls), 2),
            "processor_s": round(statistics.median(processors), 2) if processors else None}


def loads(count: int) -> dict[str, Any]:
    """Seconds from opening the address of a newly started studio to its first plan, and to the charts."""
    numbers, charts = [], []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        for _ in range(count):
            with tempfile.TemporaryDirectory() as runs:
                server, address = serve(runs)
                page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
                page.add_init_script(FIRST_FRAMES)
                page.goto(address)
                page.wait_for_selector("#chart-clients .main-svg", timeout=120_000)
                page.wait_for_timeout(200)
                numbers.append(page.evaluate("firstFrames.numbers") / 1000)
                charts.append(page.evaluate("firstFrames.charts") / 1000)
                page.context.close()
                end(server)
        browser.close()
    return {"loads": count, "median_s": round(statistics.median(numbers), 2), "worst_s": round(max(numbers), 2),
            "charts_median_s": round(statistics.median(charts), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "studio_latency.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    if arguments.starts:
        result["start"] = with_machine(lambda: starts(arguments.starts))
    if arguments.loads:
        result["first_load"] = with_machine(lambda: loads(arguments.loads))
    if arguments.moves:
        result |= with_machine(lambda: latencies(arguments.moves))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def with_machine(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, together with the load of the machine and whether the process had real-time priority."""
    machine: dict[str, Any] = {"cpus": os.cpu_count(), "python": platform.python_version(),
                               "load_before": round(os.getloadavg()[0], 2)}
    if hasattr(os, "sched_getscheduler"):
        machine["real_time_priority"] = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    found = measure()
    return {"machine": machine | {"load_after": round(os.getloadavg()[0], 2)} | found.pop("machine", {})} | found


def latencies(count: int) -> dict[str, Any]:
    """Milliseconds from slider to plan, and to its certificate, for each preset."""
    with tempfile.TemporaryDirectory() as runs, sync_playwright() as started:
        server, address = serve(runs)
        try:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
            result: dict[str, Any] = {"machine": {"browser": browser.version}, "presets": {}}
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(120_000)
            page.goto(address)
            page.wait_for_selector("#plan-stage.good")
            for preset in PRESETS:
                times = [ms for slider in SLIDERS for ms in moves(page, preset, slider, count // 2)]
                certified = certificates(page, 10)
                result["presets"][preset] = {
                    "moves": len(times), "median_ms": round(statistics.median(times), 1),
                    "p90_ms": round(statistics.quantiles(times, n=10)[-1], 1),
                    "certified_median_ms": round(statistics.median(certified), 1)}  # fmt: skip
            browser.close()
        finally:
            end(server)
    return result


if __name__ == "__main__":
    main()
