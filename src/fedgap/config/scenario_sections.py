"""The sections of a scenario, key by key. The annotation of a key has its unit, its range and the reason for it."""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedgap.config import mode_defaults
from fedgap.config.checked_fields import (
    Histogram,
    Number,
    NumberOrAuto,
    Shares,
    Text,
    Truth,
    Word,
    clock,
    count,
    wrong,
)
from fedgap.config.document import Section
from fedgap.errors import did_you_mean
from fedgap.theory.built_in_forecasts import FORECASTS
from fedgap.theory.fitted_forecast import FIRST_WEIGHTS, FittedForecast, complete_covariance
from fedgap.theory.forecast import WEIGHTS, Forecast
from fedgap.upload_size import UPLOAD_BITS

Gain = Annotated[float, Number(above=0, reason="without a channel nothing arrives; -110 dB is 1e-11")]
GradientBits = Annotated[float, Number("bit", above=0, reason="a gradient of no bits carries nothing")]
SampleFlops = Annotated[float, Number("FLOP", above=0, reason="a gradient takes some operations")]
BatchSize = Annotated[int, count("a gradient needs at least one sample")]
MaxRatio = Annotated[float, Number(at_least=0, below=1, reason="a ratio of 1 would remove the whole model")]
NoisePsd = Annotated[float, Number("W/Hz", above=0, reason="no receiver is free of noise; -174 dBm/Hz is 3.98e-21")]
Moment = Annotated[float, Number(at_least=0, reason="it is the mean of a square")]
Phi = Annotated[float, Number(at_least=0, reason="the generalization statement bounds a norm")]
Secant = Annotated[float, Number(at_least=0, reason="it is a squared distance divided by a ratio")]
Rounds = Annotated[int, count("training takes at least one round")]
EnergyBudget = Annotated[float, Number("J", above=0, reason="without energy nothing can be computed or sent")]
DelayBudget = Annotated[float, Number("s", above=0, reason="without time no round can end")]
Rate = Annotated[float, Number(above=0, reason="with a learning rate of 0 the model never moves")]
Bandwidth = Annotated[float, Number("Hz", above=0, reason="a client without bandwidth never finishes its upload")]
MaxPower = Annotated[float, Number("W", above=0, reason="a silent client never finishes its upload")]
MaxFrequency = Annotated[float, clock("a stopped clock never finishes a gradient")]
MinPower = Annotated[float, Number("W", at_least=0, reason="a power is not negative")]
MinFrequency = Annotated[float, clock("leave it out if there is no minimum clock")]
IdlePower = Annotated[float, Number("W", at_least=0, reason="a power is not negative")]
Latency = Annotated[float, Number("s", at_least=0, reason="a duration is not negative")]
Battery = Annotated[float, Number("J", above=0, reason="an empty battery runs nothing; leave it out for mains power")]
CycleFlops = Annotated[float, Number("FLOP", above=0, reason="a processor does some work in a cycle")]
Pue = Annotated[float, Number(above=0, reason="computing takes energy")]
Capacitance = Annotated[float, Number("F", above=0, reason="computing takes energy")]
ServerPower = Annotated[float, Number("W", above=0, reason="a silent server cannot broadcast")]
ServerBandwidth = Annotated[float, Number("Hz", above=0, reason="a server without bandwidth cannot broadcast")]
InitialGap = Annotated[float, Number(at_least=0, reason="the loss cannot start below its minimum")]
Smoothness = Annotated[float, Number(at_least=0, reason="a Lipschitz constant is not negative")]
LocalSteps = Annotated[int | Literal["auto"],
                       NumberOrAuto(at_least=1, limit=1e6, whole=True, reason="a client takes at least one step")]
