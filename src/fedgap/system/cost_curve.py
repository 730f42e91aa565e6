"""What a pruned model costs as a share of what the full model costs: a convex, piecewise linear curve s(λ).

It is not 1 − λ where whole channels are pruned.
"""

from dataclasses import dataclass

import numpy as np

from fedgap.arrays import Floats


@dataclass(frozen=True, eq=False)
class CostCurve:
    """The share s(λ) of bits and of operations that remains at pruning ratio λ.

    The curve falls from s(0) = 1, is convex, and is linear between its knots.
    """

    ratio: Floats
    """λ at the knots, (J,), rising from 0."""
    share: Floats
    """s at the knots, (J,), falling from 1."""

    @classmethod
    def covering(cls, ratio: Floats, *shares: Floats) -> "CostCurve":
        """Return the maximum of several convex curves with knots at the same ratios.

        Where two of them cross between knots, the result has an additional knot. It ends where more pruning saves
        nothing more.

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
        """Return s(λ), elementwise; it is constant beyond the last knot."""
        return np.asarray(np.interp(ratio, self.ratio, self.share))

    def ratio_at(self, share: Floats) -> Floats:
        """Return the smallest λ with s(λ) = ``share``, elementwise."""
        return np.asarray(np.interp(share, self.share[::-1], self.ratio[::-1]))
