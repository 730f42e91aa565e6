"""Names that Python, files, the command line and the studio share.

A name is looked up in this order: names that come with fedgap, names that installed packages add by entry points, and
objects written as ``package.module:NAME``. For example, a package adds a selection rule with these two lines in its
``pyproject.toml``::

    [project.entry-points."fedgap.selection"]
    nearest = "my_package.rules:nearest"

Nothing is imported before its name is used. This is the only module that imports users' code.

An experiment or a scenario may come from somebody else, so a file must not be able to call arbitrary functions.
``package.module:NAME`` is imported only if the module offers the name with a line ``__fedgap__ = ["NAME"]`` (which is
read from the source text, before any of its code runs), if an installed package has an entry point for it, or if the
user allowed it (:func:`allow`, ``--allow``).
"""

import ast
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fedgap.errors import FedgapError, InputError, did_you_mean, missing_extra

OFFERED = "__fedgap__"
"""Name of the list in which a module offers names to files."""
ALLOW_VARIABLE = "FEDGAP_ALLOW"
"""References that the user allowed, separated by spaces. They are in an environment variable, because worker processes
and Flower's processes need them as well."""


def allow(*references: str) -> None:
    """Let files use ``package.module:NAME`` although its module does not offer it.

    This holds for the present process and the processes that it starts.

    >>> fedgap.allow("torch.nn:Identity")
    >>> fedgap.Experiment.load("embedded", ["model.name=torch.nn:Identity"]).model.name
    'torch.nn:Identity'
    """
    for reference in references:
        if ":" not in reference or len(reference.split()) != 1:
            raise InputError(f"--allow: must have the form package.module:NAME; got {reference!r}")
    os.environ[ALLOW_VARIABLE] = " ".join(dict.fromkeys([*allowed(), *references]))


def allowed() -> list[str]:
    """Return the references that were allowed with :func:`allow`."""
    return os.environ.get(ALLOW_VARIABLE, "").split()


def import_object(reference: str, key: str) -> Any:
    """Import ``package.module:NAME``; the current folder is searched last.

    :param key: the key of the file or the argument that gave the reference, for the error message.
    """
    module, _, attribute = reference.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # importing a user's module may raise anything
        if extra := missing_extra(error):
            raise InputError(f"{key}: {extra}") from None
        raise InputError(f"{key}: {reference} cannot be imported ({type(error).__name__}: {error}); "
                         "is it installed, or in this folder?") from error


