"""Compositions: the selections of a plan, with the number of rounds of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fedgap.arrays import Bools


@dataclass(frozen=True, eq=False)
class Part:
    """Some equal rounds: their kind (an index of ``Task.kinds``), who takes part, (N,), and how many there are.

    Parts compare by value, so that a composition can be a member of a set.
    """

    kind: int
    selected: Bools
    rounds: int

    @cached_property
    def key(self) -> tuple[int, bytes]:
        """The kind and the selection, hashable and sortable."""
        return self.kind, self.selected.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self.key, self.rounds) == (other.key, other.rounds)

    def __hash__(self) -> int:
        return hash((self.key, self.rounds))


@dataclass(frozen=True)
class Composition:
    """A plan's selections and rounds; everything else follows (:mod:`fedgap.planning.fixed_composition`)."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Composition":
        """Parts of the same kind and selection become one, those without rounds are left out; sorted."""
        merged: dict[tuple[int, bytes], Part] = {}
        for part in parts:
            before = merged[part.key].rounds if part.key in merged else 0
            merged[part.key] = Part(part.kind, part.selected, before + part.rounds)
        return cls(tuple(part for _, part in sorted(merged.items()) if part.rounds))

    def __len__(self) -> int:
        return len(self.parts)
