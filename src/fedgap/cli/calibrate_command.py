"""``fedgap calibrate``."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.arguments import Overrides
from fedgap.cli.terminal import downloads, show, steps

if TYPE_CHECKING:
    from fedgap.cli.uncut_table import Sheet
    from fedgap.config import Experiment
    from fedgap.running.calibrate import Calibration


def calibrate(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="An experiment's file, or a preset: embedded, mnist, cifar10.")
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(metavar="SCENARIO", help="Where to write the scenario.")],
    pilots: Annotated[int, typer.Option(min=1, help="Short trainings, each from weights of its own.")] = 3,
    length: Annotated[int, typer.Option("--steps", min=1, help="Steps of each.")] = 100,
    ratio: Annotated[float, typer.Option(help="The pruning ratio at which the sensitivity is taken.")] = 0.3,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Take gradient_bits and flops_per_sample from the model, too.")
    ] = False,
) -> None:
    """Measure the bound's constants on a model and its data by a short pilot, and write them into a scenario."""
    from fedgap.config import Experiment
    from fedgap.errors import InputError
    from fedgap.running.calibrate import calibrate as measure
    from fedgap.running.prepare import divide

    if not 0.0 < ratio < 1.0:
        raise InputError(f"--ratio: must be above 0 and below 1 (a share of the weights); got {ratio:g}")
    if out.is_dir():
        raise InputError(f"--out: {out} is a folder; name a file, for example scenario.yaml")
    loaded = Experiment.load(experiment, overrides or [])
    with downloads() as progress:
        divided = divide(loaded, progress=progress)
    with steps("pilots", pilots) as done:
        found = measure(
            loaded, pilots=pilots, steps=length, ratio=ratio, sizes=sizes, divided=divided, done=done
        )
    found.save(out)
    show(constants_table(found), remarks(loaded, found), f"The scenario is in {out}.")


def constants_table(found: Calibration) -> Sheet:
    """Each constant with its spread."""
    from fedgap.cli.number_format import number
    from fedgap.cli.uncut_table import Sheet

    made = Sheet(
        f"Measured along {found.pilots} pilots of {found.steps} steps", "key", "taken", "as the", "least", "median",
        "most", "what it is", left=("as the", "what it is"),
    )
    for q in found.quantities:
        spread = (min(q.values), q.quantile(0.5), max(q.values))
        made.add_row(f"bound.{q.key}", number(q.taken), q.rule, *map(number, spread), q.meaning)
    made.add_section()
    for ratio, q in found.sensitivities.items():
        spread = (min(q.values), q.quantile(0.5), max(q.values))
        made.add_row("", "", "", *map(number, spread), f"secant at λ = {ratio:g}", style="dim")
    phi = (found.phi.min(), median(found.phi.tolist()), found.phi.max())
    made.add_row("", "", "", *(number(float(value)) for value in phi), "φ of the clients", style="dim")
    return made


def remarks(experiment: Experiment, found: Calibration) -> str:
    """What a reader should know before trusting the numbers."""
    bound, model, own, ratio = found.scenario.bound, found.scenario.model, found.sizes, found.moment_ratio
    text = (
        f"The theorem's own γ₂·R = L²·B² is {bound.smoothness**2 * bound.parameter_moment:.3g}; the secant is an "
        f"estimate, not a bound, and not constant in λ. E‖G‖²·Z·k/A² is {ratio.quantile(0.5):.3g} in the median and "
        f"{ratio.taken:.3g} at most, where the proof takes it to be at most 1."
    )
    if (model.gradient_bits, model.flops_per_sample) != (own["gradient_bits"], own["flops_per_sample"]):
        text += (
            f" The scenario keeps gradient_bits {model.gradient_bits:.7g} and flops_per_sample "
            f"{model.flops_per_sample:.3g}; {experiment.model.name} itself has {own['gradient_bits']:.7g} and "
            f"{own['flops_per_sample']:.3g} (--sizes takes those)."
        )
    return text
