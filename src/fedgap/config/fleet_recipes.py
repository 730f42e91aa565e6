"""Recipes: draw clients and label histograms from a seed, instead of listing them in a scenario.

A recipe for a fleet is a plain function. Its arguments are the scenario's seed and the keys under ``fleet`` except
``kind``. It returns the clients either as columns (a mapping from each key to an array, or to one value for all
clients) or as a list with one mapping per client. Functions of other packages, which :data:`fedgap.registry.FLEETS`
finds, are called like the two in this module.

All draws come from named random streams of the seed, one row per client. Changing one ingredient, such as the labels,
therefore does not change others, such as the channels, and a larger fleet begins with the clients of a smaller one.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fedgap.arrays import Floats
from fedgap.config import error_messages
from fedgap.config.checked_fields import Checked, Concentration, Number, count, wrong
from fedgap.config.document import Section, plain
from fedgap.config.error_messages import shown
from fedgap.config.scenario_sections import (
    Bandwidth,
    Capacitance,
    CycleFlops,
    Gain,
    MaxFrequency,
    MaxPower,
    Pue,
)
from fedgap.errors import InputError
from fedgap.registry import FLEETS, call_extension
from fedgap.streams import stream
from fedgap.system import propagation

Counts = npt.NDArray[np.int64]

MOST_CLIENTS = 100_000
MOST_CLASSES = 10_000
MOST_COUNTS = 20_000_000
"""Largest number of clients times classes, so that the histograms fit into memory."""


class _Cycled(Checked):
    """Annotation of a number for all clients, or a list that is repeated until every client has a value."""

    def __init__(self, annotation: Any) -> None:
        self.number: Number = get_args(annotation)[1]

    def check(self, value: Any) -> tuple[float, ...]:
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise wrong("must be a number, or a list of at least one number; got an empty list")
        return tuple(self.number.check(item) for item in values)

    def json_schema(self) -> dict[str, Any]:
        item = self.number.json_schema()
        return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


_Values = tuple[float, ...]
_Count = Annotated[int, count("a fleet has at least one client", limit=MOST_CLIENTS)]
_Bandwidths = Annotated[_Values, _Cycled(Bandwidth)]
_Powers = Annotated[_Values, _Cycled(MaxPower)]
_Pues = Annotated[_Values, _Cycled(Pue)]
_Radius = Annotated[float, Number("m", above=10, at_most=5000, reason="TR 38.901's UMi model reaches to 5 km")]
_Distance = Annotated[float, Number("m", at_least=10, at_most=5000, reason="TR 38.901's models begin at 10 m")]
_Carrier = Annotated[float, Number("Hz", at_least=5e8, at_most=1e11, reason="TR 38.901 covers 0.5 to 100 GHz")]
_Height = Annotated[float, Number("m", above=1, at_most=25, reason="TR 38.901's micro cells are at street level")]
_KFactor = Annotated[float, Number("dB", at_least=-30, at_most=60, reason="TR 38.901 has 9 dB in line of sight")]
_KSpread = Annotated[float, Number("dB", at_least=0, at_most=30, reason="it is a standard deviation")]
_LogSpread = Annotated[float, Number(at_least=0, at_most=3, reason="it is a logarithm's standard deviation")]
_Share = Annotated[float, Number(above=0, reason="leave out a tier without clients")]
_Classes = Annotated[int, count("with one class there is nothing to learn", at_least=2, limit=MOST_CLASSES)]


@error_messages.register
class Rayleigh(Section):
    """The paper's fleet: the same path loss for all clients, independent Rayleigh fading, and processors as listed.

    Keys for which a list may be given repeat it until every client has a value.
    """

    count: _Count
    """N: the number of clients."""
    mean_gain: Gain
    """Mean channel power gain: h = mean_gain·|g|², g complex normal."""
    bandwidth_hz: _Bandwidths
    """c_n: uplink bandwidth, in hertz; one number, or a list."""
    max_power_w: _Powers
    """p_n^max: the largest transmit power, in watt; one number, or a list."""
    max_frequency_hz: Annotated[_Values, _Cycled(MaxFrequency)]
    """f_n^max: the highest clock frequency, in hertz; one number, or a list."""
    flops_per_cycle: Annotated[_Values, _Cycled(CycleFlops)]
    """q_n: floating-point operations per clock cycle; one number, or a list."""
    pue: _Pues = (1.0,)
    """κ_n: power usage effectiveness; one number, or a list."""
    capacitance: Annotated[_Values, _Cycled(Capacitance)]
    """ϖ_n: effective switched capacitance, in farad; one number, or a list."""


class Tier(Section):
    """A class of processors and how common it is."""

    share: _Share
    """How common it is: the shares of all tiers are scaled so that they sum to one."""
    max_frequency_hz: MaxFrequency
    """Median of the highest clock frequencies in the tier, in hertz."""
    flops_per_cycle: CycleFlops
    """q: floating-point operations per cycle."""
    capacitance: Capacitance
    """ϖ: effective switched capacitance, in farad."""


@error_messages.register
class City(Section):
    """Clients in an urban micro cell: 3GPP path loss and shadowing, Rician or Rayleigh fading, tiers of processors."""

    count: _Count
    """N: the number of clients."""
    cell_radius_m: _Radius
    """Clients are spread evenly over the disc of this radius around the server, in metre."""
    min_distance_m: _Distance = 10.0
    """No client is nearer to the server than this, in metre."""
    carrier_hz: _Carrier
    """f_c: the carrier frequency, in hertz."""
    server_height_m: _Height = 10.0
    """h_BS: height of the server's antenna, in metre."""
    client_height_m: _Height = 1.5
    """h_UT: height of the clients' antennas, in metre."""
    rician_k_db: _KFactor = 9.0
    """Mean K factor of clients in line of sight, in dB (TR 38.901 Table 7.5-6 has 9 for UMi)."""
    rician_k_spread_db: _KSpread = 5.0
    """Standard deviation of that K factor, in dB (Table 7.5-6 has 5 for UMi)."""
    tiers: tuple[Tier, ...]
    """Classes of processors; each client is given one at random."""
    tier_spread: _LogSpread = 0.0
    """Standard deviation of ln(clock frequency) inside a tier."""
    bandwidth_hz: _Bandwidths
    """c_n: uplink bandwidth, in hertz; one number, or a list that is repeated."""
    max_power_w: _Powers
    """p_n^max: the largest transmit power, in watt; one number, or a list that is repeated."""
    pue: _Pues = (1.0,)
    """κ_n: power usage effectiveness; one number, or a list that is repeated."""


