"""A separate package (``tests/extension``) adds to fedgap by entry points alone, and every door takes what it adds."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.terminal import Answer

pytest.importorskip("torch")

PACKAGE = Path(__file__).parents[1] / "extension"
MOST_LINES = 30
ADDED = {
    "schemes": {"loud", "loud_and_near"}, "objectives": {"many_clients"}, "selection": {"nearest_third"},
    "fleets": {"two_rings"}, "aggregators": {"trimmed_mean"}, "importance": {"steady"},
    "models": {"softmax_regression"}, "data": {"stripes"}, "policies": {"in_turn", "longest_waiting"},
    "rules": {"longest_waiting"}, "trackers": {"loss_table"},
}
SCENARIO = """\
rounds: 8
seed: 3
budget: {energy_j: 0.1, delay_s: 1.0}
learning: {rate: 0.05, batch_size: 16}
model: {gradient_bits: 6240, flops_per_sample: 1.2e+3}
pruning: {max_ratio: 0.5}
bound: {initial_gap: 3.5, smoothness: 0.4, gradient_moment: 10.0, parameter_moment: 4.0}
server: {power_w: 0.5, bandwidth_hz: 1.0e+5}
noise_psd_w_hz: 3.98e-21
fleet: {kind: two_rings, per_ring: 3}
labels: {classes: 3, concentration: 5, train_samples: 600, target_samples: 100}
"""
EXPERIMENT = """\
scenario: scenario.yaml
data: {name: stripes}
model: {name: softmax_regression}
learning: {aggregator: trimmed_mean}
pruning: {importance: steady}
scheme: loud
objective: many_clients
evaluate_every: 4
engine: {device: cpu}
trackers: loss_table
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed into a folder."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, folder / "source")  # a build writes beside its source
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps",
                    "--no-index", "--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")],
                   check=True, timeout=120)
    return folder / "site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user works."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return folder


def python_path(site: Path) -> str:
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(site))))


@pytest.fixture(scope="module")
def python(site: Path, folder: Path):
    """Run Python as a user who has the package installed."""
    def run(*arguments: str) -> Answer:
        done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
                              encoding="utf-8", check=False, env=os.environ | {"PYTHONPATH": python_path(site)})
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def fedgap(python):
    return lambda *arguments: python("-m", "fedgap", *arguments)


def planned(fedgap, *arguments: str) -> dict:
    answer = fedgap("plan", *arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def clients(plan: dict) -> list[list[int]]:
    """The selected clients of each segment."""
    return [[n for n, client in enumerate(segment["clients"]) if client["selected"]] for segment in plan["segments"]]


def test_each_addition_takes_few_lines():
    modules = sorted((PACKAGE / "fedgap_example").glob("*.py"))
    assert {path.stem for path in modules} == {"__init__", *ADDED}
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in modules) <= MOST_LINES
    for path in modules:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path.name


def test_the_names_are_known(python):
    answer = python("-c", "import json, fedgap.registry as r; print(json.dumps({x.kind: list(x.added()) for x in "
                          "vars(r).values() if isinstance(x, r.Registry)}))")
    assert {kind: set(names) for kind, names in json.loads(answer.out).items()} == ADDED


def test_help_lists_them(fedgap):
    words = " ".join(fedgap("plan", "--help").out.replace("│", " ").split())
    assert all(name in words for kind in ("schemes", "objectives", "selection") for name in ADDED[kind])


# --- the command line and YAML ---------------------------------------------------------------------------------------

def test_fleet(fedgap):
    plan = planned(fedgap, "scenario.yaml", "fleet.per_ring=2")
    assert len(plan["segments"][0]["clients"]) == 4
    refused = fedgap("plan", "scenario.yaml", "fleet.rings=2")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "fleet.rings: unknown key" in refused.err


def test_scheme(fedgap):
    plan = planned(fedgap, "scenario.yaml", "--scheme", "loud")
    assert plan["scheme"] == "loud"
    chosen = [client for segment in plan["segments"] for client in segment["clients"] if client["selected"]]
    assert chosen
    assert {(client["power_w"], client["pruning_ratio"]) for client in chosen} == {(0.5, 0.0)}
    assert plan["theta"] >= planned(fedgap, "scenario.yaml")["theta"] * (1 - 1e-9)


