"""Tables fit the terminal, and a narrow one cuts no number."""

import re
from pathlib import Path

import pytest

from fedgap.planning import plan
from tests.e2e.terminal import fedgap

CASES = Path(__file__).parents[1] / "cases"
TIGHT = CASES / "n10_mnist_mean_tight.json"
COMMANDS = [
    ("plan", TIGHT), ("compare", TIGHT), ("bound", "paper-mnist"),
    ("cost", TIGHT, "--plan"), ("frontier", CASES / "n1_loose.json", "--points", 6),
    ("plan", "city", "fleet.count=60", "rounds=50", "budget.energy_j=2000"),
    ("calibrate", "embedded", "model.name=mlp", "data.train_samples=400", "partition.target_size=20",
     "--pilots", 1, "--steps", 2, "--out"),
]


@pytest.fixture(autouse=True)
def _plans_are_solved_once(monkeypatch):
    """All widths show the same plans: tables are tested here, not solvers."""
    plans = {}

    def remembered(scenario, progress=None, **options):
        key = scenario.hash(), repr(sorted(options.items()))
        if key not in plans:
            plans[key] = plan(scenario, progress=progress, **options)
        return plans[key]

    for module in ("planning", "analysis.scheme_comparison", "analysis.budget_frontier"):
        monkeypatch.setattr(f"fedgap.{module}.plan", remembered)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command))[:12])
def test_narrow_terminals(command, tmp_path):
    if command[-1] == "--plan":
        fedgap("plan", command[1], "--out", tmp_path / "plan.json")
        command = (*command, tmp_path / "plan.json")
    if command[-1] == "--out":
        command = (*command, tmp_path / "scenario.yaml")
    piped = fedgap(*command)
    assert piped.code == 0
    for columns in (80, 100):
        shown = fedgap(*command, columns=columns)
        assert "…" not in shown.out
        assert max(len(line) for line in shown.out.splitlines() if str(tmp_path) not in line) <= columns
        # All but the solve's own time, which is another one each time.
        assert numbers(piped.out) <= numbers(shown.out)


def numbers(text: str) -> set[str]:
    """Whatever has a digit, as it stands between blanks."""
    return {word for word in re.sub(r"\(exact, .*|/tmp/.*", "", text).split() if re.search(r"\d", word)}
