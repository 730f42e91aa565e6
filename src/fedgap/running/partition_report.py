"""The report of ``fedgap partition``: label histogram and generalization statement of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgap.config import Scenario
from fedgap.learning.partition import Partition
from fedgap.report.number_format import number
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.partition_picture import PicturedPartition, draw_partitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure



@dataclass(frozen=True, eq=False)
class PartitionPanel:
    """One partition and the scenario for planning with it."""

    title: str
    overrides: tuple[str, ...]
    partition: Partition
    scenario: Scenario
    """The scenario for planning, with the label histograms of this partition."""

    @property
    def phi(self) -> NDArray[np.float64]:
        """The generalization statement φ_n of each client, shape (N,)."""
        return self.scenario.phi()

    def table(self) -> Sheet:
        """A table with one row per client."""
        counts = self.partition.label_counts
        table = Sheet(self.title, "client", "samples", *map(str, range(counts.shape[1])), "φ")
        for name, row, phi in zip(self.scenario.names, counts, self.phi, strict=True):
            table.add_row(name, str(row.sum()), *map(str, row), number(phi))
        return table

    def to_dict(self) -> dict[str, Any]:
        """The overrides, φ and histograms, for JSON."""
        return {"overrides": list(self.overrides), "scenario_hash": self.scenario.hash(), "phi": self.phi.tolist(),
                "label_counts": self.partition.label_counts.tolist(),
                "target_counts": self.partition.target_counts.tolist()}


@dataclass(frozen=True, eq=False, repr=False)
class PartitionReport(Printable):
    """Several partitions side by side."""

    panels: Sequence[PartitionPanel]

    def parts(self) -> list[Sheet]:
        """One table per partition."""
        return [panel.table() for panel in self.panels]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the paper's Fig. 3: label histograms as bars, φ as a line. Saved if ``path`` is given."""
        return draw_partitions([PicturedPartition(panel.title, panel.partition.label_counts, panel.phi,
                                                  panel.scenario.names) for panel in self.panels], path)

    def to_dict(self) -> dict[str, Any]:
        """All panels, for JSON."""
        return {"panels": [panel.to_dict() for panel in self.panels]}
