"""What ``fedgap studio NAME`` opens, and what it refuses in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedgap.config import Scenario
from fedgap.config.init_template import write_template
from fedgap.errors import InputError
from fedgap.web.documents import open_scenario
from fedgap.web.opened import open_named
from tests.e2e.terminal import fedgap
from tests.web.run_folders import experiment, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opened") / "fleet"
    write_template(folder)
    return folder


def test_what_init_writes_is_opened_with_its_csv(made: Path) -> None:
    opened = open_named(str(made / "scenario.yaml"))
    assert (opened.kind, opened.name) == ("scenario", str(made / "scenario.yaml"))
    assert [client["name"] for client in opened.document["clients"]][:2] == ["kitchen", "hall"]
    assert open_scenario(opened.document, []) == Scenario.load(made / "scenario.yaml")
    assert open_named(str(made)).name == str(made / "experiment.yaml")  # of a folder, what trains


def test_an_experiments_scenario_and_choices(made: Path) -> None:
    (made / "own.yaml").write_text("scenario: scenario.yaml\nrounds: 30\nbudget: {delay_s: 35}\nscheme: no_pruning\n"
                                   "model: {name: 'mymodel:make'}\nseed: 4\nlearning: {local_steps: 2}\n")
    opened = open_named(str(made / "own.yaml"))
    assert opened.kind == "experiment"
    training = opened.to_dict()["training"]
    assert (training["scheme"], training["seed"], training["data"]) == ("no_pruning", 4, "embedded")
    assert training["model"] is None  # only the experiment itself may name a file
    assert training["model_name"] == "mymodel:make"
    scenario = open_scenario(opened.document, ["budget.delay_s=33", "learning.upload_bits=8"])
    assert (scenario.rounds, scenario.learning.local_steps) == (30, 2)
    trained = opened.trained(scenario, {"scheme": "proposed", "seed": 5})
    assert (trained.model.name, trained.seed, trained.scheme) == ("mymodel:make", 5, "proposed")
    planned = trained.planning_scenario()
    assert planned.to_dict() == scenario.to_dict()  # what is trained is what the page showed


def test_presets_and_runs(tmp_path: Path) -> None:
    assert (open_named("city").kind, open_named("embedded").kind, open_named(None).kind) == (
        "preset", "experiment", "nothing")
    write_run(tmp_path / "sweep" / "runs" / "seed=0", experiment("proposed", 0), 0.5)
    several = open_named(str(tmp_path / "sweep"))
    assert (several.kind, several.runs, several.run) == ("runs", tmp_path / "sweep", None)
    single = open_named(str(tmp_path / "sweep" / "runs" / "seed=0"))
    assert (single.runs, single.run) == (tmp_path / "sweep" / "runs", "seed=0")


@pytest.mark.parametrize(("name", "says"), [
    ("citi", "did you mean 'city'"), ("missing.yaml", "no such file"), ("fleet.csv", "only lists clients"),
    ("plan.json", "is a plan"), ("empty", "must contain runs"), ("broken.yaml", "line 1"), ("many.yaml", "up to 1000"),
])
def test_one_line_for_whatever_cannot_be_opened(made: Path, name: str, says: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    (made / "empty").mkdir(exist_ok=True)
    (made / "broken.yaml").write_text("a: [\n")
    (made / "plan.json").write_text('{"segments": [], "theta": 1.0}')
    text = (made / "scenario.yaml").read_text().replace("clients: fleet.csv", (
        "fleet: {kind: rayleigh, count: 1001, mean_gain: 1.0e-5, bandwidth_hz: 1.0e5, max_power_w: 0.5,\n"
        "  max_frequency_hz: 5.0e8, flops_per_cycle: 4, capacitance: 1.0e-27}\n"
        "labels: {classes: 10, concentration: 5, train_samples: 600, target_samples: 100}\nclients:"))
    (made / "many.yaml").write_text(text.replace("target_counts:", "# target_counts:"))
    with pytest.raises(InputError, match=says) as error:
        open_named(name)
    assert "\n" not in str(error.value)


def test_the_command_refuses_with_code_2(made: Path) -> None:
    answer = fedgap("studio", made / "nothing.yaml", "--no-browser")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith("fedgap: ")


def test_the_studio_starts_without_torch() -> None:
    code = "import json, sys, fedgap.web.api, fedgap.web.solver_worker; print(json.dumps(list(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "matplotlib"} & set(json.loads(ran.stdout))