@error_messages.register
class Labels(Section):
    """Random label histograms: each client's label proportions are drawn from Dirichlet(σ); the target's are equal."""

    classes: _Classes
    """The number of classes."""
    concentration: Concentration
    """σ: small for clients that differ, large for clients that are alike."""
    train_samples: Annotated[int, count("a client needs data")]
    """D̂_n: training samples of each client."""
    target_samples: Annotated[int, count("a target set needs samples")]
    """D̃_n: samples of each client's target set."""


RECIPES: dict[str, type[Section]] = {"rayleigh": Rayleigh, "city": City}
"""The keys of each recipe that comes with fedgap, by ``fleet.kind``."""


def rayleigh(seed: int, **arguments: Any) -> dict[str, Any]:
    """Draw a fleet by the recipe :class:`Rayleigh`, with gains h_n = mean_gain·|g_n|², and return its columns."""
    recipe = Rayleigh.model_validate(arguments)
    gain = recipe.mean_gain * propagation.rayleigh_power(stream(seed, "fading"), recipe.count)
    keys = ("bandwidth_hz", "max_power_w", "max_frequency_hz", "flops_per_cycle", "capacitance", "pue")
    return {"uplink_gain": gain, "downlink_gain": gain} | _cycled(recipe, recipe.count, keys)


