"""How long ``fedgap plan paper-mnist`` takes from a cold start, compared with bare Python and with importing numpy.

    python benchmarks/start_time.py [--repeats 15] [--out FILE]

Every command is a new process. The commands take turns, so that what else the machine does slows all of them alike.
Reported are medians of the seconds on the clock and of the processor's seconds, which depend less on other processes,
and the ratios of those medians. A first, uncounted turn brings the files into the system's cache and compiles the
modules to bytecode, as an installer does, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import scipy

COMMANDS = {
    "python": ["-c", "pass"],
    "numpy": ["-c", "import numpy"],
    "plan": ["-m", "fedgap", "plan", "paper-mnist"],
    "help": ["-m", "fedgap", "--help"],
}


def run_once(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """The wall-clock seconds and the processor seconds of one process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Run every command ``repeats`` times in turn, after one turn that is not counted; returns the median seconds of
    each command."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        for turn in range(repeats + 1):
            for name, arguments in COMMANDS.items():
                taken = run_once(arguments, environment)
                if turn:
                    times[name].append(taken)
    return {name: {"seconds": round(median(clock for clock, _ in taken), 4),
                   "least_seconds": round(min(clock for clock, _ in taken), 4),
                   "processor_s": round(median(processor for _, processor in taken), 4)}
            for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "start_time.json")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    medians = measure(options.repeats)
    result = {
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
        "cores": os.cpu_count(), "load_before": round(load, 2), "repeats": options.repeats, "medians": medians,
        "ratios": {f"plan/{name}": {key: round(medians["plan"][key] / medians[name][key], 2)
                                    for key in ("seconds", "processor_s")} for name in ("python", "numpy")},
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
