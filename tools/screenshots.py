"""Make the pictures of the studio in the docs, from a real sweep of twelve short runs.

    python -m tools.screenshots [--out docs/images] [--all FOLDER]

It needs Chromium, playwright and pillow, trains for about a minute, and replaces ``docs/images/studio*.png``. With
``--all`` every view is also taken at desktop and phone width, in light and dark, into a folder to look through.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fedgap.config import Experiment
from fedgap.config.init_template import write_template
from fedgap.running.sweep import sweep

SCHEMES = ("forecast", "proposed", "all_clients")
SEEDS = (0, 1, 2, 3)
DESKTOP, PHONE = (1280, 860), (390, 844)
COLOURS = 96
"""Number of colours of a picture in the docs; it looks the same as the original and has a third of its size."""
PATIENCE_MS = 120_000
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
                      "--disable-sync", "--no-first-run"]  # fmt: skip


def train(folder: Path) -> None:
    """Write the files of ``fedgap init`` into the folder, and train a sweep under ``runs/schemes``."""
    write_template(folder)
    experiment = Experiment.load(folder / "experiment.yaml", ["model.name=mlp", "evaluate_every=5"])
    sweep(experiment, {"scheme": SCHEMES, "seed": SEEDS}, folder / "runs" / "schemes", stacked=True)


@contextmanager
def studio(folder: Path) -> Iterator[str]:
    """Start a studio that opens the experiment; yields its address."""
    command = [sys.executable, "-m", "fedgap", "studio", "experiment.yaml", "--no-browser", "--port", "0"]
    paths = os.pathsep.join([str(Path("src").resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder,
                              env=os.environ | {"PYTHONPATH": paths})
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[1]
    finally:
        server.terminate()
        server.wait(30)


def opened(browser: Browser, address: str, size: tuple[int, int], theme: str) -> Page:
    """A browser page of this size, on which the plan has been solved."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.wait_for_selector("#plan-stage.good")
    page.wait_for_selector("#frontier-stage.good")
    page.wait_for_timeout(1000)
    return page


def views(page: Page) -> Iterator[str]:
    """Show the views one after another; yields the name of each."""
    yield "plan"
    page.click("nav a[data-view=run]")
    page.click("[data-run$='scheme=forecast,seed=0']")
    page.wait_for_selector("#chart-accuracy .main-svg")
    page.wait_for_timeout(800)
    yield "run"
    page.click("nav a[data-view=compare]")
    page.check("[data-sweep=schemes]")
    page.wait_for_selector("#differences tbody tr")
    page.wait_for_timeout(800)
    yield "compare"


def shrink(path: Path) -> None:
    """Reduce a picture to few colours."""
    image = Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main() -> None:
    """Train, open the studio, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--all", type=Path, default=None, metavar="FOLDER")
    parser.add_argument("--runs", type=Path, default=None, metavar="FOLDER", help="keep runs here and use them again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as started:
        folder = arguments.runs or Path(temporary)
        if not (folder / "runs").is_dir():
            train(folder)
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_ARGUMENTS)
        with studio(folder) as address:
            page = opened(browser, address, DESKTOP, "light")
            for view in views(page):
                path = arguments.out / ("studio.png" if view == "plan" else f"studio-{view}.png")
                page.evaluate("scrollTo(0, 0)")
                page.mouse.move(0, 0)  # where it shows no buttons of a chart
                page.wait_for_timeout(300)
                page.screenshot(path=path)
                shrink(path)
            if arguments.all is not None:
                take_all(browser, address, arguments.all)
        browser.close()


def take_all(browser: Browser, address: str, folder: Path) -> None:
    """Take full pictures of every view, at both widths and in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for theme in ("light", "dark"):
            page = opened(browser, address, size, theme)
            for view in views(page):
                page.screenshot(path=folder / f"{view}-{width}-{theme}.png", full_page=True)
            page.close()


if __name__ == "__main__":
    main()
