"""Whether two checkouts make the same plans.

    python benchmarks/same_plans.py OLD_SRC NEW_SRC [--save tests/planning/plans_0_1.json]

Each checkout's `src` folder plans the presets under every scheme, the shared cases and a hundred random scenarios
(`tests/planning/plan_cases.py`), in a process of its own. θ, joules, seconds and every value of every segment must
agree to 1e-9; where selections are searched at random, the new plan must not be worse. A plan that only needs less
energy at the same θ is listed, and counts as the same. `--save` writes the old checkout's answers for the tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-9


def answer(tasks: str, out: str) -> None:
    """Plan every case with the fedgap that is on the Python path, and write the plans to ``out``."""
    from fedgap.config import Scenario
    from fedgap.planning import plan

    answers = []
    for _, document, scheme, solver in json.loads(Path(tasks).read_text(encoding="utf-8")):
        answers.append(plan(Scenario.from_dict(document), scheme=scheme, solver=solver).to_dict())
    Path(out).write_text(json.dumps(answers), encoding="utf-8")


def answers_of(source: str, tasks: Path, folder: Path, name: str) -> list[dict[str, Any]]:
    """The plans of one checkout, made in a separate process."""
    out = folder / f"{name}.json"
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--answer", str(tasks), str(out)], env=environment, check=True)
    return json.loads(out.read_text(encoding="utf-8"))


def apart(old: Any, new: Any) -> float:
    """The largest relative difference between the numbers of two plans; infinite if they differ in another way."""
    if isinstance(old, dict) and isinstance(new, dict):
        return max((apart(value, new.get(key)) for key, value in old.items()), default=0.0)
    if isinstance(old, list) and isinstance(new, list):
        return max(map(apart, old, new), default=0.0) if len(old) == len(new) else float("inf")
    if isinstance(old, float) and isinstance(new, float):
        return abs(new - old) / max(abs(old), abs(new), 1e-300) if new != old else 0.0
    return 0.0 if old == new else float("inf")


def verdict(old: dict[str, Any], new: dict[str, Any], *, random: bool) -> str:
    """"" if the plans agree, a note in brackets if a difference is allowed, otherwise what differs."""
    scores = {key: apart(old[key], new[key]) for key in ("status", "rounds", "theta", "lower_bound", "delay_s")}
    scores |= {"energy_j": apart(old["energy_j"], new["energy_j"]), "segments": apart(old["segments"], new["segments"])}
    worst = {key: value for key, value in scores.items() if value > TOLERANCE}
    if not worst:
        return ""
    if random and new["theta"] is not None and new["theta"] <= old["theta"] * (1.0 + TOLERANCE):
        return f"(random search: θ {old['theta']:.9g} → {new['theta']:.9g})"
    if set(worst) <= {"energy_j", "segments", "delay_s"} and new["energy_j"] < old["energy_j"]:
        return f"(less energy at the same θ: {old['energy_j']:.6g} → {new['energy_j']:.6g} J)"
    return ", ".join(f"{key} by {value:.2g}" for key, value in worst.items())


def saved(case: list[Any], plan: dict[str, Any]) -> dict[str, Any]:
    """The values of a plan that are kept for the tests."""
    name, document, scheme, solver = case
    kept = {key: plan[key] for key in ("status", "rounds", "theta", "lower_bound", "energy_j", "delay_s")}
    budget = {"budget": document["budget"]} if name.startswith("random-") else {}
    return {"case": name, "scheme": scheme, "solver": solver, **budget, **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--only", help="a part of the names of the cases to compare")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from fedgap.config import Scenario
    from tests.planning.plan_cases import cases, searched_at_random

    tasks = [case for case in cases() if chosen.only is None or chosen.only in case[0]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "tasks.json"
        file.write_text(json.dumps(tasks), encoding="utf-8")
        old = answers_of(chosen.old, file, folder, "old")
        if chosen.save:
            lines = [json.dumps(saved(list(case), plan)) for case, plan in zip(tasks, old, strict=True)]
            chosen.save.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        new = old if chosen.new == chosen.old else answers_of(chosen.new, file, folder, "new")
    different = 0
    for (name, document, scheme, solver), before, after in zip(tasks, old, new, strict=True):
        random = searched_at_random(Scenario.from_dict(document), scheme)
        difference = verdict(before, after, random=random)
        different += bool(difference) and not difference.startswith("(")
        if difference:
            print(f"{name} {scheme} {solver}: {difference}")
    print(f"{len(tasks)} plans compared, {different} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(*sys.argv[2:4])
    else:
        main()