def city(seed: int, **arguments: Any) -> dict[str, Any]:
    """Draw a fleet by the recipe :class:`City`, and return its columns.

    The gains are h_n = 10^(−(PL + X)/10)·|g|² with path loss PL, shadowing X and fading g.
    """
    recipe = City.model_validate(arguments)
    if not recipe.tiers:
        raise InputError("fleet.tiers: must have at least one tier; got none")
    near, far = recipe.min_distance_m, recipe.cell_radius_m
    if near >= far:
        raise InputError(f"fleet.min_distance_m: must be below cell_radius_m ({far:g} m); got {near:g}")
    place = stream(seed, "placement").random((recipe.count, 2))
    normal = stream(seed, "placement", 1).standard_normal((recipe.count, 2))
    distance = np.sqrt(near**2 + (far**2 - near**2) * place[:, 0])
    in_sight = place[:, 1] < propagation.line_of_sight_probability(distance)
    path_gain = propagation.path_gain(
        distance, in_sight, normal[:, 0], recipe.carrier_hz, recipe.server_height_m, recipe.client_height_m
    )
    k_db = recipe.rician_k_db + recipe.rician_k_spread_db * normal[:, 1]
    fading = propagation.rician_power(stream(seed, "fading"), np.where(in_sight, 10.0 ** (k_db / 10.0), 0.0))
    gain = path_gain * fading
    columns = {"uplink_gain": gain, "downlink_gain": gain}
    columns |= _cycled(recipe, recipe.count, ("bandwidth_hz", "max_power_w"))
    return columns | _city_processors(recipe, seed) | _cycled(recipe, recipe.count, ("pue",))


def _cycled(recipe: Section, size: int, keys: tuple[str, ...]) -> dict[str, Floats]:
    return {key: np.resize(np.asarray(getattr(recipe, key), dtype=np.float64), size) for key in keys}


def _city_processors(recipe: City, seed: int) -> dict[str, Floats]:
    """Draw a tier for each client. Its clock is the tier's, times a log-normal factor with median 1."""
    draws = stream(seed, "processors").random(recipe.count)
    edges = np.cumsum([tier.share for tier in recipe.tiers])
    chosen = np.searchsorted(edges / edges[-1], draws, side="right").clip(max=len(recipe.tiers) - 1)
    spread = stream(seed, "processors", 1).standard_normal(recipe.count)
    keys = ("max_frequency_hz", "flops_per_cycle", "capacitance")
    columns = {key: np.array([getattr(tier, key) for tier in recipe.tiers], dtype=np.float64)[chosen] for key in keys}
    columns["max_frequency_hz"] *= np.exp(recipe.tier_spread * spread)
    return columns


def draw_fleet(written: Any, seed: int) -> list[dict[str, Any]]:
    """Draw the clients of a scenario's ``fleet`` from its seed, as a scenario file would list them."""
    if not isinstance(written, dict):
        raise InputError(f"fleet: must be a mapping with a kind; got {shown(written)}")
    kind = written.get("kind")
    if not isinstance(kind, str):
        got = f"; got {shown(kind)}" if kind is not None else ""
        raise InputError(f"fleet.kind: must be one of {', '.join(FLEETS.names())}, or package.module:NAME{got}")
    recipe = FLEETS.load(kind, "fleet.kind")
    arguments = {key: value for key, value in written.items() if key != "kind"}
    _check_arguments(recipe, kind, arguments)
    try:
        return _listed(call_extension("fleet", kind, recipe, seed, **arguments), kind)
    except InputError as error:
        if isinstance(error.__cause__, ValidationError):
            raise error_messages.first_error(error.__cause__, arguments, prefix=("fleet",)) from None
        raise


