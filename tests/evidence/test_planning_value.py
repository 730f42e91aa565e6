"""The judgement of the panel, on numbers made by hand."""

import math

import pytest

from fedgap.evidence.definition import load_figure
from fedgap.evidence.equal_accuracy import spent
from fedgap.evidence.planning_value import judged, spending
from fedgap.statistics import lower_bound


def row(cell, share, scheme, seed, accuracy, mode="practical", energy_j=10.0):
    return {"cell": cell, "value": share, "mode": mode, "scheme": scheme, "seed": seed, "accuracy": accuracy,
            "run": f"{scheme}{seed}", "rounds": 10, "energy_j": energy_j, "delay_s": 20.0}


ACCURACIES = {
    ("A, city", 0.125): {"forecast": [0.90, 0.92, 0.94], "oort": [0.88, 0.90, 0.92], "random_k": [0.905, 0.92, 0.94]},
    ("B, paper", 0.25): {"forecast": [0.80, 0.82, 0.84], "oort": [0.79, 0.81, 0.82], "random_k": [0.90, 0.92, 0.95]},
    ("C, city", 1.0): {"forecast": [0.97, 0.97, 0.97], "oort": [0.97, 0.97, 0.97]},
}
ROWS = [row(cell, share, scheme, seed, accuracy, energy_j=5.0 if scheme == "forecast" else 10.0)
        for (cell, share), schemes in ACCURACIES.items()
        for scheme, accuracies in schemes.items() for seed, accuracy in enumerate(accuracies)]
RUNS = {f"{scheme}{seed}": {"round": [5, 10], "test_accuracy": [0.5, 1.0]}
        for scheme in ("forecast", "oort", "random_k") for seed in range(3)}


@pytest.fixture(scope="module")
def answer():
    return judged(ROWS, RUNS)


def test_a_cell_is_judged_by_the_one_sided_bound(answer):
    cells = {(cell["cell"], entry["rival"]): entry for cell in answer["cells"] for entry in cell["rivals"]}
    oort = cells["A, city", "oort"]  # three differences of +2 points: no spread at all
    assert oort["difference"] == pytest.approx(0.02)
    assert oort["bound"] == pytest.approx(0.02)
    # −0.5, 0 and 0 points: mean −1/6, s = 0.2887, t₀.₉₅(2) = 2.91999, bound −0.1667 − 2.91999·0.2887/√3 = −0.6533.
    random_k = cells["A, city", "random_k"]
    assert random_k["bound"] == pytest.approx(-0.006533, abs=1e-5)
    assert random_k["upper"] == pytest.approx(0.003200, abs=1e-5)  # −0.1667 + 2.91999·0.2887/√3
    assert (oort["not_inferior"], random_k["not_inferior"]) == (True, False)
    assert lower_bound([0.3]) is None


def test_tight_cells_are_pooled_seed_by_seed_and_corrected(answer):
    pooled = {entry["rival"]: entry for entry in answer["pooled"]}
    # oort: cells A and B, by seed (2 + 1)/2, (2 + 1)/2 and (2 + 2)/2 points; the full budgets do not count.
    assert pooled["oort"]["cells"] == 2
    assert pooled["oort"]["difference"] == pytest.approx(0.05 / 3, abs=1e-5)
    # t = 1.6667/(0.28868/√3) = 10; with 2 degrees of freedom the two-sided p is 1 − t/√(t² + 2) = 0.009853.
    # random_k: −5.25, −5 and −5.5 points, t = −36.4, p = 0.000755, the smaller of the two, which Holm doubles.
    assert pooled["oort"]["p_holm"] == pytest.approx(1 - 10 / math.sqrt(102), rel=0.01)
    assert pooled["random_k"]["p_holm"] == pytest.approx(2 * (1 - 36.373 / math.sqrt(36.373**2 + 2)), rel=0.01)
    assert (pooled["oort"]["verdict"], pooled["random_k"]["verdict"]) == ("higher", "lower")


def test_tight_cells_are_also_pooled_by_fleet(answer):
    """Only A is a tight cell of the city: 2 points above oort in every seed; random_k: −0.5, 0 and 0 points, a tie."""
    oort, random_k = (next(entry["by_fleet"]["city"] for entry in answer["pooled"] if entry["rival"] == rival)
                      for rival in ("oort", "random_k"))
    assert (oort["cells"], oort["difference"], oort["verdict"]) == (1, pytest.approx(0.02), "higher")
    # t = −1/6/(0.28868/√3) = −1; two-sided p with 2 degrees of freedom is 1 − 1/√3, which Holm leaves so.
    assert random_k["p_holm"] == pytest.approx(1 - 1 / math.sqrt(3), rel=0.01)
    assert random_k["verdict"] == "tie"


