"""Recipes: a few numbers and a seed instead of a list of clients."""

from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fedgap.config import error_messages
from fedgap.config.checked_fields import Number, count, wrong
from fedgap.config.error_messages import shown
from fedgap.config.scenario_sections import Capacitance, CycleFlops, Gain, MaxFrequency, Section
from fedgap.errors import InputError, did_you_mean

MOST_CLIENTS = 100_000
MOST_CLASSES = 10_000


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

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        one = self.number.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _each(unit: str, reason: str) -> _Cycled:
    return _Cycled(Number(unit, above=0, reason=reason))


_Values = tuple[float, ...]
_Count = Annotated[int, count("a fleet has at least one client", limit=MOST_CLIENTS)]
_Bandwidth = Annotated[_Values, _each("Hz", "a client without bandwidth never finishes its upload")]
_Power = Annotated[_Values, _each("W", "a silent client never finishes its upload")]
_Pue = Annotated[_Values, _each("", "computing takes energy")]
_Radius = Annotated[float, Number("m", above=10, at_most=5000, reason="TR 38.901's UMi model reaches to 5 km")]
_Distance = Annotated[float, Number("m", at_least=10, at_most=5000, reason="TR 38.901's models begin at 10 m")]
_Carrier = Annotated[float, Number("Hz", at_least=5e8, at_most=1e11, reason="TR 38.901 covers 0.5 to 100 GHz")]
_Height = Annotated[float, Number("m", above=1, at_most=25, reason="TR 38.901's micro cells are at street level")]
_KFactor = Annotated[float, Number("dB", at_least=-30, at_most=60, reason="beyond, fading is Rayleigh or none")]
_KSpread = Annotated[float, Number("dB", at_least=0, at_most=30, reason="it is a standard deviation")]
_LogSpread = Annotated[float, Number(at_least=0, at_most=3, reason="it is a logarithm's standard deviation")]
_Share = Annotated[float, Number(above=0, reason="a tier nobody belongs to can be left out")]
_Sigma = Annotated[float, Number(above=0, limit=1e9, reason="a Dirichlet distribution needs a positive parameter")]
_Classes = Annotated[int, count("with one class there is nothing to tell apart", at_least=2, limit=MOST_CLASSES)]


class Rayleigh(Section):
    """The paper's fleet: one average path loss for all, independent Rayleigh fading, listed processors."""

    kind: Literal["rayleigh"]
    """rayleigh."""
    count: _Count
    """N: how many clients."""
    mean_gain: Gain
    """Mean channel power gain: h = mean_gain·|g|², g complex normal."""
    bandwidth_hz: _Bandwidth
    """c_n, in hertz."""
    max_power_w: _Power
    """p_n^max, in watt."""
    max_frequency_hz: Annotated[_Values, _each("Hz", "a stopped clock never finishes a gradient")]
    """f_n^max, in hertz."""
    flops_per_cycle: Annotated[_Values, _each("FLOP", "a processor does some work in a cycle")]
    """q_n."""
    pue: _Pue = (1.0,)
    """κ_n."""
    capacitance: Annotated[_Values, _each("F", "computing takes energy")]
    """ϖ_n, in farad."""


class Tier(Section):
    """A kind of processor and how common it is."""

    share: _Share
    """Its weight among the tiers."""
    max_frequency_hz: MaxFrequency
    """Its median clock frequency, in hertz."""
    flops_per_cycle: CycleFlops
    """q: floating-point operations a cycle."""
    capacitance: Capacitance
    """ϖ: effective switched capacitance, in farad."""


class City(Section):
    """Clients in an urban micro cell: 3GPP path loss and shadowing, Rician or Rayleigh fading, tiers of processors."""

    kind: Literal["city"]
    """city."""
    count: _Count
    """N: how many clients."""
    cell_radius_m: _Radius
    """Clients are spread evenly over the disc of this radius around the server, in metre."""
    min_distance_m: _Distance = 10.0
    """None is nearer to the server than this, in metre."""
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
    """Kinds of processors."""
    tier_spread: _LogSpread = 0.0
    """Standard deviation of ln(clock frequency) inside a tier."""
    bandwidth_hz: _Bandwidth
    """c_n, in hertz."""
    max_power_w: _Power
    """p_n^max, in watt."""
    pue: _Pue = (1.0,)
    """κ_n."""


class Labels(Section):
    """Label histograms: p_n ~ Dirichlet(σ) over the classes for each client, and a target set with even classes."""

    classes: _Classes
    """How many classes."""
    concentration: _Sigma
    """σ: small for clients that differ, large for clients that are alike."""
    train_samples: Annotated[int, count("a client needs data")]
    """D̂_n: training samples of each client."""
    target_samples: Annotated[int, count("a target set needs samples")]
    """D̃_n: samples of each client's target set."""


Recipe = Rayleigh | City
RECIPES: dict[str, type[Rayleigh] | type[City]] = {"rayleigh": Rayleigh, "city": City}
for _model in (*RECIPES.values(), Labels):
    error_messages.register(_model)


def read_recipe(written: Any) -> Recipe:
    """The recipe under a scenario's ``fleet`` key."""
    if not isinstance(written, dict):
        raise InputError(f"fleet: must be a mapping, a recipe of a kind; got {shown(written)}")
    kind = written.get("kind")
    if not isinstance(kind, str) or kind not in RECIPES:
        got = f"; got {shown(kind)}" if kind is not None else ""
        hint = did_you_mean(kind, RECIPES)
        raise InputError(f"fleet.kind: must be one of {', '.join(RECIPES)}{got}{hint}")
    try:
        recipe = RECIPES[kind].model_validate(written)
    except ValidationError as error:
        raise error_messages.first_error(error, written, prefix=("fleet",)) from None
    if isinstance(recipe, City):
        if not recipe.tiers:
            raise InputError("fleet.tiers: must have at least one tier; got none")
        if recipe.min_distance_m >= recipe.cell_radius_m:
            raise InputError(
                f"fleet.min_distance_m: must be below cell_radius_m ({recipe.cell_radius_m:g} m);"
                f" got {recipe.min_distance_m:g}"
            )
    return recipe