def _check_arguments(recipe: Callable[..., Any], kind: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error if the function does not accept a key or if a key that it needs is missing."""
    if not callable(recipe):
        raise InputError(f"fleet.kind: {kind} must be a function; it is of type {type(recipe).__name__}")
    _, *parameters = inspect.signature(recipe).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # the function checks its arguments itself
    known = {parameter.name: parameter for parameter in parameters}
    for key in arguments:
        if key not in known:
            raise InputError(error_messages.unknown_key(("fleet", key), known))
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise InputError(f"fleet.{name}: missing (an argument of {kind})")


def _listed(drawn: Any, kind: str) -> list[dict[str, Any]]:
    """Return what a recipe has drawn as one mapping per client."""
    rows = plain(drawn)
    if isinstance(rows, dict):
        sizes = {key: len(column) for key, column in rows.items() if isinstance(column, list)}
        if len(set(sizes.values())) != 1:
            lengths = ", ".join(f"{key} {size}" for key, size in sizes.items()) or "none"
            raise InputError(f"fleet: {kind} must return columns of equal length, one value per client; got {lengths}")
        (size,) = set(sizes.values())
        columns = [rows[key] if key in sizes else [rows[key]] * size for key in rows]
        rows = [dict(zip(rows, values)) for values in zip(*columns)]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"fleet: {kind} must return a list with one mapping per client, or a mapping of columns; "
                         f"got {shown(drawn) if isinstance(drawn, (list, tuple)) else type(drawn).__name__}")
    if not 1 <= len(rows) <= MOST_CLIENTS:
        raise InputError(f"fleet: {kind} must return 1 to {MOST_CLIENTS} clients; got {len(rows)}")
    return [{key: _rounded(value) for key, value in row.items()} for row in rows]


def _rounded(value: Any) -> Any:
    """Round a float to nine digits. CPUs differ in the last bits, but a seed must give the same fleet everywhere."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def draw_labels(labels: Labels, seed: int, clients: list[Any]) -> list[int]:
    """Give a random histogram to each client that has neither ``phi`` nor ``label_counts``; return the target's
    histogram.

    Each client's label proportions p_n are drawn from Dirichlet(σ), and its D̂_n training samples from p_n. Its target
    set is drawn from equally likely classes (the paper's "sampled testing distribution"). The scenario's target, which
    is returned, has as many samples as a client's. They are spread evenly over the classes, without sampling noise, so
    that φ of several clients' summed labels is comparable with φ of one client.
    """
    size = len(clients)
    if size * labels.classes > MOST_COUNTS:
        raise InputError(f"labels.classes: clients times classes must be at most {MOST_COUNTS:,}; got {size} × "
                         f"{labels.classes}")
    train, target = draw_histograms(labels, seed, size)
    for n, client in enumerate(clients):
        if isinstance(client, dict) and "phi" not in client and "label_counts" not in client:
            client["label_counts"] = train[n].tolist()
            client.setdefault("target_counts", target[n].tolist())
    share, rest = divmod(labels.target_samples, labels.classes)
    return [share + (label < rest) for label in range(labels.classes)]


def draw_histograms(labels: Labels, seed: int, size: int) -> tuple[Counts, Counts]:
    """Draw the training and the target histograms of ``size`` clients, each of shape (size, classes)."""
    proportions = stream(seed, "partition").dirichlet(np.full(labels.classes, labels.concentration), size)
    # A tiny σ can underflow every gamma draw of a row. Such a client gets one class, which is the limit of σ → 0.
    broken = ~np.isfinite(proportions).all(axis=1)
    proportions[broken] = np.eye(labels.classes)[np.flatnonzero(broken) % labels.classes]
    train = stream(seed, "partition", 1).multinomial(labels.train_samples, proportions)
    even = np.full(labels.classes, 1.0 / labels.classes)
    target = stream(seed, "target").multinomial(labels.target_samples, even, size)
    return train.astype(np.int64), target.astype(np.int64)
