"""Compare runs, grouped over seeds: short names, curves, outcomes and paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgap.statistics import holm, interval, paired
from fedgap.web.runs import Runs

OUTCOMES = ("test_accuracy", "test_loss", "energy_j", "delay_s")
"""The measures in the table of groups, each a mean over seeds with its interval."""
CURVES = ("test_accuracy", "test_loss")
ACROSS = ("delay_total_s", "energy_total_j")
"""Quantities against which a curve may be drawn, instead of rounds."""
DIFFERENCES = ("test_accuracy", "test_loss")
_FIRST = ("scheme", "objective", "selection", "policy", "data.name", "model.name")
"""The keys that are used first to name groups; the others follow in alphabetical order."""
_PHRASES = {"partition.concentration": "σ {}", "budget.energy_j": "{} J", "budget.delay_s": "{} s",
            "rounds": "{} rounds", "learning.local_steps": "τ {}", "learning.rate": "η {}"}
_ABSENT = "null"
Overview = dict[str, Any]


@dataclass(frozen=True)
class _Group:
    """Runs that differ only in their seed: finished runs, one per seed, or a single unfinished run."""

    config: Mapping[str, str]
    """The experiment's keys without the seed, each value as JSON text."""
    by_seed: Mapping[int | None, str]
    finished: bool

    @property
    def runs(self) -> list[str]:
        return list(self.by_seed.values())


def comparison(runs: Runs, names: Sequence[str], reference: str | None = None) -> dict[str, Any]:
    """The groups of these runs, each with its label, curves and outcomes, and the differences from one group.

    :param reference: a run of the group with which the others are compared; by default the first group."""
    groups = _groups(runs, names)
    labels = short_names([group.config for group in groups])
    overviews = {name: runs.overview(name) for group in groups for name in group.runs}
    rows = [_row(group, label, overviews, [runs.rounds(name) for name in group.runs])
            for group, label in zip(groups, labels, strict=True)]
    complete = [i for i, group in enumerate(groups) if group.finished]
    chosen = next((i for i in complete if reference in groups[i].runs), complete[0] if complete else None)
    others = [i for i in complete if i != chosen]
    differences = [] if chosen is None else _differences(overviews, groups, labels, chosen, others)
    return {"groups": rows, "reference": None if chosen is None else groups[chosen].runs[0],
            "differences": differences}


def _groups(runs: Runs, names: Sequence[str]) -> list[_Group]:
    """Group the runs that differ only in their seed. Unfinished runs are not averaged, and each forms its own group; of
    several runs with one seed the first is used."""
    finished: dict[str, tuple[dict[str, str], dict[int | None, str]]] = {}
    alone = []
    for name in names:
        config = dict(runs.config(name))
        seed = config.pop("seed", None)
        seed = seed if isinstance(seed, int) else None
        flat = flattened(config)
        if runs.state(name)[0] == "finished":
            finished.setdefault(json.dumps(flat, sort_keys=True), (flat, {}))[1].setdefault(seed, name)
        else:
            alone.append(_Group(flat, {seed: name}, False))
    return [_Group(flat, by_seed, True) for flat, by_seed in finished.values()] + alone


def flattened(document: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Flatten nested keys: ``{"budget": {"delay_s": 120}}`` → ``{"budget.delay_s": "120"}``; lists are not split."""
    flat: dict[str, str] = {}
    for key, value in document.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = json.dumps(value, sort_keys=True)
    return flat


def short_names(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """A name for each configuration, made of the values of as few keys as are needed to distinguish them."""
    keys = sorted({key for config in configs for key in config})
    wanted = [key for key in _FIRST if key in keys] + [key for key in keys if key not in _FIRST]
    told: list[str] = []
    for key in wanted:
        if len({tuple(config.get(k, _ABSENT) for k in (*told, key)) for config in configs}) > len(
                {tuple(config.get(k, _ABSENT) for k in told) for config in configs}):
            told.append(key)
    return [", ".join(_phrase(key, config.get(key, _ABSENT)) for key in told if config.get(key, _ABSENT) != _ABSENT)
            or _phrase("scheme", config.get("scheme", _ABSENT)) for config in configs]


def _phrase(key: str, text: str) -> str:
    value = json.loads(text)
    if key in _FIRST:
        return "usual" if value is None else str(value)
    key = key.removeprefix("scenario.")
    if isinstance(value, list):
        return f"other {key}"
    return _PHRASES.get(key, f"{key.rpartition('.')[2].replace('_', ' ')} {{}}").format(value)


def _row(group: _Group, label: str, known: Mapping[str, Overview],
         histories: Sequence[list[dict[str, Any]]]) -> dict[str, Any]:
    overviews = [known[name] for name in group.runs]
    row: dict[str, Any] = {
        "label": label, "runs": group.runs, "seeds": list(group.by_seed), "scheme": overviews[0]["scheme"],
        "state": overviews[0]["state"], "theta": [overview["theta"] for overview in overviews],
        "rounds": [overview["rounds"] for overview in overviews]}
    for measure in OUTCOMES:
        values = [overview[measure] for overview in overviews]
        row[measure] = None if None in values else _interval(values)
    row["curves"] = {measure: _curve(histories, measure) for measure in CURVES}
    return row


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    mean = interval(values)
    return {"mean": mean.mean, "ci95": mean.half, "low": mean.low, "high": mean.high}


def _curve(histories: Sequence[list[dict[str, Any]]], measure: str) -> dict[str, list[Any]]:
    """The mean over seeds with its interval, for each round that all seeds evaluated, and what was spent on average
    until then."""
    needed = ("round", measure, *ACROSS)
    evaluated = [{event["round"]: event for event in history if all(event.get(key) is not None for key in needed)}
                 for history in histories]
    common = sorted(set.intersection(*(set(events) for events in evaluated)))
    means = [_interval([events[number][measure] for events in evaluated]) for number in common]
    curve: dict[str, list[Any]] = {key: [mean[key] for mean in means] for key in ("mean", "low", "high")}
    for key in ACROSS:
        curve[key] = [interval([events[number][key] for events in evaluated]).mean for number in common]
    return curve | {"round": common}


def _differences(overviews: Mapping[str, Overview], groups: Sequence[_Group], labels: Sequence[str], chosen: int,
                 others: Sequence[int]) -> list[dict[str, Any]]:
    """The differences of each other group from the chosen one, paired over the seeds that both have; Holm's correction
    for each measure."""
    rows: dict[int, dict[str, Any]] = {i: {"label": labels[i], "from": labels[chosen], "seeds": 0} for i in others}
    for measure in DIFFERENCES:
        known = {i: {seed: overviews[name][measure] for seed, name in groups[i].by_seed.items()
                     if seed is not None and overviews[name][measure] is not None} for i in (chosen, *others)}
        pairs = {i: paired(known[i], known[chosen]) for i in others if known[i].keys() & known[chosen].keys()}
        for i, compared in zip(pairs, holm(list(pairs.values())), strict=True):
            rows[i]["seeds"] = compared.difference.n
            rows[i][measure] = {"mean": compared.difference.mean, "ci95": compared.difference.half,
                                "p": compared.adjusted, "verdict": compared.verdict}
    return list(rows.values())
