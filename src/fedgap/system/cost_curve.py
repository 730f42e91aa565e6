"""What a pruned model still costs, as a share of the full one: a convex, piecewise linear curve s(λ)."""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Floats


@dataclass(frozen=True, eq=False)
class CostCurve:
    """s(λ): falls from s(0) = 1, convex and linear between its knots; one curve for bits and operations."""

    ratio: Floats
    """λ at the knots, (J,), rising from 0."""
    share: Floats
    """s at the knots, (J,), falling from 1."""

    @classmethod
    def covering(cls, ratio: Floats, *shares: Floats) -> "CostCurve":
        """The least curve above several convex ones with knots at the same ratios.

        Two curves may cross between knots; their maximum then has an additional knot. The curve ends where more pruning
        saves nothing.

        :param ratio: (J,), rising from 0; :param shares: (J,) each, convex and falling from 1.
        """
        knots = [ratio]
        for i, first in enumerate(shares):
            for second in shares[i + 1 :]:
                before, after = (first - second)[:-1], (first - second)[1:]
                crosses = before * after < 0.0
                part = before[crosses] / (before - after)[crosses]
                knots.append(ratio[:-1][crosses] + part * np.diff(ratio)[crosses])
        at = np.unique(np.concatenate(knots))
        highest = np.max([np.interp(at, ratio, share) for share in shares], axis=0)
        falls = np.append(True, np.diff(highest) < 0.0)
        return cls(at[falls], highest[falls])

    def share_at(self, ratio: Floats) -> Floats:
        """s(λ); constant beyond the last knot."""
        return np.asarray(np.interp(ratio, self.ratio, self.share))

    def ratio_at(self, share: Floats) -> Floats:
        """The least λ with s(λ) = ``share``."""
        return np.asarray(np.interp(share, self.share[::-1], self.ratio[::-1]))
