"""Measure the bound's constants and fit the forecast on an experiment's model, data and partition, and write them into
a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedgap.analysis.bound_report import theorem_weight
from fedgap.config import Experiment, Scenario
from fedgap.config.yaml_edit import comment_above
from fedgap.config.yaml_files import write_checked, write_document
from fedgap.learning.data import Dataset
from fedgap.learning.engine import check_device
from fedgap.learning.models import build
from fedgap.learning.partition import Partition
from fedgap.learning.pilot import Pilot, pilot
from fedgap.learning.sizes import flops_per_sample, gradient_bits
from fedgap.learning.structure import structure_of
from fedgap.report.number_format import four_digits, number
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.forecast_pilot import RUNS, SHARE, ForecastPilot, run_pilot
from fedgap.running.prepare import divide
from fedgap.running.rate_search import RateSearch, find_rate
from fedgap.streams import stream_seed
from fedgap.theory.forecast import WEIGHTS

if TYPE_CHECKING:
    from rich.console import RenderableType

RATIOS = (0.1, 0.3, 0.5)
"""Pruning ratios at which the sensitivity is shown, because it is not constant."""
MOST_CLIENTS = 10
"""A pilot's batch is as large as that of at most this many clients; the constants depend on data and model, not on the
number of clients."""


@dataclass(frozen=True)
class Quantity:
    """A measured constant: its values at all points of all pilots, and the value that the scenario gets (``taken``)."""

    key: str
    """The scenario's key, without ``bound.``."""
    meaning: str
    taken: float
    rule: str
    """Which value is taken: ``maximum`` or ``median``."""
    values: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """The q-quantile of the values."""
        return float(np.quantile(self.values, q))

    def spread(self) -> list[str]:
        """The smallest, the median and the largest value, as texts."""
        return [number(value) for value in (min(self.values), self.quantile(0.5), max(self.values))]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Printable):
    """The result of :func:`calibrate`: the measured constants, and the scenario that contains them."""

    scenario: Scenario
    quantities: tuple[Quantity, ...]
    sensitivities: dict[float, Quantity]
    """‖∇L(ω) − ∇L(ω̃)‖²/λ, by pruning ratio λ."""
    moment_ratio: Quantity
    """E‖G‖²·Z·k/A². The proof assumes that it is at most 1, which holds only for gradients with zero mean."""
    phi: npt.NDArray[np.float64]
    """φ_n of the actual partition, shape (N,)."""
    sizes: dict[str, float]
    """``gradient_bits`` and ``flops_per_sample`` of the model itself, whatever the scenario says."""
    pilots: int
    steps: int
    rate: RateSearch | None = None
    """The range test for the learning rate, if there was one."""
    forecast: ForecastPilot | None = None
    """The pilot of the forecast, if there was one."""

    def parts(self) -> list[RenderableType]:
        """The parts of the printed report: tables of the constants with their spreads, and remarks."""
        table = Sheet(
            f"Measured along {self.pilots} pilots of {self.steps} steps", "key", "taken", "as the", "least", "median",
            "most", "what it is", left=("as the", "what it is"),
        )
        for q in self.quantities:
            table.add_row(f"bound.{q.key}", number(q.taken), q.rule, *q.spread(), q.meaning)
        table.add_section()
        for ratio, q in self.sensitivities.items():
            table.add_row("", "", "", *q.spread(), f"secant at λ = {ratio:g}", style="dim")
        phi = (self.phi.min(), np.median(self.phi), self.phi.max())
        table.add_row("", "", "", *(number(float(value)) for value in phi), "φ of the clients", style="dim")
        return [table, self._remarks(), *([self._rate_table(self.rate)] if self.rate else []),
                *(self._forecast_parts(self.forecast) if self.forecast else [])]

    def _forecast_parts(self, pilot: ForecastPilot) -> list[RenderableType]:
        """Table of the forecast's weights with the uncertainty of each, and the cost of the pilot."""
        fitted = pilot.fitted
        table = Sheet("The forecast of the test error, fitted to the pilot", "key", "weight", "uncertain by",
                      caption=f"{pilot.cost}; judged on {pilot.validation_samples:,} validation samples")
        for number_of_weight, name in enumerate(WEIGHTS):
            factor = np.exp(np.sqrt(fitted.covariance[number_of_weight][number_of_weight]))
            table.add_row(f"forecast.{name}", number(getattr(fitted.forecast, name)), f"× {factor:.2f}")
        assert fitted.spread is not None
        least, most = min(pilot.accuracies), max(pilot.accuracies)
        said = (f"One run's error scatters by {fitted.spread:.0%} around its forecast (standard deviation). The pilot "
                f"has seen accuracies of {least:.1%} to {most:.1%}.")
        if pilot.interrupted:
            said += " The pilot was interrupted; the forecast is fitted to the runs that were finished."
        return [table, said]

    def _rate_table(self, search: RateSearch) -> Sheet:
        """A table with the validation loss at each rate, and which rate is taken."""
        table = Sheet(
            f"Range test of the learning rate: {search.rounds} rounds each", "learning.rate", "validation loss", "",
            left=("",), caption=f"on {search.samples:,} samples held out of the training data",
        )
        for rate, loss in zip(search.rates, search.losses, strict=True):
            text = number(loss) if np.isfinite(loss) else "diverged"
            table.add_row(f"{rate:g}", text, "taken" if rate == search.best else "")
        return table

    def _remarks(self) -> str:
        model, measured, ratio = self.scenario.model, self.sizes, self.moment_ratio
        text = (
            f"The theorem's own γ₂·R = L²·B² is {theorem_weight(self.scenario.bound):.3g}; the secant is an "
            f"estimate, not a bound, and not constant in λ. E‖G‖²·Z·k/A² is {ratio.quantile(0.5):.3g} in the median "
            f"and {ratio.taken:.3g} at most, where the proof takes it to be at most 1."
        )
        if (model.gradient_bits, model.flops_per_sample) != (measured["gradient_bits"], measured["flops_per_sample"]):
            text += (
                f" The scenario keeps gradient_bits {model.gradient_bits:.7g} and flops_per_sample "
                f"{model.flops_per_sample:.3g}; the model itself has {measured['gradient_bits']:.7g} and "
                f"{measured['flops_per_sample']:.3g} (--sizes takes those)."
            )
        return text

    def comments(self) -> list[str]:
        """The spread of every constant, one line each, as comments for the scenario file."""
        head = f"Measured by fedgap calibrate: {self.pilots} pilots of {self.steps} steps each."
        lines = [
            f"{q.key}: {q.taken:.4g} is the {q.rule} of {min(q.values):.4g} to {max(q.values):.4g} ({q.meaning})"
            for q in self.quantities
        ]
        secants = ", ".join(f"{q.quantile(0.5):.3g} at {ratio:g}" for ratio, q in self.sensitivities.items())
        if self.rate is not None:
            lines.append(f"learning.rate: {self.rate.best:g} has the least validation loss of {self.rate.rates[0]:g} "
                         f"to {self.rate.rates[-1]:g} after {self.rate.rounds} rounds")
        return [
            head,
            *lines,
            f"The sensitivity is an estimate, not a bound, and not constant in the pruning ratio: medians {secants}.",
        ]

    def save(self, path: Path) -> None:
        """Write the scenario. A YAML file keeps the comments of its source and gets the spreads as comments above
        ``bound``."""
        if path.suffix.lower() == ".json":
            write_document({"format": 1} | self.scenario.document(), path)
        else:
            write_checked(path, comment_above(self.scenario.document_text(), "bound", self.comments()))


