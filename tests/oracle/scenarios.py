"""Problems to try the planners on: the shared cases, random fleets, and one with numbers for a pencil."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.config import Scenario
from fedgap.planning.problem import Problem
from fedgap.system import Fleet, round_cost
from fedgap.theory import BoundConstants

CASES = Path(__file__).parent.parent / "cases"
FEASIBLE_CASES = ("n1_loose", "n3_r1", "n10_mnist_mean_tight", "n10_cifar_mean")


def case(name: str) -> tuple[Problem, dict[str, Any]]:
    """A shared case's problem, and what is known of its optimum."""
    expected = json.loads((CASES / f"{name}.expected.json").read_text(encoding="utf-8"))
    return Problem.of(Scenario.load(CASES / f"{name}.json")), expected


def random_fleet(
    rng: np.random.Generator, clients: int, local_steps: int = 1, wire_bits: float = 32.0
) -> Fleet:
    """Clients like the paper's CIFAR-10 column, but with unequal processors, radios and gains."""

    def spread(middle: float, factor: float) -> np.ndarray:
        return middle * factor ** rng.uniform(-1.0, 1.0, clients)

    def same(value: float) -> np.ndarray:
        return np.full(clients, value)

    gain = 1e-5 * rng.exponential(1.0, clients) + 1e-8
    return Fleet(
        uplink_gain=gain,
        downlink_gain=gain,
        bandwidth_hz=spread(2e6, 1.5),
        max_power_w=spread(0.5, 2.0),
        max_frequency_hz=spread(2e9, 2.0),
        flops_per_cycle=same(8.0),
        pue=same(1.0),
        capacitance=spread(1e-28, 2.0),
        gradient_bits=same(21.07e6),
        uplink_bits=same(21.07e6 * wire_bits / 32.0),
        flops_per_sample=same(0.59e9),
        batch_size=same(32.0),
        local_steps=same(float(local_steps)),
        max_ratio=same(0.7),
        downlink_noise_psd_w_hz=same(3.98e-21),
        server_power_w=np.array(0.5),
        server_bandwidth_hz=np.array(2e6 * clients),
        uplink_noise_psd_w_hz=np.array(3.98e-21),
    )


def random_problem(
    rng: np.random.Generator, clients: int, rounds: int, *, aggregation: str = "mean", dense_first: bool = False,
    local_steps: int = 1, wire_bits: float = 32.0,
) -> Problem:
    """A problem whose budgets lie between loose and too tight: its weights make selection and pruning both matter."""
    fleet = random_fleet(rng, clients, local_steps, wire_bits)
    everybody = np.ones(clients, dtype=bool)
    full = round_cost(fleet, everybody, np.zeros(clients), fleet.max_power_w, fleet.max_frequency_hz)
    statements = {"phi": rng.uniform(5.0, 20.0, clients), "aggregation": aggregation}
    if aggregation == "mixture":
        counts = rng.multinomial(600, rng.dirichlet(np.full(10, 1.0), clients)).astype(float)
        statements |= {"label_counts": counts, "target_counts": np.full(10, 100.0)}
    constants = BoundConstants(alpha=1.0 / rounds, beta=20.0 / rounds, gamma1=1.0, gamma2=75.0 / rounds, rounds=rounds)
    budgets = {
        "energy_j": rounds * float(full.energy_j) * rng.uniform(0.15, 1.1),
        "delay_s": rounds * float(np.quantile(full.client_s, rng.uniform(0.3, 1.0))) * rng.uniform(0.5, 1.3),
    }
    problem = Problem(fleet, rounds, constants=constants, dense_first=dense_first, **budgets, **statements)
    # γ₁ such that a typical client's own term weighs as much as β, or less where Φ grows with the clients.
    typical = float(np.median(problem.statement(np.eye(clients, dtype=bool))))
    weight = 20.0 / rounds / typical**2 / (clients if aggregation == "sum" else 1)
    return replace(problem, constants=replace(constants, gamma1=weight))


def as_fedsgd(problem: Problem) -> Problem:
    """A problem with local steps and small uploads as one of FedSGD that costs as much.

    τ steps compute as much as one step of τ times the samples. Uploads of share s of H bits are those of a model of s·H
    bits. A server with s times the power and the bandwidth (its SNR stays) sends s·H bits in the same time and with s
    times the joules, so the budget gives up (1 − s) of every round's broadcast.
    """
    fleet = problem.fleet
    share = float(fleet.uplink_bits[0] / fleet.gradient_bits[0])
    plain = replace(
        fleet, batch_size=fleet.local_steps * fleet.batch_size, local_steps=np.ones(fleet.size),
        gradient_bits=fleet.uplink_bits, server_power_w=share * fleet.server_power_w,
        server_bandwidth_hz=share * fleet.server_bandwidth_hz,
    )
    saved = (1.0 - share) * problem.broadcast_j * problem.rounds
    return replace(problem, fleet=plain, energy_j=problem.energy_j - saved)


def pencil_problem(energy_j: float, delay_s: float, rounds: int = 1, beta: float = 1.0) -> Problem:
    """Two clients whose whole model takes 3 s and 3·ϖ J to compute at 1 Hz, 2 s and 2 J to send at 1 W.

    c = U₀ = h = 1, so r(1 W) = log₂ 2 = 1 bit/s, for H = 2 bits; C = 3 cycles; ϖ = 1 and 1/3; the download takes 2 s
    and 2 J. So ε = (5, 3) J and 5 s + 2 s. γ₁ = 0, γ₂ = 1.
    """
    ones = np.ones(2)
    fleet = Fleet(
        uplink_gain=ones,
        downlink_gain=ones,
        bandwidth_hz=ones,
        max_power_w=3.0 * ones,
        max_frequency_hz=2.0 * ones,
        flops_per_cycle=ones,
        pue=ones,
        capacitance=np.array([1.0, 1.0 / 3.0]),
        gradient_bits=2.0 * ones,
        uplink_bits=2.0 * ones,
        flops_per_sample=3.0 * ones,
        batch_size=ones,
        local_steps=ones,
        max_ratio=0.5 * ones,
        downlink_noise_psd_w_hz=ones,
        server_power_w=np.array(1.0),
        server_bandwidth_hz=np.array(1.0),
        uplink_noise_psd_w_hz=np.array(1.0),
    )
    constants = BoundConstants(alpha=0.0, beta=beta / rounds, gamma1=0.0, gamma2=1.0 / rounds, rounds=rounds)
    return Problem(fleet, rounds, energy_j, delay_s, constants, ones, "mean")
