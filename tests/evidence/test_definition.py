"""Figures' definitions."""

from pathlib import Path

import pytest

from fedgap.errors import InputError
from fedgap.evidence.cases import cases
from fedgap.evidence.definition import load_figure

TEXT = """
title: T
kind: accuracy
presets:
  quick: []
  paper:
    - {{title: A, experiment: mnist, modes: [repaired], schemes: [proposed, no_pruning], values: [1.0], {more}}}
"""


def written(folder: Path, more: str) -> Path:
    (folder / "own").mkdir()
    (folder / "own" / "config.yaml").write_text(TEXT.format(more=more), encoding="utf-8")
    return folder


def test_a_scheme_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    figure = load_figure("own", written(tmp_path, "seeds: 0-3, seeds_of: {no_pruning: [0, 2]}"))
    found = [(case.seed, case.scheme) for case in cases(figure.panels["paper"][0])]
    assert found == [(0, "proposed"), (0, "no_pruning"), (1, "proposed"), (2, "proposed"), (2, "no_pruning"),
                     (3, "proposed")]


@pytest.mark.parametrize("more", ["seeds: 0-x", "seeds_of: {no_pruning: a-b}", "seed: 3", "vary: rounds"])
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, more: str) -> None:
    with pytest.raises(InputError, match=r"config\.yaml") as error:
        load_figure("own", written(tmp_path, more))
    assert "\n" not in str(error.value)