def test_objective(fedgap):
    """All six take part unpruned: nothing has a lower 1/k + mean λ than 1/6 + 0, and the budgets allow it."""
    plan = planned(fedgap, "scenario.yaml", "--objective", "many_clients")
    assert (plan["scheme"], plan["objective"], plan["status"]) == ("proposed+many_clients", "many_clients", "optimal")
    assert clients(plan) == [list(range(6))] * len(plan["segments"])
    assert max(c["pruning_ratio"] for segment in plan["segments"] for c in segment["clients"]) <= 1e-9


def test_selection(fedgap):
    """Two of the three near clients: the far ones' gains are a hundred times smaller. The scheme has the same rule."""
    plan = planned(fedgap, "scenario.yaml", "--selection", "nearest_third")
    assert plan["scheme"] == "proposed+nearest_third"
    assert clients(plan) == [clients(planned(fedgap, "scenario.yaml", "--scheme", "loud_and_near"))[0]]
    assert all(len(selected) == 2 and set(selected) <= {0, 1, 2} for selected in clients(plan))


def test_compare_and_reference(fedgap):
    answer = fedgap("compare", "scenario.yaml", "--schemes", "proposed,loud,fedgap_example.schemes:LOUD_AND_NEAR",
                    "--json")
    assert answer.code == 0, answer.err
    assert [plan["scheme"] for plan in json.loads(answer.out)["plans"]] == ["proposed", "loud", "loud_and_near"]


def test_train_with_all_of_them(fedgap, folder):
    answer = fedgap("train", "experiment.yaml", "selection=nearest_third", "--out", "run")
    assert answer.code == 0, answer.err
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["scheme"] == "loud+many_clients+nearest_third"
    assert summary["test_accuracy"] > 0.8  # stripes are easy; guessing gives a third
    config = (folder / "run" / "config.yaml").read_text(encoding="utf-8")
    assert all(name in config for name in ("stripes", "softmax_regression", "trimmed_mean", "steady", "many_clients"))
    losses = (folder / "run" / "losses.csv").read_text(encoding="utf-8").splitlines()
    assert [line.partition(",")[0] for line in losses] == ["round", *map(str, range(8))]
    assert fedgap("resume", "run").code == 0


def test_policy(fedgap, folder):
    """Two clients a round by turns: each of the six takes part once in three rounds."""
    answer = fedgap("train", "experiment.yaml", "policy=in_turn", "--out", "by-turns")
    assert answer.code == 0, answer.err
    rounds = [json.loads(line) for line in (folder / "by-turns" / "rounds.jsonl").read_text("utf-8").splitlines()]
    assert [event["clients"] for event in rounds[:4]] == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_rule(fedgap, folder):
    """Planned beside other schemes, and trained as a policy of its name: nobody comes before one who waited longer."""
    forecast = "forecast.like=lenet5-mnist"
    answer = fedgap("compare", "scenario.yaml", forecast, "--schemes", "all_clients,longest_waiting", "--json")
    assert answer.code == 0, answer.err
    plans = json.loads(answer.out)["plans"]
    assert [plan["scheme"] for plan in plans] == ["all_clients", "longest_waiting"]
    answer = fedgap("train", "experiment.yaml", "policy=longest_waiting", "scheme=forecast", "objective=null",
                    f"scenario.{forecast}", "--out", "waiting")
    assert answer.code == 0, answer.err
    rounds = [json.loads(line) for line in (folder / "waiting" / "rounds.jsonl").read_text("utf-8").splitlines()]
    last = [-1] * 6
    for event in rounds:
        chosen = event["clients"]
        left_out = [last[client] for client in range(6) if client not in chosen]
        assert left_out, "every round has all clients, so that nothing was chosen"
        assert max(last[client] for client in chosen) <= min(left_out)
        for client in chosen:
            last[client] = event["round"]
    assert min(last) >= 0


# --- Python ----------------------------------------------------------------------------------------------------------

