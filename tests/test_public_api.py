"""The names that other people's scripts rely on, and what importing them costs."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import fedgap

NAMES = {"plan", "compare", "frontier", "cost", "bound", "train", "resume", "sweep", "calibrate", "Scenario",
         "Experiment", "Plan", "Segment", "Scheme", "Objective", "Dataset", "Run", "errors", "allow", "budget",
         "convex_upper_fit", "__version__"}


def test_the_public_names_are_these():
    assert set(fedgap.__all__) == NAMES


@pytest.mark.parametrize("name", fedgap.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fedgap, name) is not None
    assert name in dir(fedgap)


def test_version_and_unknown_names():
    assert fedgap.__version__ == version("fedgap")
    with pytest.raises(AttributeError, match="has no attribute 'plna'"):
        _ = fedgap.plna


def test_the_contracts_snippet_plans(tmp_path):
    path = tmp_path / "fleet.yaml"
    fedgap.Scenario.load("paper-mnist", ["rounds=20", "budget.delay_s=9", "budget.energy_j=20"]).save(path)
    plan = fedgap.plan(fedgap.Scenario.load(path))
    assert isinstance(plan, fedgap.Plan)
    assert plan.status == "optimal"
    with pytest.raises(AttributeError):
        plan.theta = 0.0  # type: ignore[misc]


def test_the_contracts_snippet_trains(tmp_path):
    path = tmp_path / "experiment.yaml"
    settings = ["rounds=4", "budget.delay_s=2.4", "model.name=mlp", "data.train_samples=400", "engine.threads=1"]
    fedgap.Experiment.load("embedded", settings).save(path)
    run = fedgap.train(fedgap.Experiment.load(path), tmp_path / "run")
    assert isinstance(run, fedgap.Run)
    assert run.summary["rounds"] == 4
    assert fedgap.resume(run.folder).summary == run.summary


def test_errors_are_fedgaps_own():
    assert issubclass(fedgap.errors.InputError, fedgap.errors.FedgapError)
    with pytest.raises(fedgap.errors.InputError):
        fedgap.Scenario.load("no-such-preset")


@pytest.mark.parametrize(("statement", "absent"), [
    ("import fedgap", ("numpy", "pydantic", "torch", "scipy")),
    ("import fedgap.cli", ("numpy", "pydantic", "torch", "scipy", "cvxpy", "matplotlib")),
    ("import fedgap; fedgap.plan", ("torch", "cvxpy", "matplotlib", "rich")),
    ("import fedgap; fedgap.cost, fedgap.compare, fedgap.frontier, fedgap.bound", ("torch", "cvxpy", "matplotlib")),
    ("import fedgap; fedgap.Scenario", ("torch", "cvxpy", "scipy", "matplotlib")),
])
def test_importing_is_light(statement, absent):
    code = f"import sys; {statement}; print(' '.join(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
