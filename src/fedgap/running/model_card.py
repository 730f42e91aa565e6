"""Write ``model_card.md``: what a trained model is, what it cost, how good it is and how to use it, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgap.report.number_format import remainder
from fedgap.running.job import Job

MOST_ROWS = 50
"""Maximum number of rows in a table of the card; ``summary.json`` has all."""


def model_card(folder: Path, job: Job, summary: Mapping[str, Any], versions: Mapping[str, Any]) -> str:
    """The card of the run in ``folder`` as Markdown, from its job, ``summary.json`` and ``versions.json``."""
    sections = {"Data": _data(job, summary), "Who took part, and the plan": _plan(job, summary),
                "What it cost": _costs(job, summary), "Accuracy": _accuracy(job, summary),
                "How to use it": _use(folder, job), "Versions": _versions(versions)}
    title = f"# Model card: {summary['model']} trained on {summary['data']}\n"
    pruned = summary["weights"] - summary["kept_weights"]
    opening = (f"A classifier of {summary['weights']:,} weights, {f'{pruned:,}' if pruned else 'none'} of them pruned, "
               "trained by federated learning with fedgap: the clients kept their data and uploaded updates within a "
               "budget of joules and seconds.\n")
    return "\n".join([title, opening, *(f"## {name}\n\n{text}\n" for name, text in sections.items())])


def _data(job: Job, summary: Mapping[str, Any]) -> str:
    inputs, sizes = summary["preprocessing"], job.sizes
    shape = " x ".join(map(str, inputs["input_shape"]))
    if inputs["mean"] is None:
        standardised = "Their preprocessing is not known to fedgap: give samples as the training samples were given."
    elif len(inputs["mean"]) > 4:  # more values than an image has channels: a long list of features is not shown
        standardised = "Each feature is standardised with the mean and deviation in `summary.json` (`preprocessing`)."
    else:
        mean, deviation = (", ".join(f"{value:.4g}" for value in inputs[key]) for key in ("mean", "deviation"))
        standardised = f"Each channel is standardised with mean {mean} and deviation {deviation}."
    return (f"- Training: {summary['data']}; {len(sizes)} clients hold {int(sizes.sum()):,} samples, "
            f"{_span(sizes)} each.\n"
            f"- Test: {summary['test_samples']:,} samples, which no client trained on.\n"
            f"- Inputs: {shape}. {standardised}\n"
            f"- Classes: {_shortened(inputs['class_names'])}.")


def _plan(job: Job, summary: Mapping[str, Any]) -> str:
    segments, rounds = np.unique(job.schedule[:summary["rounds"]], return_counts=True)
    lines = [f"- Scheme `{summary['scheme']}`, mode `{summary['mode']}`, seed {summary['seed']}.",
             f"- {summary['rounds']:,} of {summary['rounds_planned']:,} planned rounds were trained: "
             f"{summary['ended']}."]
    for segment, count in zip(segments.tolist(), rounds.tolist(), strict=True):
        chosen = job.selected[segment]
        ratios = _span(job.ratio[segment, chosen], "{:.0%}")
        lines.append(f"- {count:,} round{'s' * (count > 1)} with {int(chosen.sum())} of "
                     f"{len(chosen)} clients, which prune {ratios} of the weights.")
    return "\n".join(lines)


def _costs(job: Job, summary: Mapping[str, Any]) -> str:
    rows = [(name, *(f"{value:.4g}" for value in (spent, budget, remainder(budget, spent))))
            for name, spent, budget in (("energy in J", summary["energy_j"], job.energy_budget_j),
                                        ("delay in s", summary["delay_s"], job.delay_budget_s))]
    return (f"{_table(('', 'spent', 'budget', 'left'), rows)}\n\n"
            "Joules and seconds are those of the system model with which the run was planned and charged, not of the "
            "computer that simulated it.")


def _accuracy(job: Job, summary: Mapping[str, Any]) -> str:
    low, high = summary["test_accuracy_interval"]
    classes = [(row["class"], f"{row['samples']:,}", _percent(row["accuracy"])) for row in summary["class_accuracy"]]
    taken_part = job.selected[job.schedule[:summary["rounds"]]].sum(axis=0)
    clients = [(row["client"], f"{job.sizes[n]:,}", f"{taken_part[n]:,}", _percent(row["accuracy"]))
               for n, row in enumerate(summary["client_accuracy"])]
    return "\n\n".join([
        f"**{_percent(summary['test_accuracy'])}** of the test samples, with a 95 % interval of {_percent(low)} to "
        f"{_percent(high)}.",
        f"The interval is Wilson's for a binomial share of {summary['test_samples']:,} test samples: it tells how "
        "precisely this model was tested, not how much another seed's model would differ.",
        _table(("class", "test samples", "accuracy"), classes),
        "For each client, the accuracy to expect on data with the client's own mix of labels: the classes' accuracies "
        "above, weighted by the client's label histogram.",
        _table(("client", "samples", "rounds", "accuracy"), clients)])


def _use(folder: Path, job: Job) -> str:
    name = job.model["name"]
    needs = f"\n\nThe module of `{name}` must be importable, as it was in training." if ":" in name else ""
    quoted = shlex.quote(str(folder))
    return (f"```\nfedgap predict {quoted} INPUT.npz --out predictions.csv\n"
            f"fedgap export {quoted} --format torchscript --out model.pt\n```\n\n"
            "`INPUT.npz` has samples `x` as they are before any standardisation, and labels `y` if you have them. In "
            f"Python:\n\n```python\nimport fedgap\n\nrun = fedgap.Run({str(folder)!r})\npredictions = run.predict(x)\n"
            f"print(predictions, predictions.accuracy(y))\n```{needs}")


def _versions(versions: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in versions.items())


def _table(head: Sequence[str], rows: Sequence[Iterable[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows[:MOST_ROWS]]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)
    more = len(rows) - MOST_ROWS
    return text + (f"\n\n{more:,} further rows are in `summary.json`." if more > 0 else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def _span(values: np.ndarray, form: str = "{:,}") -> str:
    """The range of ``values`` as text: ``7``, or ``7 to 9``; a dash if there are none."""
    if not values.size:
        return "–"
    ends = dict.fromkeys(form.format(value) for value in (values.min(), values.max()))
    return " to ".join(ends)


def _shortened(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