def calibrate(
    experiment: Experiment,
    *,
    pilots: int = 3,
    steps: int = 100,
    points: int = 6,
    ratio: float = 0.3,
    sizes: bool = False,
    rate: bool | None = None,
    forecast: bool | None = None,
    pilot_share: float = SHARE,
    stand_in: str | None = None,
    divided: tuple[Dataset, Partition, Scenario] | None = None,
    done: Callable[[], None] | None = None,
) -> Calibration:
    """Measure φ, A², B², L, L(ω⁰) − L(ω*) and the secant of γ₂·R for an experiment, and fit the forecast of its error.

    >>> small = ["model.name=mlp", "data.train_samples=300", "engine.threads=1"]
    >>> found = fedgap.calibrate(fedgap.Experiment.load("embedded", small), pilots=1, steps=10, points=2)
    >>> found.save(Path("scenario.yaml"))
    >>> fedgap.Scenario.load("scenario.yaml").size
    10

    :param pilots: number of short trainings; the first starts from the weights that training starts from, the others
        from other weights; :param steps: of each pilot;
    :param points: number of points at which each pilot measures; :param ratio: λ at which the secant is measured.
    :param sizes: whether ``gradient_bits`` and ``flops_per_sample`` are taken from the model as well.
    :param rate: whether a range test on validation samples chooses ``learning.rate``; by default in the mode
        ``practical``.
    :param forecast: whether a pilot of short runs fits the forecast; by default in the mode ``practical``;
    :param pilot_share: training samples of that pilot, as a multiple of those of one run of everybody for all rounds;
    :param stand_in: another data set for that pilot, if the clients' data cannot be used.
    :param divided: the result of ``divide`` for this experiment, if it is known already.
    :param done: called after each pilot, and after each run of the forecast's pilot.
    """
    dataset, parts, planned = divided or divide(experiment)
    chosen = torch.from_numpy(np.concatenate(parts.train))
    inputs, labels = dataset.train_x[chosen], dataset.train_y[chosen]
    engine = experiment.engine
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    device = check_device(engine.device)
    ratios = tuple(sorted({*RATIOS, ratio}))
    measured: list[Pilot] = []
    for n in range(pilots):
        module = build(
            experiment.model.name, input_shape=dataset.shape, classes=dataset.classes,
            seed=stream_seed(experiment.seed, "pilot", n, 0) if n else stream_seed(experiment.seed, "model"),
            initialisation=experiment.model.initialisation, **experiment.model.arguments,
        ).to(device)
        model_sizes: dict[str, float] = {
            "gradient_bits": gradient_bits(module), "flops_per_sample": flops_per_sample(module, dataset.shape)
        }
        measured.append(
            pilot(
                module, inputs, labels, rate=planned.learning.rate, batch_size=planned.learning.batch_size,
                clients=min(experiment.size, MOST_CLIENTS), seed=stream_seed(experiment.seed, "pilot", n, 1),
                steps=steps, points=points, ratios=ratios,
                structure=structure_of(experiment.pruning.structure, module, dataset.shape),
            )
        )
        if done is not None:
            done()
    quantities = _quantities(measured, ratio)
    constants: dict[str, dict[str, float]] = {"bound": {q.key: four_digits(q.taken) for q in quantities}}
    if sizes:
        constants["model"] = model_sizes
    practical = experiment.readings["mode"] == "practical"
    search = find_rate(experiment) if (practical if rate is None else rate) else None
    if search is not None:
        constants["learning"] = {"rate": search.best}
    pilot_of_forecast = None
    if practical if forecast is None else forecast:
        taken = experiment if search is None else experiment.with_overrides([f"learning.rate={search.best}"])
        pilot_of_forecast = run_pilot(taken, share=pilot_share, stand_in=stand_in, done=done)
    counts = (parts.label_counts, dataset.label_counts()[1], parts.target_counts)
    ratio_seen = tuple(value for run in measured for value in run.moment_ratio)
    return Calibration(
        scenario=experiment.measured_scenario(
            counts, constants, None if pilot_of_forecast is None else pilot_of_forecast.fitted.to_dict()),
        quantities=quantities,
        sensitivities={r: _sensitivity(measured, r) for r in ratios},
        moment_ratio=Quantity("", "E‖G‖²·Z·k/A²", max(ratio_seen), "maximum", ratio_seen),
        phi=planned.phi(),
        sizes=model_sizes,
        pilots=pilots,
        steps=steps,
        rate=search,
        forecast=pilot_of_forecast,
    )


