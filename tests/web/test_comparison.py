"""Runs grouped over seeds, under short names, with paired differences."""

from pathlib import Path

import pytest

from fedgap.web.run_comparison import comparison, flattened, short_names
from fedgap.web.runs import Runs
from tests.web.run_folders import experiment, write_run, write_sweep


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("compared")
    write_sweep(folder / "schemes")
    return Runs(folder)


def test_groups_by_scheme_with_means_over_distinct_seeds(runs: Runs, tmp_path: Path) -> None:
    names = sorted(runs.names())
    assert len(names) == 12
    write_run(runs.root / "again", experiment("proposed", 3), 0.1)  # a seed that is there already does not count
    answer = comparison(runs, [*names, "again"])
    groups = {group["label"]: group for group in answer["groups"]}
    assert groups.keys() == {"proposed", "all_clients", "no_pruning"}
    assert groups["proposed"]["seeds"] == [0, 1, 2, 3]
    assert "again" not in groups["proposed"]["runs"]
    # (80, 82, 84, 86): mean 83, s = 2.582, 3.1824·2.582/2 = 4.108
    assert groups["proposed"]["test_accuracy"]["mean"] == pytest.approx(0.83)
    assert groups["proposed"]["test_accuracy"]["ci95"] == pytest.approx(0.04108, rel=1e-3)
    curve = groups["proposed"]["curves"]["test_accuracy"]
    assert curve["round"] == [1, 3, 5, 7]
    assert curve["mean"] == pytest.approx([0.2075, 0.415, 0.6225, 0.83])
    assert curve["high"][-1] - curve["low"][-1] == pytest.approx(2 * 0.04108, rel=1e-3)
    assert curve["energy_total_j"] == sorted(curve["energy_total_j"])


def test_differences_are_paired_seed_by_seed(runs: Runs) -> None:
    names = [name for name in sorted(runs.names()) if name != "again"]
    reference = next(name for name in names if "proposed" in name)
    rows = {row["label"]: row for row in comparison(runs, names, reference)["differences"]}
    assert rows.keys() == {"all_clients", "no_pruning"}
    better, worse = rows["all_clients"], rows["no_pruning"]
    assert (better["from"], better["seeds"]) == ("proposed", 4)
    assert better["test_accuracy"]["mean"] == pytest.approx(0.015)
    assert better["test_accuracy"]["ci95"] == pytest.approx(0.009187, rel=1e-3)  # far narrower than either group's
    assert better["test_accuracy"]["verdict"] == "higher"
    assert worse["test_accuracy"]["mean"] == pytest.approx(-0.05)
    assert worse["test_accuracy"]["verdict"] == "lower"
    other = comparison(runs, names, next(name for name in names if "no_pruning" in name))
    assert {row["label"] for row in other["differences"]} == {"all_clients", "proposed"}


def test_without_a_common_seed_there_is_no_difference(runs: Runs) -> None:
    names = [name for name in runs.names() if name.endswith(("proposed,seed=0", "no_pruning,seed=1"))]
    (row,) = comparison(runs, names)["differences"]
    assert row["seeds"] == 0
    assert "test_accuracy" not in row


@pytest.mark.parametrize(("documents", "expected"), [
    ([{"scheme": "no_pruning", "model": {"name": "mlp"}}] * 1, ["no_pruning"]),
    ([{"scheme": "proposed"}, {"scheme": "all_clients"}], ["proposed", "all_clients"]),
    ([{"scheme": "proposed", "budget": {"delay_s": 100}}, {"scheme": "proposed", "budget": {"delay_s": 150}}],
     ["100 s", "150 s"]),
    # what follows from the scheme is not told again
    ([{"scheme": "proposed", "solver": "exact"}, {"scheme": "all_clients", "solver": "alternating"}],
     ["proposed", "all_clients"]),
    ([{"scheme": s, "partition": {"concentration": c}} for s in ("proposed", "measured") for c in (1, 5)],
     ["proposed, σ 1", "proposed, σ 5", "measured, σ 1", "measured, σ 5"]),
    ([{"scheme": "proposed"}, {"scheme": "proposed", "selection": "fastest"}], ["proposed", "fastest"]),
])
def test_short_names_say_what_differs(documents: list[dict], expected: list[str]) -> None:
    assert short_names([flattened(document) for document in documents]) == expected