UploadBits = Literal[32, 8, 4, "auto"]
ForecastWeight = Annotated[float, Number(at_least=0, reason="a weight of the forecast is never negative")]
Spread = Annotated[float, Number(at_least=0, below=10, reason="it is a share of the error, such as 0.15")]
Momentum = Annotated[float, Number(at_least=0, below=1, reason="a momentum of 1 never forgets a step")]
ProximalWeight = Annotated[float, Number(at_least=0, reason="a negative weight would drive clients apart")]
ClipNorm = Annotated[float, Number(above=0, reason="a gradient of norm 0 moves nothing")]
ServerRate = Annotated[float, Number(above=0, reason="with a server rate of 0 the model never moves")]
WarmUp = Annotated[float, Number(at_least=0, below=1, reason="it is a share of the rounds")]
MaxRepeat = Annotated[float, Number(at_least=1, reason="with 1 all samples of a client are drawn equally often")]

LOCAL_STEPS = (1, 2, 4, 8, 16, 32, 64)
"""The numbers of local steps among which ``local_steps: auto`` chooses."""
USUAL_LOCAL_STEPS = 8
"""The local steps of ``local_steps: auto`` for objectives that do not depend on them, such as θ."""

SERVER_RATES = {"sgd": 1.0, "momentum": 1.0, "nesterov": 1.0, "adam": 0.01, "yogi": 0.01}
"""Default rate of each server optimiser. Adam and Yogi move each weight by about the rate; the others multiply an
update that contains the clients' rate already."""


class Budget(Section):
    """What all rounds together may spend."""

    energy_j: EnergyBudget
    """E₀: energy of all clients and the server over all rounds, in joule."""
    delay_s: DelayBudget
    """T₀: time of all rounds, in seconds."""


def _server_rate(checked: dict[str, Any]) -> float:
    """Return the default rate of the server's optimiser, from the keys that are checked already."""
    return SERVER_RATES[checked.get("optimiser", "sgd")]


class ServerChoice(Section):
    """The server's optimiser, which turns the clients' mean update into a step of the global model."""

    optimiser: Literal["sgd", "momentum", "nesterov", "adam", "yogi"] = "sgd"
    """sgd (FedSGD, FedAvg), momentum (FedAvgM), nesterov, adam (FedAdam) or yogi (FedYogi)."""
    rate: ServerRate = Field(default_factory=_server_rate)
    """The server's rate; by default 1, and 0.01 for adam and yogi."""
    momentum: Momentum = 0.9
    """β of momentum and nesterov, β₁ of adam and yogi; sgd has none."""


class ClientChoice(Section):
    """How a client takes its local steps."""

    momentum: Momentum = 0.0
    """Momentum of the client's steps; it starts at 0 in each round."""
    proximal: ProximalWeight = 0.0
    """μ of FedProx: how strongly a client is held to the round's starting weights."""
    clip_norm: ClipNorm | None = None
    """The largest norm of a step's gradient; default: no limit."""


class LearnerKeys(Section):
    """How clients and server learn. The defaults are the paper's FedSGD."""

    local_steps: LocalSteps = 1
    """τ: mini-batch steps that a client takes in a round; auto lets the planner choose."""
    upload_bits: UploadBits = 32
    """Bits per uploaded value: 32, or 8 or 4 with stochastic rounding; auto lets the planner choose."""
    server: ServerChoice = ServerChoice()
    """The server's optimiser."""
    client: ClientChoice = ClientChoice()
    """The clients' optimiser."""
    schedule: Literal["constant", "cosine", "warm_up", "warm_up_cosine"] = "constant"
    """How the learning rate changes over the plan's rounds."""
    warm_up: WarmUp = 0.05
    """The share of the rounds in which the rate rises, for warm_up and warm_up_cosine."""
    batches: Literal["as_is", "balanced", "target"] = "as_is"
    """How often a client draws each label: as in its data (as_is), all labels equally often (balanced), or so that the
    selected clients together match the target's labels (target)."""
    max_repeat: MaxRepeat = 10.0
    """With batches: target, how many times as often as its average sample a client may draw a sample."""
    weighting: Literal["equal", "samples"] = "equal"
    """Weights of the clients in the mean update: equal, or their numbers of samples."""

    @property
    def local_steps_choices(self) -> tuple[int, ...]:
        """The numbers of local steps that a plan may have."""
        return LOCAL_STEPS if self.local_steps == "auto" else (self.local_steps,)

    @property
    def upload_bits_choices(self) -> tuple[int, ...]:
        """The numbers of bits per uploaded value among which a plan may choose."""
        return UPLOAD_BITS if self.upload_bits == "auto" else (self.upload_bits,)

    @property
    def usual_local_steps(self) -> int:
        """The local steps; for ``auto``, the value that is used before a plan decides it."""
        return USUAL_LOCAL_STEPS if self.local_steps == "auto" else self.local_steps

    @property
    def usual_upload_bits(self) -> int:
        """The bits per uploaded value; for ``auto``, the value that is used before a plan decides it."""
        return UPLOAD_BITS[0] if self.upload_bits == "auto" else self.upload_bits


