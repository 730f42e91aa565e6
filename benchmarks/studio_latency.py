"""From a slider's movement to the redrawn plan, measured in the browser itself.

    python benchmarks/studio_latency.py [--moves 60] [--out benchmarks/results/studio_latency.json]

Chromium (headless) opens the studio, and the sliders of both budgets are moved by the arrow keys, a third of a second
apart, so that every move interrupts what the last one still has to fill in. The page notes the time from the slider's
event to the end of the frame that shows the new plan's numbers and the charts on the screen (`performance.measure`),
and how long the certificate took after that. What the machine did besides is recorded as its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

PRESETS = ("paper-mnist", "paper-cifar10")
SLIDERS = ("budget.delay_s", "budget.energy_j")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip


def moves(page: Page, preset: str, slider: str, count: int) -> list[float]:
    """Milliseconds of each move."""
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
    """Milliseconds until the plan is certified, the slider at rest."""
    times = []
    for _ in range(count):
        page.locator(f"[data-slider='{SLIDERS[0]}']").focus()
        began = page.evaluate("performance.now()")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#plan-stage.good")
        times.append(page.evaluate("performance.now()") - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "studio_latency.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": {"cpus": os.cpu_count(), "python": platform.python_version(),
                                          "load_before": round(os.getloadavg()[0], 2)}, "presets": {}}
    with tempfile.TemporaryDirectory() as runs, sync_playwright() as started:
        command = [sys.executable, "-m", "fedgap", "studio", "--no-browser", "--port", "0", "--runs", runs]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[1]
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
            result["machine"]["browser"] = browser.version
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(120_000)
            page.goto(address)
            page.wait_for_selector("#plan-stage.good")
            for preset in PRESETS:
                times = [ms for slider in SLIDERS for ms in moves(page, preset, slider, arguments.moves // 2)]
                certified = certificates(page, 10)
                result["presets"][preset] = {
                    "moves": len(times), "median_ms": round(statistics.median(times), 1),
                    "p90_ms": round(statistics.quantiles(times, n=10)[-1], 1),
                    "certified_median_ms": round(statistics.median(certified), 1)}  # fmt: skip
            browser.close()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    result["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
