"""Fleets by recipe: a few numbers and a seed instead of a list of clients.

Every draw comes from a named stream of the scenario's seed, so that changing one ingredient (the labels, say) leaves
the others (the channels) as they were, and a larger fleet begins with the same clients.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from fedgap.config import messages, propagation
from fedgap.config.fields import Number, count, wrong
from fedgap.config.messages import shown
from fedgap.errors import InputError
from fedgap.streams import stream

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MOST_CLIENTS = 100_000
MOST_CLASSES = 10_000


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _Cycled:
    """Annotation of one value for all clients, or a list that is gone through again and again."""

    def __init__(self, number: Number) -> None:
        self.number = number

    def check(self, value: Any) -> tuple[float, ...]:
        """The values as a tuple of one or more."""
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise wrong("must be a number or a list of them; got an empty list")
        return tuple(self.number.check(item) for item in values)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        one = self.number.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


_Count = Annotated[int, count("a fleet has at least one client", at_most=MOST_CLIENTS)]
_Bandwidth = Annotated[tuple[float, ...], _Cycled(Number("Hz", above=0, reason="uploads need bandwidth"))]
_Power = Annotated[tuple[float, ...], _Cycled(Number("W", above=0, reason="uploads need power"))]
_Frequency = Annotated[tuple[float, ...], _Cycled(Number("Hz", above=0, reason="a stopped clock computes nothing"))]
_Flops = Annotated[tuple[float, ...], _Cycled(Number("FLOP", above=0, reason="a processor does some work in a cycle"))]
_Pue = Annotated[tuple[float, ...], _Cycled(Number(above=0, reason="computing takes energy"))]
_Capacitance = Annotated[tuple[float, ...], _Cycled(Number("F", above=0, reason="computing takes energy"))]
_Height = Annotated[float, Number("m", above=1, at_most=25, reason="TR 38.901 models street-level micro cells")]


class Rayleigh(_Recipe):
    """The paper's fleet: one average path loss for all, independent Rayleigh fading, listed processors."""

    kind: Literal["rayleigh"]
    """rayleigh."""
    count: _Count
    """N: how many clients."""
    mean_gain: Annotated[float, Number(above=0, reason="without a channel nothing arrives")]
    """Mean channel power gain: h = mean_gain·|g|², g complex normal."""
    bandwidth_hz: _Bandwidth
    """c_n, in hertz."""
    max_power_w: _Power
    """p_n^max, in watt."""
    max_frequency_hz: _Frequency
    """f_n^max, in hertz."""
    flops_per_cycle: _Flops
    """q_n."""
    pue: _Pue = (1.0,)
    """κ_n."""
    capacitance: _Capacitance
    """ϖ_n, in farad."""


class Tier(_Recipe):
    """A kind of processor and how common it is."""

    share: Annotated[float, Number(above=0, reason="a tier nobody belongs to can be left out")]
    """Its weight among the tiers."""
    max_frequency_hz: Annotated[float, Number("Hz", above=0, reason="a stopped clock computes nothing")]
    """Its median clock frequency, in hertz."""
    flops_per_cycle: Annotated[float, Number("FLOP", above=0, reason="a processor does some work in a cycle")]
    """q: floating-point operations a cycle."""
    capacitance: Annotated[float, Number("F", above=0, reason="computing takes energy")]
    """ϖ: effective switched capacitance, in farad."""