class Learning(LearnerKeys):
    """How clients and server learn, and at what rate."""

    rate: Rate
    """η: the clients' learning rate."""
    batch_size: BatchSize
    """Z: samples that a client draws for each step."""


class CostCurvePoints(Section):
    """What a pruned model costs at some pruning ratios, as shares of the full model's cost; linear between them."""

    ratio: Shares
    """Pruning ratios λ, rising from 0 to the largest max_ratio or beyond."""
    bits: Shares
    """Share of the upload's bits that remains at each ratio: convex, falling from 1."""
    flops: Shares
    """Share of the operations that remains at each ratio: convex, falling from 1."""


class Model(Section):
    """What the model costs to send and to compute."""

    gradient_bits: GradientBits
    """H: bits of the unpruned gradient (parameters × 32 for float32)."""
    flops_per_sample: SampleFlops
    """e: floating-point operations for one sample's full gradient."""
    cost_curve: CostCurvePoints | None = None
    """What remains to be sent and computed after pruning; by default the share 1 − λ."""


class Pruning(Section):
    """How much may be pruned."""

    max_ratio: MaxRatio
    """λ^max: the largest fraction of the parameters that a client may remove."""
    dense_first: Truth = False
    """Whether round 0 is not pruned, so that every weight gets a gradient by which it can be ranked."""


class Bound(Section):
    """The quantities in Theorem 1's bound θ, and which variant of its formulas is used."""

    initial_gap: InitialGap
    """L(ω⁰) − L(ω*): the initial loss minus the least possible loss."""
    smoothness: Smoothness
    """L: Lipschitz constant of the gradient."""
    gradient_moment: Moment
    """A²: second moment of a sample's gradient."""
    parameter_moment: Moment
    """B²: second moment of the parameters, ‖ω‖²."""
    pruning_sensitivity: Secant | None = None
    """γ₂·R: the effect of pruning as measured, ‖∇(ω) − ∇(ω pruned)‖²/λ; replaces smoothness² × parameter_moment."""
    aggregation: mode_defaults.Aggregation = "mean"
    """How Φ of a round follows from its clients: the sum of their φ (as printed), their mean, or mixture (φ of their
    summed histograms)."""
    constants: mode_defaults.Constants = "printed"
    """β and γ₁ of Theorem 1 as printed, or corrected by the factor 1/η² that is missing between (53) and (55)."""
    statement: mode_defaults.Statement = "size_normalised"
    """How φ is computed from label histograms: with the sets' sizes (as_printed) or their shares (size_normalised)."""
    sensitivity: mode_defaults.Sensitivity = "theorem"
    """Where γ₂·R comes from: smoothness² × parameter_moment (theorem), or pruning_sensitivity (secant)."""

    @property
    def pruning_weight(self) -> float:
        """γ₂·R: L²B² by the theorem, or the measured secant."""
        if self.sensitivity == "secant" and self.pruning_sensitivity is not None:
            return self.pruning_sensitivity
        return self.smoothness**2 * self.parameter_moment


class Server(Section):
    """The server's radio."""

    power_w: ServerPower
    """p̂: broadcast power, in watt."""
    bandwidth_hz: ServerBandwidth
    """ĉ: broadcast bandwidth, in hertz; default: the whole band, which is the sum of the clients' bandwidths."""


