"""Compositions: which selections a plan has, and in how many rounds each."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fedgap.arrays import Bools


@dataclass(frozen=True, eq=False)
class Part:
    """Rounds of one kind with the same selection.

    Parts compare by value, so that a composition can be a member of a set.
    """

    kind: int
    """The kind of round, an index of ``Task.kinds``."""
    selected: Bools
    """The clients that take part, (N,)."""
    rounds: int
    """The number of these rounds."""

    @cached_property
    def key(self) -> tuple[int, bytes]:
        """The kind and the selection in a hashable and sortable form."""
        return self.kind, self.selected.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self.key, self.rounds) == (other.key, other.rounds)

    def __hash__(self) -> int:
        return hash((self.key, self.rounds))


@dataclass(frozen=True)
class Composition:
    """The selections of a plan with their numbers of rounds.

    :mod:`fedgap.planning.fixed_composition` computes the best plan that has them.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Composition":
        """Make a sorted composition: parts with equal kind and selection are merged, parts without rounds left out."""
        merged: dict[tuple[int, bytes], Part] = {}
        for part in parts:
            before = merged[part.key].rounds if part.key in merged else 0
            merged[part.key] = Part(part.kind, part.selected, before + part.rounds)
        return cls(tuple(part for _, part in sorted(merged.items()) if part.rounds))

    def __len__(self) -> int:
        return len(self.parts)
