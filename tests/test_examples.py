"""Every public name has a docstring with an example, and the examples run."""

import doctest
import inspect
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import fedgap

pytest.importorskip("torch")

EXTENSION_POINTS = (
    "fedgap.errors.FedgapError", "fedgap.errors.InputError", "fedgap.errors.InfeasibleError",
    "fedgap.errors.RunFailedError", "fedgap.learning.aggregators.Aggregator",
    "fedgap.learning.importance.ImportanceRule", "fedgap.learning.learner.Learner",
    "fedgap.planning.policies.policy.Decision", "fedgap.planning.policies.policy.Policy",
    "fedgap.planning.policies.policy.PolicyStart", "fedgap.planning.policies.policy.RoundView",
    "fedgap.registry.Registry", "fedgap.running.tracker.TrackedRun", "fedgap.running.tracker.Tracker",
    "fedgap.statistics.Interval",
    "fedgap.statistics.paired", "fedgap.statistics.holm",
)
"""What people write or use beside the names of ``fedgap`` itself."""
NAMES = {f"fedgap.{name}": name for name in fedgap.__all__ if name != "__version__"}
DOCUMENTED = (*NAMES, *EXTENSION_POINTS)
LONG = {"fedgap.Objective", "fedgap.Run", "fedgap.budget", "fedgap.calibrate", "fedgap.compare", "fedgap.frontier",
        "fedgap.regret", "fedgap.resume", "fedgap.running.tracker.TrackedRun", "fedgap.sweep"}
"""Examples that take seconds: `make test-all` runs them."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def named(name: str):
    """The object of this dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(fedgap if module == "fedgap" else import_module(module), attribute)


def example(name: str) -> doctest.DocTest:
    known = {"fedgap": fedgap, "errors": fedgap.errors, "np": np, "Path": Path}
    return doctest.DocTestParser().get_doctest(inspect.getdoc(named(name)) or "", known, name, None, None)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_a_docstring_and_an_example(name: str) -> None:
    assert example(name).examples, f"{name} has no example"
    thing = named(name)
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member} has no docstring"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LONG and not os.environ.get("FEDGAP_FULL"):
        pytest.skip("runs with FEDGAP_FULL=1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGAP_ALLOW", "")
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example(name), out=said.append)
    assert result.failed == 0, "".join(said)


def test_the_reference_has_every_public_name() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    homes = {f"{named(name).__module__}.{named(name).__qualname__}" if not inspect.ismodule(named(name)) else name
             for name in DOCUMENTED}
    listed = {line.removeprefix("::: ").strip() for line in page.splitlines() if line.startswith("::: ")}
    assert homes <= listed, homes - listed
