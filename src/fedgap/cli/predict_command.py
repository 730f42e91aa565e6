"""The commands ``fedgap predict`` and ``fedgap export``, which use a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedgap.cli.arguments import AsJson
from fedgap.cli.terminal import show

if TYPE_CHECKING:
    from fedgap.report.uncut_table import Sheet
    from fedgap.running.predict import Predictions

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
SHOWN = 10
"""Maximum number of predictions in the table; the file has all of them."""


def predict(
    run: RunFolder,
    samples: Annotated[Path, typer.Argument(metavar="INPUT.npz", help="File with samples x (or test_x) without "
                                            "standardisation and, optionally, labels y (or test_y).")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all predictions to this file: .csv or .npz.",
                                             show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of samples with the model of a run and, if the file has labels, show the accuracy."""
    from fedgap.running.predict import read_samples
    from fedgap.running.run import Run

    model = Run(run).trained
    x, labels, name = read_samples(samples)
    predictions = model.predict(x, name)
    accuracy = None if labels is None else predictions.compared(labels)
    if out is not None:
        predictions.save(out)
    if as_json:
        answer: dict[str, Any] = {
            "run": str(run), "samples": len(predictions), "classes": predictions.classes.tolist(),
            "class_names": list(predictions.class_names), "probability": predictions.probability.tolist(),
            "accuracy": accuracy.share if accuracy else None, "interval": accuracy.interval if accuracy else None}
        typer.echo(json.dumps(answer))
        return
    remarks = [] if accuracy is None else [f"Accuracy: {accuracy}."]
    if model.inputs.preprocessing is None:
        remarks.append("The run has no record of its preprocessing, so the samples were used without standardisation.")
    show(_table(predictions, labels), *remarks, *([] if out is None else [f"Written: {out}"]))


def _table(predictions: Predictions, labels: Any) -> Sheet:
    from fedgap.report.uncut_table import Sheet

    count = len(predictions)
    title = f"{count:,} sample{'s' * (count != 1)}" + (f", the first {SHOWN}" if count > SHOWN else "")
    table = Sheet(title, "sample", "class", "name", "probability", *(["label"] if labels is not None else []),
                  left=["name", "label"])
    for n in range(min(count, SHOWN)):
        label = [] if labels is None else [str(labels[n])]
        table.add_row(str(n), str(predictions.classes[n]), str(predictions.names[n]),
                      f"{predictions.probability[n]:.1%}", *label)
    return table


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, such as model.pt or model.onnx.")],
    file_format: Annotated[Literal["torchscript", "onnx"], typer.Option(
        "--format", help="onnx needs the packages onnx and onnxscript.")] = "torchscript",
) -> None:
    """Write the model of a run as one file that takes raw samples and returns probabilities."""
    from fedgap.running.export import export as write
    from fedgap.running.run import Run

    model = Run(run).trained
    write(model, out, file_format)
    shape = ", ".join(map(str, model.inputs.shape))
    show(f"Written: {out}. It takes samples (n, {shape}) without standardisation and returns probabilities "
         f"(n, {len(model.inputs.class_names)}).")
