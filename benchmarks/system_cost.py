"""Compute the costs of a thousand scenarios with a hundred clients in one call, compared with loops over clients.

    python benchmarks/system_cost.py

Three ways to the same numbers, on one thread: one vectorised ``round_cost``; ``round_cost`` client by client; and the
paper's formulas in plain Python floats, client by client. Writes ``benchmarks/results/system_cost.json`` and fails if
the three disagree."""

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import numpy as np  # noqa: E402 after the threads are set

from fedgap.system import Fleet, RoundCost, round_cost  # noqa: E402

SCENARIOS, CLIENTS = 1_000, 100
REPETITIONS = 5
RESULT = Path(__file__).parent / "results" / "system_cost.json"

Decision = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
SERVER = ("server_power_w", "server_bandwidth_hz", "uplink_noise_psd_w_hz")


def draw(seed: int = 0) -> tuple[Fleet, Decision]:
    """A fleet from Table I's MNIST column with Rayleigh fading, and a random decision for each client."""
    rng = np.random.default_rng(seed)
    shape = (SCENARIOS, CLIENTS)
    gain = 1e-5 * rng.exponential(size=shape)
    constant = {
        "bandwidth_hz": 1e5,
        "max_power_w": 0.5,
        "max_frequency_hz": 5e8,
        "flops_per_cycle": 4.0,
        "pue": 1.0,
        "gradient_bits": 1_421_632.0,
        "flops_per_sample": 1.8e6,
        "batch_size": 32.0,
        "max_ratio": 0.5,
        "downlink_noise_psd_w_hz": 3.98e-21,
    }
    fleet = Fleet(
        uplink_gain=gain,
        downlink_gain=gain,
        capacitance=rng.uniform(0.26e-27, 1.8e-27, shape),
        server_power_w=np.full(SCENARIOS, 0.5),
        server_bandwidth_hz=np.full(SCENARIOS, 1e5 * CLIENTS),
        uplink_noise_psd_w_hz=np.full(SCENARIOS, 3.98e-21),
        **{key: np.full(shape, value) for key, value in constant.items()},
    )
    selected = rng.random(shape) < 0.5
    return fleet, (selected, *(rng.uniform(0.1, 1.0, shape) * limit for limit in (0.5, 0.5, 5e8)))


def totals(cost: RoundCost) -> tuple[np.ndarray, np.ndarray]:
    return cost.energy_j, cost.delay_s


def vectorised(fleet: Fleet, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """Compute all scenarios and clients in one call."""
    return totals(round_cost(fleet, *decision))


def client_by_client(fleet: Fleet, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """The same function, called for one client at a time."""
    names = [field.name for field in fields(Fleet) if field.name != "cost_curve"]
    energy, delay = np.zeros(SCENARIOS), np.zeros(SCENARIOS)
    for s in range(SCENARIOS):
        broadcast = 0.0
        for n in range(CLIENTS):
            one = Fleet(
                **{k: getattr(fleet, k)[s] if k in SERVER else getattr(fleet, k)[s, n : n + 1] for k in names}
            )
            cost = round_cost(one, *(value[s, n : n + 1] for value in decision))
            broadcast = max(broadcast, float(cost.broadcast_j))
            energy[s] += float(cost.client_j[0])
            delay[s] = max(delay[s], float(cost.delay_s))
        energy[s] += broadcast
    return energy, delay


def plain_python(fleet: Fleet, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
    """The paper's formulas in Python floats, without arrays inside the loops and without computing anything twice."""
    lists = {field.name: getattr(fleet, field.name).tolist() for field in fields(Fleet)}
    chosen, ratios, powers, clocks = (value.tolist() for value in decision)
    energy, delay = [], []
    for s in range(SCENARIOS):
        server_power, server_band, noise = (lists[key][s] for key in SERVER)
        joules = slowest = longest = 0.0
        for n in range(CLIENTS):
            bits = lists["gradient_bits"][s][n]
            snr = server_power * lists["downlink_gain"][s][n] / (server_band * lists["downlink_noise_psd_w_hz"][s][n])
            download = bits / (server_band * math.log2(1.0 + snr))
            longest = max(longest, download)
            if not chosen[s][n]:
                continue
            kept, power, clock, band = 1.0 - ratios[s][n], powers[s][n], clocks[s][n], lists["bandwidth_hz"][s][n]
            rate = band * math.log2(1.0 + power * lists["uplink_gain"][s][n] / (band * noise))
            cycles = kept * lists["batch_size"][s][n] * lists["flops_per_sample"][s][n] / lists["flops_per_cycle"][s][n]
            upload = kept * bits / rate
            joules += lists["pue"][s][n] * lists["capacitance"][s][n] * clock**2 * cycles + power * upload
            slowest = max(slowest, cycles / clock + upload + download)
        energy.append(joules + server_power * longest)
        delay.append(slowest)
    return np.array(energy), np.array(delay)


def seconds(run: Callable[[], object], repetitions: int) -> float:
    """The median duration of several runs in seconds."""
    times = []
    for _ in range(repetitions):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> int:
    fleet, decision = draw()
    expected = vectorised(fleet, decision)
    for way in (client_by_client, plain_python):
        for one, other in zip(expected, way(fleet, decision), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-12)
    measured = {
        "vectorised_s": seconds(lambda: vectorised(fleet, decision), 10 * REPETITIONS),
        "client_by_client_s": seconds(lambda: client_by_client(fleet, decision), 1),
        "plain_python_s": seconds(lambda: plain_python(fleet, decision), REPETITIONS),
    }
    ratios = {
        "client_by_client": measured["client_by_client_s"] / measured["vectorised_s"],
        "plain_python": measured["plain_python_s"] / measured["vectorised_s"],
    }
    result = {
        "scenarios": SCENARIOS,
        "clients": CLIENTS,
        "threads": 1,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        **measured,
        "ratios": ratios,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for key, value in measured.items():
        print(f"{key.removesuffix('_s'):>17}: {1e3 * value:10.2f} ms")
    for key, value in ratios.items():
        print(f"one vectorised call is {value:.0f}x faster than {key.replace('_', ' ')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
