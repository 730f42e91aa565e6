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


def test_every_seed_has_every_scheme(tmp_path: Path) -> None:
    figure = load_figure("own", written(tmp_path, "seeds: 2-3"))
    found = [(case.seed, case.scheme) for case in cases(figure.panels["paper"][0])]
    assert found == [(2, "proposed"), (2, "no_pruning"), (3, "proposed"), (3, "no_pruning")]


@pytest.mark.parametrize("more", ["seeds: 0-x", "seed: 3", "vary: colour"])
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, more: str) -> None:
    with pytest.raises(InputError, match=r"config\.yaml") as error:
        load_figure("own", written(tmp_path, more))
    assert "\n" not in str(error.value)
