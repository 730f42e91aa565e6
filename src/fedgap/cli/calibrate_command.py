"""The command ``fedgap calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.arguments import OptionalExperimentFile, Overrides
from fedgap.cli.extras import require
from fedgap.cli.terminal import downloads, show, steps
from fedgap.errors import InputError


def calibrate(
    experiment: OptionalExperimentFile = None,
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option(metavar="SCENARIO", help="File to which the scenario is written.")],
    from_run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Do not measure; correct the fleet of this deployed run with what its nodes "
                                         "measured.",
                     show_default=False),
    ] = None,
    pilots: Annotated[int, typer.Option(min=1, help="Number of pilots (short trainings), each with other initial "
                                                    "weights.")] = 3,
    length: Annotated[int, typer.Option("--steps", min=1, help="Number of steps of each pilot.")] = 100,
    ratio: Annotated[float, typer.Option(help="The pruning ratio at which the pruning sensitivity is measured.")] = 0.3,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Also compute gradient_bits and flops_per_sample from the model.")
    ] = False,
    rate: Annotated[
        bool | None,
        typer.Option("--rate/--no-rate", help="Choose the learning rate by a range test on validation samples; by "
                     "default in the mode practical.", show_default=False),
    ] = None,
    forecast: Annotated[
        bool | None,
        typer.Option("--forecast/--no-forecast", help="Fit the forecast of the test error by a pilot of short runs, "
                     "judged on validation samples; by default in the mode practical.", show_default=False),
    ] = None,
    pilot_share: Annotated[
        float, typer.Option(help="Training samples of the forecast's pilot, as a multiple of those of one run in which "
                            "all clients take part in all rounds.")
    ] = 1.0,
    stand_in: Annotated[
        str | None, typer.Option(metavar="DATA", help="Train the forecast's pilot on this data set (embedded, "
                                 "fashion-mnist, ...), if the clients' data cannot be used.")
    ] = None,
) -> None:
    """Measure the bound's constants and fit the forecast on your model and data, and write a scenario."""
    require("train", "calibrate")
    from fedgap.config import Experiment
    from fedgap.running.calibrate import calibrate as measure
    from fedgap.running.calibrate import pilot_runs
    from fedgap.running.prepare import divide

    if out.is_dir():
        raise InputError(f"--out: {out} is a folder; name a file, for example scenario.yaml")
    if from_run is not None:
        from fedgap.running.planned_measured import corrected_fleet

        show(corrected_fleet(from_run, out), f"The scenario with the measured speeds is in {out}.")
        return
    if experiment is None:
        raise InputError("EXPERIMENT: missing; name an experiment, or give --from-run RUN")
    if not 0.0 < ratio < 1.0:
        raise InputError(f"--ratio: must be above 0 and below 1 (a share of the weights); got {ratio:g}")
    loaded = Experiment.load(experiment, overrides or [])
    with downloads() as progress:
        divided = divide(loaded, progress=progress)
    if not pilot_share > 0.0:
        raise InputError(f"--pilot-share: must be above 0; got {pilot_share:g}")
    forecast = loaded.readings["mode"] == "practical" if forecast is None else forecast
    with steps("pilots", pilot_runs(pilots, forecast=forecast)) as done:
        calibration = measure(
            loaded, pilots=pilots, steps=length, ratio=ratio, sizes=sizes, rate=rate, forecast=forecast,
            pilot_share=pilot_share, stand_in=stand_in, divided=divided, done=done,
        )
    calibration.save(out)
    show(calibration, f"The scenario is in {out}.")
