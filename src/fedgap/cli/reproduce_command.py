"""The command ``fedgap reproduce``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgap.cli.extras import require
from fedgap.cli.terminal import show, steps
from fedgap.cli.train_command import resumable
from fedgap.errors import InputError

if TYPE_CHECKING:
    from fedgap.evidence.workshop import Workshop


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(
        metavar="[fig3 ... fig8|table1|all]", help="Figures and tables to make. Default: all.")] = None,
    preset: Annotated[str, typer.Option(help="quick (embedded data, minutes on a laptop) or paper (full data, a "
                                        "GPU).")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for plans, runs, results and pictures. The same command "
                                      "resumes there.")] = Path("runs/reproduce"),
    data: Annotated[Path | None, typer.Option(help="The folder of the data set's files, or of folders named mnist and "
                                              "cifar10 (preset paper).")] = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="With --no-train, train nothing and draw the runs "
                                                                   "that exist.")] = True,
    redraw: Annotated[bool, typer.Option("--redraw", help="Draw the results in --out or, if there are none, "
                                         "those that come with fedgap. This needs no data and no training.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of local processes. Default: one per "
                                                            "core.")] = None,
    bundle: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Train nothing; write all runs that are not "
                                                "trained yet into this folder, for a machine with a GPU.")
                      ] = None,
) -> None:
    """Make the paper's figures and tables again, and compare the proposed scheme with each baseline."""
    from fedgap.evidence.definition import FIGURES, PRESETS
    from fedgap.evidence.result_tables import result_tables

    if preset not in PRESETS:
        raise InputError(f"--preset: must be one of {', '.join(PRESETS)}; got {preset!r}")
    names = list(FIGURES) if not figures or "all" in figures else list(dict.fromkeys(figures))
    for name in names:
        if name not in FIGURES:
            raise InputError(f"{name}: must be one of the figures {', '.join(FIGURES)}, or all")
    if redraw and (data is not None or bundle is not None):
        raise InputError("--redraw: cannot be combined with --data or --bundle, because it only draws existing results")
    if redraw:
        from fedgap.evidence.redraw import redraw as draw_again

        made = draw_again(names, out)
    else:
        require("train", "reproduce")
        from fedgap.evidence.reproduce import reproduce as make
        from fedgap.evidence.workshop import Workshop

        with resumable("reproduce", *(figures or []), preset=preset, out=out, data=data, workers=workers):
            shop = Workshop(out, preset, data, workers or os.cpu_count() or 1, steps, train=train)
            if bundle is not None:
                _hand_over([name for name in names if name != "table1"], shop, bundle)
                return
            made = make(names, shop)
    for results in made.values():
        show(*result_tables(results))
    pictures = sorted(str(path) for name in names for path in (out / name).glob("*.png"))
    show(f"Results are in {out}/FIGURE/results.json, pictures in {', '.join(pictures)}.")


def _hand_over(names: list[str], shop: Workshop, folder: Path) -> None:
    from fedgap.evidence.gpu_bundles import hand_over
    from fedgap.report.uncut_table import Sheet

    parts = hand_over(names, shop, folder)
    sheet = Sheet("runs that are not trained yet, in the order in which to train them", "turn", "runs",
                  "GPU-hours, estimated", "figures")
    for part in parts:
        sheet.add_row(part.folder.name, str(part.runs), f"{part.gpu_s / 3600:.2f}", ", ".join(part.figures))
    if not parts:
        show("All runs are trained already.")
        return
    show(sheet, f"Train the folders in {folder} in this order with `python -m fedgap.evidence.bundle TURN --data DATA "
                f"--out records.jsonl`, then append the records to {shop.out}/runs.jsonl.")
