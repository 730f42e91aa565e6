"""Names that Python, files, the command line and the studio share.

A name means, in this order: what comes with fedgap, what an installed package adds under an entry point, or any object
as ``package.module:NAME``. A package adds a selection rule, for example, with these two lines in its
``pyproject.toml``::

    [project.entry-points."fedgap.selection"]
    nearest = "my_package.rules:nearest"

Nothing is imported before its name is used. This is the only module that imports users' code.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError, InputError, did_you_mean


def import_object(reference: str, key: str) -> Any:
    """Import ``package.module:NAME``; the current folder is searched last.

    :param key: the key of the file or the argument that gave the reference, for the error message.
    """
    module, separator, attribute = reference.partition(":")
    if not (module and separator and attribute):
        raise InputError(f"{key}: must have the form package.module:NAME; got {reference!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a user's module raises when it is imported
        raise InputError(f"{key}: {reference} cannot be imported ({type(error).__name__}: {error}); "
                         "is it installed, or in this folder?") from error


def call_extension(key: str, name: str, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call users' code; whatever it raises becomes an :class:`InputError` that begins with ``key``."""
    try:
        return function(*arguments, **named)
    except FedgapError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{key}: {name} failed ({reason})") from error


@dataclass(frozen=True)
class Registry:
    """The known things of one kind, such as the schemes."""

    kind: str
    """The last part of the entry-point group ``fedgap.KIND``."""
    noun: str
    """One of them, in an error message."""
    built_in: Mapping[str, str]
    """Name to ``package.module:NAME``, in the order in which people should see them."""
    file_suffix: str = ""
    """Ending of the files whose paths are names, too."""

    @property
    def group(self) -> str:
        """The entry-point group that other packages use."""
        return f"fedgap.{self.kind}"

    def added(self) -> dict[str, str]:
        """Names that installed packages add, with what each refers to."""
        from importlib.metadata import entry_points

        return {point.name: point.value for point in entry_points(group=self.group) if point.name not in self.built_in}

    def names(self) -> list[str]:
        """Every known name: first those that come with fedgap, then those that packages add."""
        return [*self.built_in, *sorted(self.added())]

    def check(self, name: str, key: str | None = None) -> None:
        """Raise an :class:`InputError` unless ``name`` is known or has the form ``package.module:NAME``."""
        is_file = bool(self.file_suffix) and name.endswith(self.file_suffix)
        if name not in self.built_in and ":" not in name and not is_file and name not in self.added():
            names = self.names()
            file = f" a {self.file_suffix} file," if self.file_suffix else ""
            known = f"{'one of ' if len(names) > 1 else ''}{', '.join(names)}"
            raise InputError(f"{key or self.noun}: must be {known},{file} or package.module:NAME; "
                             f"got {name[:60]!r}{did_you_mean(name, names)}")

    def load(self, name: str, key: str | None = None) -> Any:
        """The object behind a name.

        :param key: the key of the file or the argument that gave the name, for error messages.
        """
        self.check(name, key)
        reference = self.built_in.get(name) or (name if ":" in name else self.added()[name])
        return import_object(reference, key or self.noun)


SCHEMES = Registry("schemes", "scheme", {
    name: f"fedgap.planning.schemes.{name}:SCHEME"
    for name in ("proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency",
                 "measured")
} | {"forecast": "fedgap.planning.schemes.by_forecast:SCHEME"})
"""Restrictions of P1: :class:`fedgap.Scheme` objects."""

FLEETS = Registry("fleets", "fleet", {name: f"fedgap.config.fleet_recipes:{name}" for name in ("rayleigh", "city")})
"""Functions from a seed and keyword arguments to clients, as columns or as one mapping per client."""

MODELS = Registry("models", "model", {
    "lenet5": "fedgap.learning.models.lenet:LeNet5",
    "mlp": "fedgap.learning.models.mlp:MLP",
    **{f"resnet{depth}": f"fedgap.learning.models.resnet:resnet{depth}" for depth in (20, 32, 44, 56, 110)},
})
"""Factories (classes or functions) that give a ``torch.nn.Module``."""

DATA = Registry("data", "data set", {
    name: f"fedgap.learning.data.load:{name.replace('-', '_')}"
    for name in ("embedded", "mnist", "fashion-mnist", "cifar10")
}, file_suffix=".npz")
"""Functions that give a :class:`fedgap.Dataset`, two torch data sets or four arrays."""

IMPORTANCE = Registry("importance", "importance rule", {
    name: f"fedgap.learning.importance:{name}" for name in ("taylor", "magnitude", "random")
})
"""How weights are ranked before they are pruned."""

AGGREGATORS = Registry("aggregators", "aggregator", {"mean": "fedgap.learning.aggregators:mean"})
"""How the server combines the clients' gradients."""

OBJECTIVES = Registry("objectives", "objective", {
    "theta": "fedgap.planning.objectives.theta:Theta",
    "measured": "fedgap.planning.objectives.measured_guide:measured",
    "forecast": "fedgap.planning.objectives.forecast_tangent:forecast",
})
"""What plans minimise: functions from a :class:`fedgap.planning.problem.Problem` to a :class:`fedgap.Objective`."""

SELECTION = Registry("selection", "selection", {
    name: f"fedgap.planning.selection.{name}:{name}" for name in ("everybody", "fastest_half")
})
"""Static selection rules: functions from a :class:`fedgap.Scenario` to the selected clients."""

POLICIES = Registry("policies", "policy", {
    "static": "fedgap.planning.policies.static:Static",
    "replan": "fedgap.planning.policies.replan:Replan",
    "lyapunov": "fedgap.planning.policies.lyapunov:Lyapunov",
    "random": "fedgap.planning.policies.random_clients:RandomClients",
})
"""Who decides the rounds of a run in a changing world: functions from a
:class:`fedgap.planning.policies.policy.PolicyStart` to a :class:`fedgap.planning.policies.policy.Policy`."""