class Client(Section):
    """One client: its radio, its processor, its data."""

    name: Word | None = None
    """The client's name; by default its number."""
    phi: Phi | None = None
    """φ_n: the generalization statement. It may be left out if label_counts and target_counts are given."""
    label_counts: Histogram | None = None
    """Training samples of each class."""
    target_counts: Histogram | None = None
    """Samples of each class in the client's own target set; by default the scenario's."""
    uplink_gain: Gain
    """h_n: channel power gain from the client to the server."""
    downlink_gain: Gain
    """ĥ_n: channel power gain from the server to the client; default: the uplink's."""
    bandwidth_hz: Bandwidth
    """c_n: uplink bandwidth, in hertz."""
    max_power_w: MaxPower
    """p_n^max: the largest transmit power, in watt."""
    max_frequency_hz: MaxFrequency
    """f_n^max: the highest clock frequency, in hertz."""
    flops_per_cycle: CycleFlops
    """q_n: floating-point operations per clock cycle."""
    pue: Pue = 1.0
    """κ_n: power usage effectiveness, the device's energy divided by the processor's."""
    capacitance: Capacitance
    """ϖ_n: effective switched capacitance, in farad."""
    min_power_w: MinPower | None = None
    """p_n^min: the smallest transmit power, in watt; default: no minimum."""
    min_frequency_hz: MinFrequency | None = None
    """f_n^min: the lowest clock frequency, in hertz; default: no minimum."""
    idle_power_w: IdlePower | None = None
    """P_n: power that the device draws during a whole round in which it takes part, besides computing and sending, in
    watt."""
    battery_j: Battery | None = None
    """B_n: energy that the client has for all rounds together, in joule; default: no limit besides budget.energy_j."""
    latency_s: Latency | None = None
    """ℓ_n: seconds of every round besides download, computing and upload, such as messages, polls and the server's
    work; default 0."""
    gradient_bits: GradientBits | None = None
    """H_n: bits of this client's gradient; by default the model's."""
    flops_per_sample: SampleFlops | None = None
    """e_n: operations of this client for one sample's gradient; by default the model's."""
    batch_size: BatchSize | None = None
    """Z_n: samples per step, from which this client's joules and seconds are computed; by default learning.batch_size.
    θ is always computed with learning.batch_size."""
    max_ratio: MaxRatio | None = None
    """λ_n^max: the largest fraction that this client may remove; by default pruning.max_ratio."""
    noise_psd_w_hz: NoisePsd | None = None
    """U_{0,n}: noise power spectral density at the client's receiver, in W/Hz; by default the scenario's."""


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] <= value[1]:
        raise wrong(f"must be [least, largest], with the smaller value first; got [{value[0]:g}, {value[1]:g}]")
    return value