def test_regret_is_the_distance_to_the_best_of_all(answer):
    # A: random_k has a mean of 92.17, forecast 92; B: 92.33 against 82; C: level.
    regret = [(0.905 + 0.92 + 0.94) / 3 - 0.92, (0.90 + 0.92 + 0.95) / 3 - 0.82, 0.0]
    found = {name: (entry["mean"], entry["cells"]) for name, entry in answer["regret"].items()}
    assert found == {"all": (pytest.approx(sum(regret) / 3, abs=1e-4), 3),
                     "tight": (pytest.approx(sum(regret) / 2, abs=1e-4), 2)}
    assert [cell["best"] for cell in answer["cells"]] == ["random_k", "random_k", "forecast"]


def test_the_held_out_regret_is_not_inflated_by_the_choice_of_the_best():
    """Two schemes that are equally good on average. In seeds 0 and 1 oort is best, by 1 and 3 points; in seed 2
    forecast, by 4. Chosen by the other seeds: without seed 0 forecast is best (regret 0), without seed 1 as well
    (regret 0), and without seed 2 oort, which is then 4 points worse."""
    rows = [row("A, city", 0.125, scheme, seed, accuracy)
            for scheme, accuracies in {"forecast": [0.90, 0.90, 0.94], "oort": [0.91, 0.93, 0.90]}.items()
            for seed, accuracy in enumerate(accuracies)]
    held = judged(rows, RUNS)["regret"]["tight"]["held_out"]
    assert (held["mean"], held["seeds"]) == (pytest.approx(-0.04 / 3, abs=1e-5), 3)
    assert judged(rows[:1], RUNS)["regret"]["tight"]["held_out"] is None


def test_equal_accuracy_counts_joules_and_seconds(answer):
    """All runs learn alike, so the same share of the rounds: half the joules, equal seconds."""
    entry = next(entry for entry in answer["pooled"] if entry["rival"] == "oort")
    assert (entry["seconds"]["log"], entry["joules"]["log"]) == pytest.approx((0.0, math.log(0.5)), rel=1e-3)
    assert (spending(entry, "seconds"), spending(entry, "joules")) == ("× 1.00", "× 0.50")
    assert spending({"seeds": 3, "seconds": {"log": math.log(0.5), "half": math.log(2)}}, "seconds") == (
        "× 0.50 (0.25 to 1.00)")


def test_equal_accuracy_goes_by_what_was_really_spent_where_that_is_known():
    """The first five of ten rounds took 15 of 20 s: 90 % is reached at 0.8 of the way from round 5 to round 10."""
    run = {"round": [5, 10], "test_accuracy": [0.5, 1.0], "delay_total_s": [15.0, 20.0]}
    ours = row("A, city", 0.125, "forecast", 0, 0.9)
    assert spent(ours, run, 0.9, "seconds") == pytest.approx(19.0)
    assert spent(ours, run, 0.9, "joules") == pytest.approx(0.9 * 10.0)
    assert spent(ours, run, 1.1, "seconds") is None


def test_seeds_that_are_not_trained_yet_favour_nobody():
    """Without seed 0 of oort in B only A is pooled, with all seeds; B's regret is over the seeds that both have."""
    rows = [entry for entry in ROWS if (entry["cell"], entry["scheme"], entry["seed"]) != ("B, paper", "oort", 0)
            and (entry["cell"], entry["scheme"]) != ("B, paper", "random_k")]
    answer = judged(rows, RUNS)
    oort = next(entry for entry in answer["pooled"] if entry["rival"] == "oort")
    assert (oort["cells"], oort["seeds"], oort["difference"]) == (1, 3, pytest.approx(0.02))
    lucky = [*rows, row("B, paper", 0.25, "luo", 2, 0.83)]  # above forecast's mean, below it in seed 2
    cell = next(cell for cell in judged(lucky, RUNS | {"luo2": RUNS["oort0"]})["cells"] if cell["cell"][0] == "B")
    assert (cell["best"], cell["regret"]) == ("forecast", 0.0)


def test_the_papers_modes_are_rivals_of_their_own_name():
    rows = [*ROWS, *(row("A, city", 0.125, "proposed", seed, 0.7, mode="as_printed") for seed in range(3))]
    runs = RUNS | {f"proposed{seed}": RUNS["oort0"] for seed in range(3)}
    assert "proposed, as_printed" in {entry["rival"] for entry in judged(rows, runs)["pooled"]}


def test_the_panel_has_every_cell_and_the_most_telling_come_first():
    panels = load_figure("panel").panels["paper"]
    practical = [panel for panel in panels if "forecast" in panel.schemes]
    assert len(practical) == 6 * 4 * 3  # tasks and fleets, σ, budgets
    assert all(len(panel.seeds) >= 5 for panel in panels)
    first = min(practical, key=lambda panel: panel.turn)
    assert first.title.startswith("MNIST, city")
    assert first.values == (0.125,)
    value, change = next(iter(first.points()))
    assert (value, change) == (0.125, ("budget.energy_j=12.5", "budget.delay_s=15.0"))
