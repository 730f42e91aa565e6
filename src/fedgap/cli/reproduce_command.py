"""``fedgap reproduce``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgap.cli.terminal import show, steps
from fedgap.cli.train_command import resumable
from fedgap.errors import InputError

if TYPE_CHECKING:
    from fedgap.cli.uncut_table import Sheet
    from fedgap.evidence.reproduce import Workshop


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(metavar="[fig3 ... fig8|table1|all]", help="What to make; by "
                                                        "default everything.")] = None,
    preset: Annotated[str, typer.Option(help="quick (embedded data, minutes on a laptop) or paper (full data, a "
                                        "GPU).")] = "quick",
    out: Annotated[Path, typer.Option(help="Plans, runs, results and pictures; the same call goes on with what is "
                                      "there.")] = Path("runs/reproduce"),
    data: Annotated[Path | None, typer.Option(help="The folder of the data set's files, or of folders named mnist and "
                                              "cifar10 (preset paper).")] = None,
    train: Annotated[bool, typer.Option("--train/--no-train", help="--no-train: draw the runs that are there.")] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="Local processes; by default one a core.")] = None,
    bundle: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Train nothing: write the runs that have no "
                                                "record yet, panels that wait included, for a machine with a GPU.")
                      ] = None,
) -> None:
    """Make the paper's figures and tables again, and say where the proposed scheme is above, level or below."""
    from fedgap.evidence.definition import PRESETS
    from fedgap.evidence.reproduce import FIGURES, Workshop
    from fedgap.evidence.reproduce import reproduce as make

    if preset not in PRESETS:
        raise InputError(f"--preset: must be one of {', '.join(PRESETS)}; got {preset!r}")
    names = list(FIGURES) if not figures or "all" in figures else list(dict.fromkeys(figures))
    for name in names:
        if name not in FIGURES:
            raise InputError(f"{name}: is no figure; there are {', '.join(FIGURES)}, and all")

    with resumable("reproduce", *(figures or []), preset=preset, out=out, data=data, workers=workers):
        shop = Workshop(out, preset, data, workers or os.cpu_count() or 1, steps, train=train)
        if bundle is not None:
            _hand_over([name for name in names if name != "table1"], shop, bundle)
            return
        found = make(names, shop)
    for results in found.values():
        show(*result_tables(results))
    pictures = sorted(str(path) for name in names for path in (out / name).glob("*.png"))
    show(f"Results are in {out}/FIGURE/results.json, pictures in {', '.join(pictures)}.")


def _hand_over(names: list[str], shop: Workshop, folder: Path) -> None:
    from fedgap.cli.uncut_table import Sheet
    from fedgap.evidence.gpu_bundles import hand_over

    parts = hand_over(names, shop, folder)
    sheet = Sheet("runs without a record, in the order in which they are worth training", "turn", "runs",
                  "GPU-hours, estimated", "figures")
    for part in parts:
        sheet.add_row(part.folder.name, str(part.runs), f"{part.gpu_s / 3600:.2f}", ", ".join(part.figures))
    if not parts:
        show("Every run has its record.")
        return
    show(sheet, f"Train the folders in {folder} in this order with `python -m fedgap.evidence.bundle TURN --data DATA "
                f"--out records.jsonl`, then append the records to {shop.out}/runs.jsonl.")


def result_tables(results: dict[str, Any]) -> list[Sheet | str]:
    """A figure's results for a terminal."""
    from fedgap.cli.uncut_table import Sheet

    head = f"{results['figure']}: {results['title']}"
    if results["kind"] == "table":
        sheet = Sheet(head, "column", "model", "quantity", "printed", "derived", "ratio")
        for row in results["rows"]:
            sheet.add_row(row["column"], row["model"], row["quantity"], f"{row['printed']:.4g}",
                          f"{row['derived']:.6g}", f"{row['ratio']:.3f}")
        return [sheet]
    if results["kind"] == "partitions":
        sheet = Sheet(head, "σ", "mode", "mean φ", "deviation among clients", "rank correlation with KL")
        for row in results["spread"]:
            sheet.add_row(f"{row['sigma']:g}", row["mode"], *(_pair(*row[key]) for key in (
                "mean", "deviation", "rank_with_divergence")))
        return [sheet]
    return [_comparison(head, results, panel) for panel in results["panels"]]


def _comparison(head: str, results: dict[str, Any], panel: dict[str, Any]) -> Sheet | str:
    from fedgap.cli.uncut_table import Sheet
    from fedgap.evidence.results import MEASURES, by_seed
    from fedgap.statistics import interval

    if panel["status"]:
        return f"{head}, {panel['title']}: {panel['status']}."
    loss, measure = results["kind"] == "loss", MEASURES[results["kind"]]
    scale, form = (1.0, "{:.3f}") if loss else (100.0, "{:.1f}")
    sheet = Sheet(f"{head}. {panel['title']}: {'loss' if loss else 'accuracy, %'}, and how the proposed scheme differs "
                  "(paired over seeds, Holm)", "mode", panel["vary"], "scheme", "value", "proposed less this")
    verdicts = {(c["mode"], c["value"], c["baseline"]): c for c in panel["comparisons"]}
    for mode, value, scheme in dict.fromkeys((r["mode"], r["value"], r["scheme"]) for r in panel["rows"]):
        found = list(by_seed(panel["rows"], measure, mode=mode, value=value, scheme=scheme).values())
        own = interval([scale * x for x in found]) if found else None
        c = verdicts.get((mode, value, scheme))
        difference = "" if c is None else f"{_pair(c['difference'], c['half'], form, scale)}: {c['verdict']}"
        sheet.add_row(mode, f"{value:g}", scheme, "none fits" if own is None else _pair(own.mean, own.half, form),
                      difference)
    return sheet


def _pair(mean: float, half: float | None, form: str = "{:.3g}", scale: float = 1.0) -> str:
    return form.format(scale * mean) + ("" if half is None else f" ± {form.format(scale * half)}")