def check_permission(reference: str, key: str, trusted: Callable[[], Iterable[str]]) -> None:
    """Raise an :class:`InputError` unless files may use ``package.module:NAME``. Nothing is imported.

    :param trusted: returns the references that need no permission.
    """
    module, separator, attribute = reference.partition(":")
    if not (module and separator and attribute):
        raise InputError(f"{key}: must have the form package.module:NAME; got {reference!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    if reference in allowed():
        return
    try:
        offered = _offered(module)
    except SyntaxError as error:
        raise InputError(f"{key}: {reference} cannot be imported (SyntaxError: {error})") from None
    if offered is None:  # importing it might still succeed, because some packages create modules on demand
        raise InputError(f"{key}: {reference} cannot be imported (there is no module {module}); is it installed, or in "
                         "this folder?")
    if attribute in offered or reference in trusted():
        return
    raise InputError(f"{key}: {reference} is not offered to fedgap by its module{did_you_mean(attribute, offered)}; if "
                     f"the module is yours, add {OFFERED} = [{attribute!r}] to it; if not, and if you trust it, use "
                     f"--allow {reference}")


def _offered(module: str) -> list[str] | None:
    """Read the names that a module offers from its source text, without importing it; None if there is no such
    module."""
    if (loaded := sys.modules.get(module)) is not None:  # an interactive session has no source
        return [name for name in getattr(loaded, OFFERED, ()) if isinstance(name, str)]
    spec = _find(module)
    if spec is None:
        return None
    try:
        tree = ast.parse(Path(spec.origin or "").read_bytes())
    except (OSError, ValueError):  # compiled, built in, or without a file
        return []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == [OFFERED]:
            listed = getattr(statement.value, "elts", [])
            return [item.value for item in listed if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return []


def _find(module: str) -> ModuleSpec | None:
    """Return where a module would be imported from, or None if it is not found. Nothing is imported.

    ``importlib.util.find_spec`` is not used, because it imports the parent packages.
    """
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and depth < len(parts):
            return None
    return spec


def call_extension(key: str, name: str, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call users' code and turn whatever it raises into an :class:`InputError` that begins with ``key``."""
    try:
        return function(*arguments, **named)
    except FedgapError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{key}: {name} failed ({reason})") from error


@dataclass(frozen=True)
class Registry:
    """All known objects of one kind, such as the schemes, by name.

    >>> from fedgap.registry import SELECTION
    >>> SELECTION.group, "fastest_half" in SELECTION.names()
    ('fedgap.selection', True)
    >>> rule = SELECTION.load("fastest_half")
    >>> int(rule(fedgap.Scenario.load("paper-mnist")).sum())
    5
    """

    kind: str
    """The last part of the entry-point group ``fedgap.KIND``."""
    noun: str
    """What one object is called in error messages."""
    built_in: Mapping[str, str]
    """``package.module:NAME`` of each name that comes with fedgap, in the order in which lists show them."""
    file_suffix: str = ""
    """If not empty, paths of files with this ending are valid names as well."""

    @property
    def group(self) -> str:
        """The entry-point group that other packages use."""
        return f"fedgap.{self.kind}"

    def added(self) -> dict[str, str]:
        """Names that installed packages add, with the object that each refers to."""
        from importlib.metadata import entry_points

        return {point.name: point.value for point in entry_points(group=self.group) if point.name not in self.built_in}

    def names(self) -> list[str]:
        """Return every known name: first those that come with fedgap, then those that packages add."""
        return [*self.built_in, *sorted(self.added())]

    def __contains__(self, name: object) -> bool:
        """Whether a name is known. Installed packages are searched only if it is not one of fedgap's names."""
        return name in self.built_in or name in self.added()

    def check(self, name: str, key: str | None = None, also: Sequence[str] = ()) -> None:
        """Raise an :class:`InputError` unless ``name`` can name an object of this kind.

        It may be a known name, have the form ``package.module:NAME``, or end in :attr:`file_suffix`.

        :param key: the key of the file or the argument that gave the name, for the error message;
        :param also: names of another kind that are valid here as well.
        """
        is_file = bool(self.file_suffix) and name.endswith(self.file_suffix)
        if ":" not in name and not is_file and name not in self and name not in also:
            names = [*self.names(), *also]
            file = f" a {self.file_suffix} file," if self.file_suffix else ""
            known = f"{'one of ' if len(names) > 1 else ''}{', '.join(names)}"
            raise InputError(f"{key or self.noun}: must be {known},{file} or package.module:NAME; "
                             f"got {name[:60]!r}{did_you_mean(name, names)}")

    def load(self, name: str, key: str | None = None) -> Any:
        """Return the object with this name.

        :param key: the key of the file or the argument that gave the name, for error messages.
        """
        self.check(name, key)
        reference = self.built_in.get(name) or (name if ":" in name else self.added()[name])
        if reference == name:
            check_permission(reference, key or self.noun, lambda: [*self.built_in.values(), *self.added().values()])
        return import_object(reference, key or self.noun)


SCHEMES = Registry("schemes", "scheme", {
    name: f"fedgap.planning.schemes.{name}:SCHEME"
    for name in ("proposed", "no_pruning", "all_clients", "no_generalization", "fixed_power", "fixed_frequency",
                 "measured")
} | {"forecast": "fedgap.planning.schemes.by_forecast:SCHEME"})
"""Schemes: :class:`fedgap.Scheme` objects, which restrict what the planning problem P1 may decide."""

FLEETS = Registry("fleets", "fleet", {name: f"fedgap.config.fleet_recipes:{name}" for name in ("rayleigh", "city")})
"""Functions from a seed and keyword arguments to clients, as columns or as one mapping per client."""

MODELS = Registry("models", "model", {
    "lenet5": "fedgap.learning.models.lenet:LeNet5",
    "mlp": "fedgap.learning.models.mlp:MLP",
    **{f"resnet{depth}": f"fedgap.learning.models.resnet:resnet{depth}" for depth in (20, 32, 44, 56, 110)},
})
"""Factories (classes or functions) that return a ``torch.nn.Module``."""

DATA = Registry("data", "data set", {
    name: f"fedgap.learning.data.load:{name.replace('-', '_')}"
    for name in ("embedded", "mnist", "fashion-mnist", "cifar10")
}, file_suffix=".npz")
"""Functions that return a :class:`fedgap.Dataset`, two torch data sets or four arrays."""

IMPORTANCE = Registry("importance", "importance rule", {
    name: f"fedgap.learning.importance:{name}" for name in ("taylor", "magnitude", "random")
})
"""Importance rules, which rank weights before they are pruned: objects with the methods of
``fedgap.learning.importance.ImportanceRule``."""

AGGREGATORS = Registry("aggregators", "aggregator", {
    "mean": "fedgap.learning.aggregators:mean",
    **{name: f"fedgap.learning.robust_aggregators:{name}"
       for name in ("clipped_mean", "coordinate_trimmed_mean", "coordinate_median")},
})
"""Functions by which the server combines the clients' updates into one; see ``fedgap.learning.aggregators``."""

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

RULES = Registry("rules", "rule", {
    "random_k": "fedgap.rules.random_k:RandomK",
    "power_of_choice": "fedgap.rules.power_of_choice:PowerOfChoice",
    "oort": "fedgap.rules.oort:Oort",
    "fed_cbs": "fedgap.rules.fed_cbs:FedCBS",
    "fed_ent_opt": "fedgap.rules.fed_ent_opt:FedEntOpt",
    "luo": "fedgap.rules.luo:LuoSampling",
    "fedzero": "fedgap.rules.fedzero:FedZero",
})
"""Published rules that choose the clients of each round: :class:`fedgap.rules.rule.RoundRule` classes. Each is also a
policy of the same name."""

_RULED = "fedgap.planning.policies.ruled_rounds:RuledRounds"
"""The policy class that selects the clients of each round by one of :data:`RULES`."""


class _Policies(Registry):
    """The registry of policies. Every name in :data:`RULES` is also the name of a policy."""

    def added(self) -> dict[str, str]:
        """Names that installed packages add, as policies or as rules."""
        return {**super().added(), **dict.fromkeys(RULES.added(), _RULED)}

    def load(self, name: str, key: str | None = None) -> Any:
        """Return the policy with this name; for a rule, the policy that follows it."""
        found = super().load(name, key)
        return partial(found, name) if name in RULES else found


POLICIES = _Policies("policies", "policy", {
    "static": "fedgap.planning.policies.static:Static",
    "replan": "fedgap.planning.policies.replan:Replan",
    "lyapunov": "fedgap.planning.policies.lyapunov:Lyapunov",
    "random": "fedgap.planning.policies.random_clients:RandomClients",
    **dict.fromkeys(RULES.built_in, _RULED),
})
"""Policies, which decide each round of a run while channels and clients change: functions from a
:class:`fedgap.planning.policies.policy.PolicyStart` to a :class:`fedgap.planning.policies.policy.Policy`."""

TRACKERS = Registry("trackers", "tracker", {"tensorboard": "fedgap.running.tensorboard_tracker:TensorBoard"})
"""Additional logs of a run: functions from a :class:`fedgap.Run` to a :class:`fedgap.running.tracker.Tracker`."""
