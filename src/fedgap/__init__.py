"""fedgap: federated edge learning planned for generalization, within energy and delay budgets.

Each public name is imported when it is first used, so that ``import fedgap`` is instant and ``import fedgap.learning``
needs only torch and numpy::

    scenario = fedgap.Scenario.load("fleet.yaml")
    plan = fedgap.plan(scenario)
    print(fedgap.cost(scenario, plan))
    run = fedgap.train(fedgap.Experiment.load("mnist.yaml"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgap import errors
    from fedgap.analysis import bound, budget, compare, cost, frontier, regret
    from fedgap.config import Experiment, Scenario
    from fedgap.learning.data import Dataset
    from fedgap.planning import Objective, Plan, Scheme, Segment, plan
    from fedgap.planning.cost_curve_fit import convex_upper_fit
    from fedgap.registry import allow
    from fedgap.running.calibrate import calibrate
    from fedgap.running.run import Run
    from fedgap.running.sweep import sweep
    from fedgap.running.train_and_resume import resume, train

    __version__: str

_HOME = {
    "Dataset": "fedgap.learning.data",
    "Experiment": "fedgap.config",
    "Objective": "fedgap.planning",
    "Plan": "fedgap.planning",
    "Run": "fedgap.running.run",
    "Scenario": "fedgap.config",
    "Scheme": "fedgap.planning",
    "Segment": "fedgap.planning",
    "allow": "fedgap.registry",
    "bound": "fedgap.analysis",
    "budget": "fedgap.analysis",
    "calibrate": "fedgap.running.calibrate",
    "compare": "fedgap.analysis",
    "convex_upper_fit": "fedgap.planning.cost_curve_fit",
    "cost": "fedgap.analysis",
    "frontier": "fedgap.analysis",
    "plan": "fedgap.planning",
    "regret": "fedgap.analysis",
    "resume": "fedgap.running.train_and_resume",
    "sweep": "fedgap.running.sweep",
    "train": "fedgap.running.train_and_resume",
}
"""The module of each public name."""

__all__ = [
    "Dataset", "Experiment", "Objective", "Plan", "Run", "Scenario", "Scheme", "Segment", "__version__", "allow",
    "bound", "budget", "calibrate", "compare", "convex_upper_fit", "cost", "errors", "frontier", "plan", "regret",
    "resume", "sweep", "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("fedgap")
    elif name == "errors":
        value = import_module("fedgap.errors")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'fedgap' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