def _square(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    size = len(WEIGHTS)
    if rows and [len(row) for row in rows] not in ([size] * size, [FIRST_WEIGHTS] * FIRST_WEIGHTS):
        raise wrong(f"must have {size} rows of {size} numbers, one row and column per weight of the forecast (or "
                    f"{FIRST_WEIGHTS}, for all but the last {size - FIRST_WEIGHTS} weights)")
    return rows


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
Covariance = Annotated[tuple[tuple[float, ...], ...], AfterValidator(_square)]


class ForecastRanges(Section):
    """The least and the largest value of each feature in the plans of the runs to which the forecast was fitted."""

    rounds: Range | None = None
    """R: the number of rounds."""
    local_steps: Range | None = None
    """τ: local steps per round."""
    few_clients: Range | None = None
    """Σ s_n·w_n²: one divided by the number of clients that train, if these are average and train equally often."""
    pruning: Range | None = None
    """The mean pruning ratio."""
    divergence: Range | None = None
    """KL(m): the divergence of the labels drawn in all rounds together from the target's, in nats."""
    upload_bits: Range | None = None
    """Bits of an uploaded value."""
    few_at_once: Range | None = None
    """Mean of 1/k, with k clients in a round."""
    divergence_at_once: Range | None = None
    """KL(A): the divergence of the labels drawn in a round from the target's, in nats; its mean over the rounds."""


def _built_in(value: Any) -> str:
    if value not in FORECASTS:
        raise wrong(f"must be one of {', '.join(FORECASTS)}; got {value!r:.60}{did_you_mean(str(value), FORECASTS)}")
    return str(value)


class ForecastSection(Section):
    """The weights of the forecast of the test error, fitted to training runs, the pilot.

    ``fedgap.theory.forecast`` has the formula.
    """

    like: Annotated[str, BeforeValidator(_built_in)] | None = None
    """Name of a built-in forecast, from which all keys that are left out are taken."""
    start: ForecastWeight | None = None
    """C₀: the removable part of the error after one round of one step, if rounds counted fully from the first."""
    rounds_power: ForecastWeight | None = None
    """a: the power with which more training reduces the error."""
    steps_power: ForecastWeight | None = None
    """b: τ local steps per round count as much as τ^b times as many rounds."""
    slowed_by_pruning: ForecastWeight | None = None
    """d: how much pruning slows learning."""
    slowed_by_divergence: ForecastWeight | None = None
    """c: how much a label distribution other than the target's slows learning."""
    few_clients: ForecastWeight | None = None
    """B: weight of the lasting error of few clients."""
    divergence: ForecastWeight | None = None
    """C: weight of the lasting error of a label distribution other than the target's."""
    coarse_uploads: ForecastWeight | None = None
    """e: how much rounding of the uploaded values slows learning."""
    floor: ForecastWeight | None = None
    """The error that always remains."""
    slow_start: ForecastWeight | None = None
    """r₀: with fewer rounds than about this number, each round has less effect."""
    slowed_by_few_clients: ForecastWeight | None = None
    """g: how much few clients in a round slow learning."""
    drift_power: ForecastWeight | None = None
    """q: with τ local steps, unlike labels and few clients in a round slow learning τ^q times as much."""
    origin: Text | None = None
    """Where the weights come from, in words."""
    ranges: ForecastRanges | None = None
    """The least and largest value of each feature in the pilot's plans; plans outside these ranges get a warning."""
    spread: Spread | None = None
    """Relative standard deviation of the error around its forecast, from which a plan's interval is computed."""
    learning_spread: Spread | None = None
    """Additional spread of runs that more training would improve."""
    seed_spread: Spread | None = None
    """The part of spread that is between seeds of one plan."""
    runs: Annotated[int, Number(at_least=0, whole=True, reason="it counts trained runs")] | None = None
    """How many runs the weights were fitted to."""
    covariance: Covariance | None = None
    """Covariance of the logarithms of the weights, in the order above: of all twelve, or of the first ten."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [name for name in _MUST_BE_GIVEN if self.like is None and getattr(self, name) is None]
        if missing:
            raise wrong(f"must have {missing[0]}, or the key like with the name of a built-in forecast")
        weights = self.fitted().forecast
        if not (weights.start or weights.few_clients or weights.floor):
            raise wrong("would forecast no error at all; one of start, few_clients and floor must be above 0")
        return self

    def fitted(self) -> FittedForecast:
        """Return the forecast that these keys describe."""
        given = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        weights = {name: given.pop(name) for name in WEIGHTS if name in given}
        like = given.pop("like", None)
        if self.ranges is not None:
            given["ranges"] = self.ranges.model_dump(exclude_none=True)
        if self.covariance is not None:
            given["covariance"] = complete_covariance(self.covariance)
        if like is not None:
            base = FORECASTS[like]
            return replace(base, **given, forecast=replace(base.forecast, **weights))
        given.setdefault("origin", "the scenario's weights")
        return FittedForecast(Forecast(**{"coarse_uploads": 0.0, "floor": 0.0, **weights}), **given)


_MUST_BE_GIVEN = ("start", "rounds_power", "steps_power", "slowed_by_pruning", "slowed_by_divergence", "few_clients",
                  "divergence")
"""Weights without a default, unless the key ``like`` is given."""
