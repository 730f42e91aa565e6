"""How the figures arrange their cells, and that they can be drawn."""

import io

import numpy as np
import pytest
from rich.console import Console

from fedgap.evidence import learner_picture, scheme_picture
from fedgap.evidence.figure_pictures import draw_figure
from fedgap.evidence.redraw import redraw
from fedgap.evidence.result_tables import result_tables
from fedgap.evidence.scheme_picture import SchemeCell, arranged, error_ticks


def panel(title, experiment, values, modes=("repaired",), schemes=("proposed", "no_pruning")):
    draws = np.random.default_rng(0)
    rows = [{"mode": mode, "value": value, "scheme": scheme, "seed": seed, "accuracy": draws.uniform(0.8, 0.9)}
            for mode in modes for value in values for scheme in schemes for seed in range(3)]
    return {"title": title, "experiment": experiment, "rows": rows}


def cells(*panels):
    return [SchemeCell(panel, mode, loss=False) for panel in panels
            for mode in dict.fromkeys(row["mode"] for row in panel["rows"])]


def test_a_row_has_two_wide_cells_or_a_wide_one_and_two_strips_of_one_data_set():
    both = ("repaired", "as_printed")
    wide = panel("A", "mnist", (1.0, 2.0), both)
    half = panel("B", "cifar10", (1.0, 2.0))
    strips = panel("C", "cifar10", (1.0,), both)
    rows = arranged(cells(wide, half, strips))
    assert [[cell.panel["title"] for cell in row] for row in rows] == [["A", "A"], ["B", "C", "C"]]
    assert [cell.width for cell in rows[1]] == [4, 2, 2]


@pytest.mark.parametrize(("least", "most"), [(6.0, 35.0), (45.0, 65.0), (6.5, 9.0), (0.5, 90.0)])
def test_ticks_are_few_round_and_inside(least, most):
    ticks = error_ticks(least, most)
    assert 3 <= len(ticks) <= 12
    assert all(100.0 - most <= tick <= 100.0 - least for tick in ticks)
    assert ticks == sorted(ticks)


def test_marks_stand_on_their_tick_unless_they_would_cover_another(tmp_path, monkeypatch):
    rows = [{"mode": "repaired", "value": value, "scheme": scheme, "seed": seed, "accuracy": accuracy + 0.001 * seed}
            for value, both in ((1.0, (0.9, 0.5)), (2.0, (0.9, 0.9)))
            for scheme, accuracy in zip(("proposed", "no_pruning"), both, strict=True) for seed in range(3)]
    figures = []
    monkeypatch.setattr(scheme_picture, "save_figure", lambda figure, path: figures.append(figure))
    draw_figure({"kind": "accuracy", "xlabel": "x", "panels": [
        {"title": "A", "experiment": "mnist", "rows": rows}]}, tmp_path / "a.png")
    (figure,) = figures
    lines = [np.array(line.get_xdata(), dtype=float) for line in figure.axes[0].get_lines()]
    drawn = {tuple(np.round(x, 3).tolist()) for x in lines if x.size}
    assert drawn == {(0.0, 0.975), (0.0, 1.025)}  # apart at the second value only


def test_conditions_with_several_learners_become_headings():
    panels = [{"title": f"MNIST, {condition}, {learner}", "rows": []}
              for condition in ("sudden drift", "fading") for learner in ("static", "replan")]
    lines = learner_picture._lines(panels)
    assert [label for label, _ in lines] == ["sudden drift", "static", "replan", "fading", "static", "replan"]
    single = [{"title": "MNIST, paper's learner"}, {"title": "MNIST, 8 local steps, 4 bits"}]
    assert [label for label, _ in learner_picture._lines(single)] == ["paper's learner", "8 local steps, 4 bits"]


def test_tables_compare_with_the_proposed_scheme_only_where_it_was_trained(tmp_path):
    found = redraw(["drift", "fig7"], tmp_path)
    drift, fig7 = (rendered(result_tables(found[name])[0]) for name in ("drift", "fig7"))
    assert "proposed" not in drift
    assert "proposed minus this" in fig7


def rendered(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()
