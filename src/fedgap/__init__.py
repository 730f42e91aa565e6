"""fedgap: federated edge learning planned for generalization, within energy and delay budgets.

The public names, imported when first asked for, so that ``import fedgap`` is instant and ``import fedgap.learning``
needs torch and numpy only::

    plan = fedgap.plan(fedgap.Scenario.load("fleet.yaml"))
    run = fedgap.train(fedgap.Experiment.load("mnist.yaml"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgap import errors
    from fedgap.config import Experiment, Scenario
    from fedgap.planning import Plan, compare, frontier, plan
    from fedgap.running.run import Run
    from fedgap.running.train_and_resume import resume, train

    __version__: str

__all__ = [
    "Experiment",
    "Plan",
    "Run",
    "Scenario",
    "__version__",
    "compare",
    "errors",
    "frontier",
    "plan",
    "resume",
    "train",
]

_HOME = {
    "Experiment": "fedgap.config",
    "Scenario": "fedgap.config",
    "Plan": "fedgap.planning",
    "compare": "fedgap.planning",
    "frontier": "fedgap.planning",
    "plan": "fedgap.planning",
    "Run": "fedgap.running",
    "resume": "fedgap.running",
    "train": "fedgap.running",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("fedgap")
    elif name == "errors":
        found = import_module("fedgap.errors")
    elif name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'fedgap' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
