"""The bound's constants measured on an experiment's own model, data and partition, and written down as a scenario."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedgap.analysis.bound_report import theorem_weight
from fedgap.config import Experiment, Scenario
from fedgap.config.mode_defaults import PLANNING_KEYS
from fedgap.config.scenario_resolution import with_histograms
from fedgap.config.yaml_writer import to_yaml, write_document
from fedgap.errors import InputError
from fedgap.learning.data import Dataset
from fedgap.learning.engine import check_device
from fedgap.learning.models import build
from fedgap.learning.partition import Partition
from fedgap.learning.pilot import Pilot, pilot
from fedgap.learning.sizes import flops_per_sample, gradient_bits
from fedgap.report.number_format import number
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.prepare import divide
from fedgap.streams import stream_seed

if TYPE_CHECKING:
    from rich.console import RenderableType

RATIOS = (0.1, 0.3, 0.5)
"""Pruning ratios at which the sensitivity is shown: it is not constant, and a reader should see that."""
MOST_CLIENTS = 10
"""A pilot's batch is that of so many clients at most: the constants are a sample's or a model's, not a fleet's."""


@dataclass(frozen=True)
class Quantity:
    """A measured constant: at every visited point of every pilot, and what is taken of it."""

    key: str
    """The scenario's key, without ``bound.``."""
    meaning: str
    taken: float
    rule: str
    """Which of the values is taken, in a word."""
    values: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """The q-quantile over the visited points."""
        return float(np.quantile(self.values, q))

    def spread(self) -> list[str]:
        """The least, the median and the largest value, to be read."""
        return [number(value) for value in (min(self.values), self.quantile(0.5), max(self.values))]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Printable):
    """What was measured, and the scenario that says so."""

    scenario: Scenario
    quantities: tuple[Quantity, ...]
    sensitivities: dict[float, Quantity]
    """‖∇L(ω) − ∇L(ω̃)‖²/λ by pruning ratio λ."""
    moment_ratio: Quantity
    """E‖G‖²·Z·k/A²: the proof takes it to be at most 1, which holds for gradients of zero mean only."""
    phi: npt.NDArray[np.float64]
    """φ_n of the actual partition, shape (N,)."""
    sizes: dict[str, int]
    """The model's own ``gradient_bits`` and ``flops_per_sample``."""
    pilots: int
    steps: int

    def parts(self) -> list[RenderableType]:
        """Each constant with its spread, and what to know before trusting it."""
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
        return [table, self._remarks()]

    def _remarks(self) -> str:
        model, own, ratio = self.scenario.model, self.sizes, self.moment_ratio
        text = (
            f"The theorem's own γ₂·R = L²·B² is {theorem_weight(self.scenario.bound):.3g}; the secant is an "
            f"estimate, not a bound, and not constant in λ. E‖G‖²·Z·k/A² is {ratio.quantile(0.5):.3g} in the median "
            f"and {ratio.taken:.3g} at most, where the proof takes it to be at most 1."
        )
        if (model.gradient_bits, model.flops_per_sample) != (own["gradient_bits"], own["flops_per_sample"]):
            text += (
                f" The scenario keeps gradient_bits {model.gradient_bits:.7g} and flops_per_sample "
                f"{model.flops_per_sample:.3g}; the model itself has {own['gradient_bits']:.7g} and "
                f"{own['flops_per_sample']:.3g} (--sizes takes those)."
            )
        return text

    def comments(self) -> list[str]:
        """The spread of every constant, a line each, for the file."""
        head = f"Measured by fedgap calibrate: {self.pilots} pilots of {self.steps} steps each."
        lines = [
            f"{q.key}: {q.taken:.4g} is the {q.rule} of {min(q.values):.4g} to {max(q.values):.4g} ({q.meaning})"
            for q in self.quantities
        ]
        secants = ", ".join(f"{q.quantile(0.5):.3g} at {ratio:g}" for ratio, q in self.sensitivities.items())
        return [
            head,
            *lines,
            f"The sensitivity is an estimate, not a bound, and not constant in the pruning ratio: medians {secants}.",
        ]

    def save(self, path: Path) -> None:
        """Write the scenario; in YAML the spreads stand as comments above ``bound``."""
        document = {"format": 1} | self.scenario.document()
        if path.suffix.lower() == ".json":
            write_document(document, path)
            return
        lines = to_yaml(document).splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith("bound:"))
        text = "\n".join([*lines[:at], *(f"# {comment}" for comment in self.comments()), *lines[at:]]) + "\n"
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def calibrate(
    experiment: Experiment,
    *,
    pilots: int = 3,
    steps: int = 100,
    points: int = 6,
    ratio: float = 0.3,
    sizes: bool = False,
    divided: tuple[Dataset, Partition, Scenario] | None = None,
    done: Callable[[], None] | None = None,
) -> Calibration:
    """Measure φ, A², B², L, L(ω⁰) − L(ω*) and the secant of γ₂·R for an experiment.

    :param pilots: short trainings, the first from the weights that training starts from, each other from weights of
        its own; :param steps: of each;
    :param points: at which each measures; :param ratio: λ at which the secant is taken.
    :param sizes: whether ``gradient_bits`` and ``flops_per_sample`` are taken from the model, too.
    :param divided: what ``divide`` gave for this experiment, where it was called already.
    :param done: called after each pilot.
    """
    dataset, parts, planned = divided or divide(experiment)
    chosen = torch.from_numpy(np.concatenate(parts.train))
    inputs, labels = dataset.train_x[chosen], dataset.train_y[chosen]
    engine = experiment.engine
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    device = check_device(engine.device)
    ratios = tuple(sorted({*RATIOS, ratio}))
    found: list[Pilot] = []
    for n in range(pilots):
        module = build(
            experiment.model.name, input_shape=dataset.shape, classes=dataset.classes,
            seed=stream_seed(experiment.seed, "pilot", n, 0) if n else stream_seed(experiment.seed, "model"),
            initialisation=experiment.model.initialisation, **experiment.model.arguments,
        ).to(device)
        own = {"gradient_bits": gradient_bits(module), "flops_per_sample": flops_per_sample(module, dataset.shape)}
        found.append(
            pilot(
                module, inputs, labels, rate=planned.learning.rate, batch_size=planned.learning.batch_size,
                clients=min(experiment.size, MOST_CLIENTS), seed=stream_seed(experiment.seed, "pilot", n, 1),
                steps=steps, points=points, ratios=ratios,
            )
        )
        if done is not None:
            done()
    quantities = _quantities(found, ratio)
    changes: dict[str, dict[str, Any]] = {"bound": {q.key: _digits(q.taken) for q in quantities}}
    if sizes:
        changes["model"] = own
    counts = (parts.label_counts, dataset.label_counts()[1], parts.target_counts)
    ratio_seen = tuple(value for each in found for value in each.moment_ratio.values)
    return Calibration(
        scenario=_scenario(experiment, counts, changes),
        quantities=quantities,
        sensitivities={r: _sensitivity(found, r) for r in ratios},
        moment_ratio=Quantity("", "E‖G‖²·Z·k/A²", max(ratio_seen), "maximum", ratio_seen),
        phi=planned.phi(),
        sizes=own,
        pilots=pilots,
        steps=steps,
    )


