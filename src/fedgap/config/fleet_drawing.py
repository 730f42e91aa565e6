"""Fleets and label histograms drawn from recipes.

Every draw comes from a named stream of the scenario's seed, so that changing one ingredient (the labels, say) leaves
the others (the channels) as they were, and a larger fleet begins with the same clients.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgap.config.fleet_recipes import City, Labels, Rayleigh, Recipe
from fedgap.errors import InputError
from fedgap.streams import stream
from fedgap.system import propagation

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MOST_COUNTS = 20_000_000
"""Clients × classes that fit comfortably into memory."""


def draw_fleet(recipe: Recipe, seed: int) -> list[dict[str, Any]]:
    """The clients that a recipe and a seed stand for, as a scenario file would list them."""
    gains = _city_gains(recipe, seed) if isinstance(recipe, City) else _rayleigh_gains(recipe, seed)
    columns: dict[str, Array] = {
        "uplink_gain": gains,
        "downlink_gain": gains,
        "bandwidth_hz": _cycle(recipe.bandwidth_hz, recipe.count),
        "max_power_w": _cycle(recipe.max_power_w, recipe.count),
    }
    if isinstance(recipe, City):
        columns |= _city_processors(recipe, seed)
    else:
        columns |= {
            key: _cycle(getattr(recipe, key), recipe.count)
            for key in ("max_frequency_hz", "flops_per_cycle", "capacitance")
        }
    columns["pue"] = _cycle(recipe.pue, recipe.count)
    rows = zip(*(map(_rounded, column) for column in columns.values()))
    return [dict(zip(columns, row)) for row in rows]


def _rounded(value: float) -> float:
    """Nine digits: processors differ in the last bit of a logarithm, and a seed must mean one fleet everywhere."""
    return float(f"{value:.9g}")


def _cycle(values: tuple[float, ...], size: int) -> Array:
    return np.resize(np.asarray(values, dtype=np.float64), size)


def _rayleigh_gains(recipe: Rayleigh, seed: int) -> Array:
    """h_n = mean_gain·|g_n|², shape (N,)."""
    return recipe.mean_gain * propagation.rayleigh_power(stream(seed, "fading"), recipe.count)


def _city_gains(recipe: City, seed: int) -> Array:
    """h_n = 10^(−(PL + X)/10)·|g|²: path loss, log-normal shadowing X and fading of each client, shape (N,)."""
    # One row a client: place, line of sight, shadowing.
    place = stream(seed, "placement").random((recipe.count, 2))
    low, high = recipe.min_distance_m**2, recipe.cell_radius_m**2
    distance = np.sqrt(low + (high - low) * place[:, 0])
    in_sight = place[:, 1] < propagation.line_of_sight_probability(distance)
    geometry = (distance, recipe.carrier_hz, recipe.server_height_m, recipe.client_height_m)
    loss = np.where(in_sight, propagation.path_loss_los_db(*geometry), propagation.path_loss_nlos_db(*geometry))
    normal = stream(seed, "placement", 1).standard_normal((recipe.count, 2))
    sigma = np.where(in_sight, propagation.SHADOWING_LOS_DB, propagation.SHADOWING_NLOS_DB)
    k_db = recipe.rician_k_db + recipe.rician_k_spread_db * normal[:, 1]
    k_factor = np.where(in_sight, 10.0 ** (k_db / 10.0), 0.0)
    fading = propagation.rician_power(stream(seed, "fading"), k_factor)
    return np.asarray(10.0 ** (-(loss + sigma * normal[:, 0]) / 10.0) * fading)


def _city_processors(recipe: City, seed: int) -> dict[str, Array]:
    """A tier for each client, and its clock: the tier's, times a log-normal factor of median 1."""
    draws = stream(seed, "processors").random(recipe.count)
    edges = np.cumsum([tier.share for tier in recipe.tiers])
    tier = np.searchsorted(edges / edges[-1], draws, side="right").clip(max=len(recipe.tiers) - 1)
    spread = stream(seed, "processors", 1).standard_normal(recipe.count)

    def of_tier(key: str) -> Array:
        return np.asarray(np.array([getattr(item, key) for item in recipe.tiers], dtype=np.float64)[tier])

    return {
        "max_frequency_hz": of_tier("max_frequency_hz") * np.exp(recipe.tier_spread * spread),
        "flops_per_cycle": of_tier("flops_per_cycle"),
        "capacitance": of_tier("capacitance"),
    }


def draw_labels(labels: Labels, seed: int, clients: list[Any]) -> list[int]:
    """Give every client that has neither ``phi`` nor ``label_counts`` its histograms; return the scenario's target.

    p_n ~ Dirichlet(σ), D̂_n samples by multinomial; the client's target set is sampled from even classes ("the sampled
    testing distribution"). The scenario's target is the even histogram of the same size: it has no sampling noise, and
    the pooled statement keeps the scale of the clients'.
    """
    size = len(clients)
    if size * labels.classes > MOST_COUNTS:
        raise InputError(f"labels.classes: {size} clients × {labels.classes} classes are too many to draw")
    train, target = draw_histograms(labels, seed, size)
    for n, client in enumerate(clients):
        if isinstance(client, dict) and "phi" not in client and "label_counts" not in client:
            client["label_counts"] = train[n].tolist()
            client.setdefault("target_counts", target[n].tolist())
    share, rest = divmod(labels.target_samples, labels.classes)
    return [share + (label < rest) for label in range(labels.classes)]


def draw_histograms(labels: Labels, seed: int, size: int) -> tuple[Counts, Counts]:
    """Training and target histograms of ``size`` clients, each of shape (size, classes)."""
    proportions = stream(seed, "partition").dirichlet(np.full(labels.classes, labels.concentration), size)
    # A tiny σ can underflow every gamma draw of a row; such a client has one class, as the limit has it.
    broken = ~np.isfinite(proportions).all(axis=1)
    proportions[broken] = np.eye(labels.classes)[np.flatnonzero(broken) % labels.classes]
    train = stream(seed, "partition", 1).multinomial(labels.train_samples, proportions)
    even = np.full(labels.classes, 1.0 / labels.classes)
    target = stream(seed, "target").multinomial(labels.target_samples, even, size)
    return train.astype(np.int64), target.astype(np.int64)
