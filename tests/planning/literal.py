"""The paper's formulas once more, in plain loops over a scenario's own numbers: what a plan's θ, E and T must be."""

from math import log, log2, sqrt

from fedgap.config import Scenario
from fedgap.planning import Plan

WIRE_BITS = {32: 32.0, 8: 8.0 + 32.0 / 256.0, 4: 4.0 + 32.0 / 256.0}
"""Bits of an uploaded value with its share of a block's float32 scale."""


def theta(scenario: Scenario, plan: Plan) -> float:
    """θ of Theorem 1 for the plan's rounds."""
    bound, eta, batch = scenario.bound, scenario.learning.rate, scenario.learning.batch_size
    rounds = sum(segment.rounds for segment in plan.segments)
    scale = eta if bound.constants == "printed" else 1.0 / eta
    beta = scale * eta**2 * bound.gradient_moment * (bound.smoothness + 1.0) / (batch * rounds)
    gamma1 = scale * bound.gradient_moment / (batch * rounds)
    gamma2 = (
        bound.pruning_sensitivity if bound.sensitivity == "secant" else bound.smoothness**2 * bound.parameter_moment
    ) / rounds
    total = 2.0 * bound.initial_gap / (eta * rounds)
    for segment in plan.segments:
        chosen = [n for n in range(scenario.size) if segment.selected[n]]
        k = len(chosen)
        pruned = sum(segment.pruning_ratio[n] for n in chosen)
        total += segment.rounds * (beta / k + gamma1 * statement(scenario, chosen) ** 2 / k + gamma2 * pruned / k)
    return float(total)


def statement(scenario: Scenario, chosen: list[int]) -> float:
    """Φ of a selection."""
    if scenario.bound.aggregation != "mixture":
        total = sum(scenario.clients[n].phi for n in chosen)
        return total if scenario.bound.aggregation == "sum" else total / len(chosen)
    target = scenario.target_counts
    pooled = [sum(scenario.clients[n].label_counts[c] for n in chosen) for c in range(len(target))]
    p = [(count + 1) / (sum(pooled) + len(pooled)) for count in pooled]
    q = [(count + 1) / (sum(target) + len(target)) for count in target]
    root = sqrt(2.0 * sum(a * log(a / b) for a, b in zip(p, q, strict=True)))
    share = sum(target) / (sum(target) + sum(pooled))
    return 1.0 / min(p) * root / (1.0 - share * root)


def energy_and_delay(scenario: Scenario, plan: Plan) -> tuple[float, float]:
    """E and T of all the plan's rounds."""
    joules = seconds = 0.0
    noise, server = scenario.noise_psd_w_hz, scenario.server
    for segment in plan.segments:
        spent, slowest, longest = 0.0, 0.0, 0.0
        for n, client in enumerate(scenario.clients):
            bits = client.gradient_bits or scenario.model.gradient_bits
            flops = client.flops_per_sample or scenario.model.flops_per_sample
            samples = segment.local_steps * (client.batch_size or scenario.learning.batch_size)
            cycles = samples * flops / client.flops_per_cycle
            heard = server.power_w * client.downlink_gain / (server.bandwidth_hz * (client.noise_psd_w_hz or noise))
            download = bits / (server.bandwidth_hz * log2(1.0 + heard))
            longest = max(longest, download)
            if not segment.selected[n]:
                continue
            keep, power, frequency = 1.0 - segment.pruning_ratio[n], segment.power_w[n], segment.frequency_hz[n]
            snr = power * client.uplink_gain / (client.bandwidth_hz * noise)
            uploaded = keep * bits * WIRE_BITS[scenario.learning.upload_bits] / 32.0
            upload = uploaded / (client.bandwidth_hz * log2(1.0 + snr))
            slowest = max(slowest, download + keep * cycles / frequency + upload)
            spent += power * upload + keep * client.pue * client.capacitance * frequency**2 * cycles
        joules += segment.rounds * (spent + server.power_w * longest)
        seconds += segment.rounds * slowest
    return float(joules), float(seconds)