def _quantities(found: list[Pilot], ratio: float) -> tuple[Quantity, ...]:
    """The bound's constants: maxima, for they bound; the median of the secant, which is an estimate."""

    def maximum(key: str, meaning: str, values: list[float]) -> Quantity:
        return Quantity(key, meaning, max(values), "maximum", tuple(values))

    return (
        maximum("initial_gap", "L(ω⁰) − L(ω*) with L(ω*) ≥ 0", [each.initial_gap for each in found]),
        maximum("smoothness", "L, the largest curvature", [v for each in found for v in each.smoothness.values]),
        maximum("gradient_moment", "A², of one sample", [v for each in found for v in each.gradient_moment.values]),
        maximum("parameter_moment", "B² = ‖ω‖²", [v for each in found for v in each.parameter_moment.values]),
        _sensitivity(found, ratio),
    )


def _sensitivity(found: list[Pilot], ratio: float) -> Quantity:
    values = tuple(value for each in found for value in each.sensitivity[ratio].values)
    taken = float(np.median(values))
    return Quantity("pruning_sensitivity", f"secant of γ₂·R at λ = {ratio:g}", taken, "median", values)


def _scenario(
    experiment: Experiment, counts: tuple[npt.ArrayLike, ...], changes: dict[str, dict[str, Any]]
) -> Scenario:
    """The experiment's scenario as it was written, mode included, with what was measured in place of what it had."""
    document = with_histograms(experiment.resolved_base(), *counts)
    sections: dict[str, Any] = {
        "budget": experiment.budget.model_dump(exclude_none=True), "rounds": experiment.rounds, **changes
    }
    if experiment.mode is not None:  # an experiment's mode beats the keys of its scenario
        document["mode"] = experiment.mode
        for section, key in PLANNING_KEYS.values():
            document[section] = {k: v for k, v in document[section].items() if k != key}
    for name, (section, key) in PLANNING_KEYS.items():
        if getattr(experiment, name) is not None:
            sections[section] = sections.get(section, {}) | {key: getattr(experiment, name)}
    for section, value in sections.items():
        if isinstance(value, dict):
            document[section] = {**document[section], **value}
        elif value is not None:
            document[section] = value
    return Scenario.from_dict(document)


def _digits(value: float) -> float:
    """Four digits: a pilot knows no more, and the file is to be read."""
    return float(f"{value:.4g}")
