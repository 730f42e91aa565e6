"""Live progress of runs: loss, accuracy, joules and seconds, and what is left of the budgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedgap.report.number_format import remainder
from fedgap.running.events import Event, OnEvents
from fedgap.running.job import Job


@contextmanager
def show(console: Console | None = None) -> Iterator[OnEvents]:
    """Yield the callback for ``execute``: it shows one bar per run on a terminal, otherwise one line per evaluation."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        def line(position: int, job: Job, events: list[Event]) -> None:
            for event in events:
                if "test_accuracy" in event or "rejected" in event:
                    console.print(f"{job.scheme} seed {job.seed}: {describe(job, event)}", highlight=False,
                                  soft_wrap=True)
        yield line
        return
    bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
                   TextColumn("{task.fields[text]}"), TimeRemainingColumn(), console=console)
    tasks: dict[int, tuple[object, str]] = {}
    with bar:
        def update(position: int, job: Job, events: list[Event]) -> None:
            if position not in tasks:
                tasks[position] = bar.add_task(f"{job.scheme} seed {job.seed}", total=job.rounds, text=""), ""
            task, accuracy = tasks[position]
            for event in events:
                if "test_accuracy" in event:
                    accuracy = f" accuracy {event['test_accuracy']:.1%}"
                if "rejected" in event:
                    bar.console.print(f"round {event['round']}: gradient not finite, rejected: "
                                      + ", ".join(job.names[n] for n in event["rejected"]))
            tasks[position] = task, accuracy
            bar.update(task, completed=events[-1]["round"] + 1,  # type: ignore[arg-type]
                       text=_loss(events[-1]) + accuracy + _left(job, events[-1]))
        yield update


def describe(job: Job, event: Event) -> str:
    """A sentence about a round: loss, accuracy, cost and rejected clients."""
    text = f"round {event['round'] + 1}/{job.rounds} " + _loss(event)
    if "test_accuracy" in event:
        text += f" accuracy {event['test_accuracy']:.1%}"
    text += _left(job, event)
    if "rejected" in event:
        why = "answer refused" if job.extra.get("deployed") else "gradient not finite, rejected"
        text += f"; {why}: " + ", ".join(job.names[n] for n in event["rejected"])
    return text


def describe_news(job: Job, event: Event) -> list[str]:
    """Sentences about what happened to the nodes of a deployment in a round, and why it was planned again."""
    again = [f"planned again: {event['planned_again']}"] if "planned_again" in event else []
    return [*again, *(f"{job.names[news['client']]} {news['what']}" if "client" in news else str(news["what"])
            for news in event.get("news", []))]


def _loss(event: Event) -> str:
    loss = event["train_loss"]
    return "loss –" if loss is None else f"loss {loss:.3f}"


def _left(job: Job, event: Event) -> str:
    """What is spent and what is left of both budgets, as text."""
    energy, delay = event["energy_total_j"], event["delay_total_s"]
    return (f" spent {energy:.4g} J, {delay:.4g} s; left {remainder(job.energy_budget_j, energy):.4g} J, "
            f"{remainder(job.delay_budget_s, delay):.4g} s")
