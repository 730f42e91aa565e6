"""Importance of a weight: Q = (v·ρ)², a first-order estimate of the squared loss change when the weight is removed.

v is the gradient and ρ the weight. Your own rule is an object with the two methods of :class:`ImportanceRule`, named in
an experiment (``pruning.importance: package.module:NAME``) or added to the entry-point group ``fedgap.importance``."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedgap.errors import InputError
from fedgap.registry import IMPORTANCE, call_extension

KEY = "pruning.importance"
"""The experiment's key, for error messages."""

_SILENT = 1e-30
"""Replaces a known gradient of 0. It is smaller than any real gradient, but larger than the 0 of a weight that no
client kept."""
RULES = ("taylor", "magnitude", "random")
"""``taylor`` is the paper's; ``magnitude`` and ``random`` are comparisons."""


class ImportanceRule(Protocol):
    """How important each of a run's M weights is. Clients keep the most important ones.

    What a rule learns from the rounds is its memory: named float32 tensors of shape (M,). fedgap holds them, writes
    them into checkpoints and sends them to nodes that must catch up. The memory is empty at first.

    >>> import torch
    >>> class Steady:
    ...     def scores(self, weights, memory, *, round, seed):
    ...         return weights.abs() * memory.get("gradient", torch.ones_like(weights))
    ...     def observe(self, memory, weights, gradient, known):
    ...         return {"gradient": torch.where(known, gradient.abs(), memory.get("gradient", gradient.abs()))}
    >>> Steady().scores(torch.tensor([-2.0, 1.0]), {}, round=0, seed=0)
    tensor([2., 1.])
    """

    def scores(self, weights: Tensor, memory: Mapping[str, Tensor], *, round: int, seed: int) -> Tensor:
        """The score (M,) of every weight ω^(s) in round s = ``round``. Clients keep the weights with the highest
        scores."""

    def observe(self, memory: Mapping[str, Tensor], weights: Tensor, gradient: Tensor, known: Tensor
                ) -> dict[str, Tensor]:
        """The memory after a round, given the weights (M,) before its update, its global gradient (M,), and where the
        gradient is known (M,)."""


class RunsImportance(Protocol):
    """The importance of R runs at once, together with their memory; tensors are (R, M)."""

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """The score of every weight."""

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int] | None = None) -> None:
        """Update the memory after a round, for the runs ``heard``: those of which at least one client delivered."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all runs except these rows."""

    def state(self, row: int = 0) -> dict[str, Tensor]:
        """The tensors of one run that a checkpoint must hold, (1, M) each."""

    def load(self, *states: dict[str, Tensor]) -> None:
        """Restore the memory from one :meth:`state` for each run."""


def make_importance(rule: str, seeds: Sequence[int], **settings: Any) -> RunsImportance:
    """Create the importance of as many runs as there are ``seeds``. ``settings`` are fields of :class:`Importance` for
    built-in rules."""
    loaded = IMPORTANCE.load(rule, KEY)
    if rule in IMPORTANCE.built_in:
        made: RunsImportance = loaded(seeds=seeds, **settings)
        return made
    missing = [name for name in ("scores", "observe") if not callable(getattr(loaded, name, None))]
    if missing:
        raise InputError(f"{KEY}: {rule} must have the methods scores and observe; it has no {missing[0]}")
    return RuleImportance(loaded, seeds)