class City(_Recipe):
    """Clients in an urban micro cell: 3GPP path loss and shadowing, Rician or Rayleigh fading, tiers of processors."""

    kind: Literal["city"]
    """city."""
    count: _Count
    """N: how many clients."""
    cell_radius_m: Annotated[float, Number("m", above=10, at_most=5000, reason="TR 38.901's UMi model holds to 5 km")]
    """Clients are spread evenly over the disc of this radius around the server, in metre."""
    min_distance_m: Annotated[float, Number("m", at_least=10, at_most=5000, reason="TR 38.901's models begin at 10 m")] = 10.0
    """None is nearer to the server than this, in metre."""
    carrier_hz: Annotated[float, Number("Hz", at_least=0.5e9, at_most=100e9, reason="TR 38.901 holds from 0.5 to 100 GHz")]
    """f_c: the carrier frequency, in hertz."""
    server_height_m: _Height = 10.0
    """h_BS: height of the server's antenna, in metre."""
    client_height_m: _Height = 1.5
    """h_UT: height of the clients' antennas, in metre."""
    rician_k_db: Annotated[float, Number("dB", at_least=-30, at_most=60, reason="beyond it fading is Rayleigh, or none")] = 9.0
    """Mean K factor of clients in line of sight, in dB (TR 38.901 Table 7.5-6 has 9 for UMi)."""
    rician_k_spread_db: Annotated[float, Number("dB", at_least=0, at_most=30, reason="it is a standard deviation")] = 5.0
    """Standard deviation of that K factor, in dB (Table 7.5-6 has 5 for UMi)."""
    tiers: tuple[Tier, ...]
    """Kinds of processors."""
    tier_spread: Annotated[float, Number(at_least=0, at_most=3, reason="it is a standard deviation of a logarithm")] = 0.0
    """Standard deviation of ln(clock frequency) inside a tier."""
    bandwidth_hz: _Bandwidth
    """c_n, in hertz."""
    max_power_w: _Power
    """p_n^max, in watt."""
    pue: _Pue = (1.0,)
    """κ_n."""


class Labels(_Recipe):
    """Label histograms: p_n ~ Dirichlet(σ) over the classes for each client, and a target set with even classes."""

    classes: Annotated[int, count("with one class there is nothing to tell apart", at_least=2, at_most=MOST_CLASSES)]
    """How many classes."""
    concentration: Annotated[float, Number(above=0, at_most=1e9, reason="a Dirichlet distribution needs a positive parameter")]
    """σ: small for clients that differ, large for clients that are alike."""
    train_samples: Annotated[int, count("a client needs data")]
    """D̂_n: training samples of each client."""
    target_samples: Annotated[int, count("a target set needs samples")]
    """D̃_n: samples of each client's target set."""


Recipe = Rayleigh | City
RECIPES: dict[str, type[Rayleigh] | type[City]] = {"rayleigh": Rayleigh, "city": City}
for _model in (*RECIPES.values(), Labels):
    messages.register(_model)


def read_recipe(written: Any) -> Recipe:
    """The recipe under a scenario's ``fleet`` key."""
    if not isinstance(written, dict):
        raise InputError(f"fleet: must be a mapping, a recipe of a kind; got {shown(written)}")
    kind = written.get("kind")
    if not isinstance(kind, str) or kind not in RECIPES:
        got = f"; got {shown(kind)}" if kind is not None else ""
        raise InputError(f"fleet.kind: must be one of {', '.join(RECIPES)}{got}{messages.did_you_mean(kind, RECIPES)}")
    try:
        recipe = RECIPES[kind].model_validate(written)
    except ValidationError as error:
        raise messages.first_error(error, written, prefix=("fleet",)) from None
    if isinstance(recipe, City):
        if not recipe.tiers:
            raise InputError("fleet.tiers: must have at least one tier; got none")
        if recipe.min_distance_m >= recipe.cell_radius_m:
            raise InputError(
                f"fleet.min_distance_m: must be below cell_radius_m ({recipe.cell_radius_m:g} m);"
                f" got {recipe.min_distance_m:g}"
            )
    return recipe


def draw_fleet(recipe: Recipe, seed: int) -> list[dict[str, Any]]:
    """The clients that a recipe and a seed stand for, as a scenario file would list them."""
    gains = _city_gains(recipe, seed) if isinstance(recipe, City) else _rayleigh_gains(recipe, seed)
    columns: dict[str, Sequence[float] | Array] = {
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
    rows = zip(*(np.asarray(column, dtype=np.float64).tolist() for column in columns.values()))
    return [dict(zip(columns, row)) for row in rows]


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
        return np.array([getattr(item, key) for item in recipe.tiers], dtype=np.float64)[tier]

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
    if size * labels.classes > 100_000_000:
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