PYTHON = """
import fedgap
from fedgap_example.objectives import ManyClients
from fedgap_example.schemes import LOUD
from fedgap_example.selection import nearest_third
scenario = fedgap.Scenario.load("scenario.yaml")
for by_name, by_object in (({"scheme": "loud"}, {"scheme": LOUD}),
                           ({"objective": "many_clients"}, {"objective": ManyClients}),
                           ({"selection": "nearest_third"}, {"selection": nearest_third})):
    named, given = (fedgap.plan(scenario, **arguments) for arguments in (by_name, by_object))
    assert given.theta == named.theta and given.feasible, by_name
    assert given.scheme.lower().replace("manyclients", "many_clients") == named.scheme
best_first = sorted(range(6), key=lambda n: -scenario.clients[n].uplink_gain)
selected = fedgap.plan(scenario, selection=nearest_third).segments[0].selected
assert selected.nonzero()[0].tolist() == sorted(best_first[:2])
compared = fedgap.compare(scenario, ["proposed", LOUD, "loud_and_near"])
assert [plan.scheme for plan in compared] == ["proposed", "loud", "loud_and_near"]
compared.plot("schemes.png")
run = fedgap.train(fedgap.Experiment.load("experiment.yaml"), out="python-run")
print(run.plan.scheme)
"""


def test_python(python, folder):
    answer = python("-c", PYTHON)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1] == "loud+many_clients"
    assert (folder / "schemes.png").stat().st_size > 1000


# --- the studio ------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def studio(site: Path, folder: Path) -> Iterator:
    pytest.importorskip("fastapi")
    from tests.web.studio_server import Studio

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(site))
        with Studio(folder / "studio-runs") as running:
            yield running


@pytest.fixture(scope="module")
def document(studio) -> dict:
    reply = studio.post("/api/scenario/upload", kind="yaml", text=SCENARIO)
    assert reply.status_code == 200, reply.text
    return reply.json()["document"]


def test_studio_knows_the_names(studio):
    names = studio.client.get("/api/names").json()
    assert all(ADDED[kind] <= set(names[kind]) for kind in names)
    assert set(names) == set(ADDED) - {"fleets", "importance", "rules", "trackers"}


def test_studio_plans(studio, document, fedgap):
    asked = {"scheme": "loud", "objective": "many_clients", "selection": "nearest_third"}
    plan = next(event["plan"] for event in studio.stages(document=document, **asked) if event["stage"] == "plan")
    arguments = [text for key, name in asked.items() for text in (f"--{key}", name)]
    expected = planned(fedgap, "scenario.yaml", *arguments)
    assert plan["scheme"] == "loud+many_clients+nearest_third"
    assert plan["theta"] == pytest.approx(expected["theta"], rel=1e-9)


@pytest.mark.parametrize(("key", "value"), [
    ("scheme", "fedgap_example.schemes:LOUD"), ("objective", "fedgap_example.objectives:ManyClients"),
    ("selection", "fedgap_example.selection:nearest_third"),
    ("aggregator", "fedgap_example.aggregators:trimmed_mean"), ("data", "fedgap_example.data:stripes"),
    ("model", "fedgap_example.models:softmax_regression"), ("data", "/etc/stripes.npz"),
])
def test_studio_refuses_references(studio, document, key, value):
    """A page must not choose which code of this machine runs."""
    reply = studio.post("/api/runs", document=document, **{key: value})
    assert reply.status_code == 422
    assert "must be one of" in reply.text


def test_studio_refuses_a_referenced_fleet(studio, document):
    changed = document | {"fleet": {"kind": "fedgap_example.fleets:two_rings"}}
    reply = studio.post("/api/scenario", document=changed)
    assert reply.status_code == 422
    assert "for package.module:NAME use `fedgap plan`" in reply.text


def test_studio_trains(studio, document, folder):
    reply = studio.post("/api/runs", document=document, data="stripes", model="softmax_regression", scheme="loud",
                        selection="nearest_third", aggregator="trimmed_mean", evaluate_every=4)
    assert reply.status_code == 201, reply.text
    name = reply.json()["name"]
    assert name == "stripes-loud+nearest_third-seed0"
    with studio.client.stream("GET", f"/api/runs/{name}/events", params={"token": studio.token}) as events:
        for line in events.iter_lines():
            if any(f'"{state}"' in line for state in ("finished", "failed")):
                break
    row = studio.client.get(f"/api/runs/{name}").json()
    assert (row["state"], row["scheme"], row["rounds"]) == ("finished", "loud+nearest_third", 8), row["message"]
    assert "trimmed_mean" in (folder / "studio-runs" / name / "config.yaml").read_text(encoding="utf-8")