class RuleImportance:
    """Applies a user's :class:`ImportanceRule` to each of R runs."""

    def __init__(self, rule: ImportanceRule, seeds: Sequence[int]) -> None:
        self._rule, self._seeds = rule, list(seeds)
        self._memory: list[dict[str, Tensor]] = [{} for _ in seeds]

    def _called(self, method: str, *arguments: Any, **named: Any) -> Any:
        return call_extension(KEY, f"{type(self._rule).__name__}.{method}", getattr(self._rule, method), *arguments,
                              **named)

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """The score of every weight, (R, M)."""
        scores = [self._called("scores", run_weights, memory, round=round, seed=seed)
                  for run_weights, memory, seed in zip(weights, self._memory, self._seeds, strict=True)]
        if any(run_scores.shape != weights.shape[1:] or bool(run_scores.isnan().any()) for run_scores in scores):
            raise InputError(f"{KEY}: scores must return one number, not NaN, for each of {weights.shape[1]} weights")
        return torch.stack(scores)

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int] | None = None) -> None:
        """Update the memory after a round, for the runs ``heard`` (all by default): those of which at least one client
        delivered."""
        for row in range(len(weights)) if heard is None else heard:
            self._memory[row] = self._called("observe", self._memory[row], weights[row], gradient[row], known[row])

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all runs except these rows."""
        self._memory, self._seeds = [self._memory[row] for row in rows], [self._seeds[row] for row in rows]

    def state(self, row: int = 0) -> dict[str, Tensor]:
        """The tensors of one run that a checkpoint must hold, (1, M) each."""
        return {name: tensor[None] for name, tensor in self._memory[row].items()}

    def load(self, *states: dict[str, Tensor]) -> None:
        """Restore the memory from one :meth:`state` for each run."""
        self._memory = [{name: tensor[0] for name, tensor in state.items()} for state in states]


@dataclass
class Importance:
    """The built-in rules, with what they need from earlier rounds, for R runs at once.

    ``taylor``: Q_m = (v_m·ρ_m)², where v is the previous round's global gradient. ``current_weights`` False, as printed
    in the paper, also takes the previous round's weight ρ^(s−1); True, the repair, takes the current ρ^(s). Until a
    gradient is known, weights are ranked by magnitude. ``remember`` False, as printed, takes v of the previous round
    only, so that a weight that every client pruned has v = 0 and stays pruned for ever; True (part of the repair
    ``dense_first``) keeps each weight's last known gradient. ``random`` draws new scores in each round from ``seeds``,
    one seed for each run."""

    rule: str = "taylor"
    current_weights: bool = True
    remember: bool = True
    seeds: Sequence[int] = ()
    _gradient: Tensor | None = field(default=None, repr=False)
    _weights: Tensor | None = field(default=None, repr=False)
    _waiting: frozenset[int] = field(default=frozenset(), repr=False)  # rows without a gradient while others have one

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"the importance rule must be one of {', '.join(RULES)}; got {self.rule!r}")

    def scores(self, weights: Tensor, round: int) -> Tensor:
        """√Q of every weight, shape (R, M), for round s = ``round`` at weights ω^(s) (R, M).

        The root gives the same ranking as Q, and does not underflow in float32 when two small factors are multiplied.
        """
        if self.rule == "random":
            return torch.stack([_uniform(seed, round, weights) for seed in self.seeds])
        if self.rule == "magnitude" or self._gradient is None:
            return weights.abs()
        factor = weights if self.current_weights or self._weights is None else self._weights
        scores = (self._gradient * factor).abs()
        for row in self._waiting:
            scores[row] = weights[row].abs()
        return scores

    def observe(self, weights: Tensor, gradient: Tensor, known: Tensor, heard: Sequence[int] | None = None) -> None:
        """Store what round s taught: ω^(s) before its update, the global gradient v^(s), and where v^(s) is known; all
        (R, M).

        ``known`` is True where at least one accepted client kept the weight. ``heard`` lists the runs of which at least
        one client delivered (all by default); the other runs have learned nothing new."""
        rows = range(len(weights)) if heard is None else heard
        if self.rule != "taylor" or not len(rows):
            return
        gradient, before, factor = gradient.detach(), self._gradient, None
        waiting = frozenset(range(len(weights))) if before is None else self._waiting
        if not self.remember:
            # A kept weight whose unit was inactive in this round's batches also has v = 0. It must not rank equal to
            # a weight that everybody pruned; otherwise the tie-break by index would bring pruned weights back, in the
            # first layers only.
            new = torch.where(known & (gradient == 0), _SILENT, gradient)
        elif before is None:
            new = gradient.clone()
        else:
            new = torch.where(known, gradient, before)
            for row in waiting.intersection(rows):
                new[row] = gradient[row]
        if not self.current_weights:
            factor = weights.detach().clone()
        if before is not None and len(rows) < len(weights):
            for row in set(range(len(weights))).difference(rows):
                new[row] = before[row]
                if factor is not None and self._weights is not None:
                    factor[row] = self._weights[row]
        self._gradient, self._weights, self._waiting = new, factor, waiting.difference(rows)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all runs except these rows."""
        self.seeds = [self.seeds[row] for row in rows] if self.seeds else ()
        if self._gradient is None:
            return
        waiting = frozenset(place for place, row in enumerate(rows) if row in self._waiting)
        if len(waiting) == len(rows):
            self._gradient, self._weights, self._waiting = None, None, frozenset()
            return
        self._gradient, self._waiting = self._gradient[rows], waiting
        self._weights = None if self._weights is None else self._weights[rows]

    def state(self, row: int = 0) -> dict[str, Tensor]:
        """The tensors of one run that a checkpoint must hold, (1, M) each."""
        if row in self._waiting:
            return {}
        tensors = {"gradient": self._gradient, "weights": self._weights}
        return {name: tensor[row:row + 1] for name, tensor in tensors.items() if tensor is not None}

    def load(self, *states: dict[str, Tensor]) -> None:
        """Restore the memory from one :meth:`state` for each run."""
        def stacked(name: str) -> Tensor | None:
            some = next((state[name] for state in states if name in state), None)
            return None if some is None else torch.cat([state.get(name, torch.zeros_like(some)) for state in states])

        self._gradient, self._weights = stacked("gradient"), stacked("weights")
        self._waiting = (frozenset() if self._gradient is None else
                         frozenset(row for row, state in enumerate(states) if "gradient" not in state))


taylor, magnitude, random = (partial(Importance, rule) for rule in RULES)


def _uniform(seed: int, round: int, like: Tensor) -> Tensor:
    key = hashlib.blake2b(f"{seed}/{round}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.rand(like.shape[-1], generator=generator).to(like)