def pilot_runs(pilots: int, *, forecast: bool) -> int:
    """How many trainings :func:`calibrate` does, which is how often it calls ``done``."""
    return pilots + (RUNS if forecast else 0)


def _quantities(measured: list[Pilot], ratio: float) -> tuple[Quantity, ...]:
    """The bound's constants: maxima, because they must be upper bounds; for the secant, an estimate, the median."""

    def maximum(key: str, meaning: str, values: list[float]) -> Quantity:
        return Quantity(key, meaning, max(values), "maximum", tuple(values))

    return (
        maximum("initial_gap", "L(ω⁰) − L(ω*) with L(ω*) ≥ 0", [run.initial_gap for run in measured]),
        maximum("smoothness", "L, the largest curvature", [v for run in measured for v in run.smoothness]),
        maximum("gradient_moment", "A², of one sample", [v for run in measured for v in run.gradient_moment]),
        maximum("parameter_moment", "B² = ‖ω‖²", [v for run in measured for v in run.parameter_moment]),
        _sensitivity(measured, ratio),
    )


def _sensitivity(measured: list[Pilot], ratio: float) -> Quantity:
    values = tuple(value for run in measured for value in run.sensitivity[ratio])
    taken = float(np.median(values))
    return Quantity("pruning_sensitivity", f"secant of γ₂·R at λ = {ratio:g}", taken, "median", values)

