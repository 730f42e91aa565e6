"""Compare a deployment's planned seconds and bytes with those measured by its nodes, and correct the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fedgap.arrays import Floats
from fedgap.config import Scenario
from fedgap.config.yaml_files import write_document
from fedgap.errors import InputError
from fedgap.report.number_format import four_digits, si
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class PlannedMeasured(Printable):
    """Planned and measured seconds and bytes of each node, summed over the rounds that it answered, (N,)."""

    names: tuple[str, ...]
    rounds: Floats
    planned_s: Floats
    """Seconds of computing according to the plan."""
    measured_s: Floats
    """Seconds of computing and encoding, measured by the node's own clock."""
    planned_bytes: Floats
    measured_bytes: Floats
    planned_total_s: float
    """Planned seconds of all rounds, including uploads and downloads."""
    measured_total_s: float
    """Seconds of the same rounds, measured by the server's clock."""

    def parts(self) -> list[RenderableType]:
        """A table with one row per node, and a sentence with the totals."""
        table = Sheet("Planned and measured", "node", "rounds", "computing planned", "measured", "ratio",
                      "uploads planned", "measured", "ratio")
        for n, name in enumerate(self.names):
            if not self.rounds[n]:
                table.add_row(name, "0", *["–"] * 6, style="dim")
                continue
            table.add_row(
                name, f"{self.rounds[n]:.0f}", si(self.planned_s[n], "s"), si(self.measured_s[n], "s"),
                f"{self.measured_s[n] / self.planned_s[n]:.3g}", si(self.planned_bytes[n], "B"),
                si(self.measured_bytes[n], "B"), f"{self.measured_bytes[n] / self.planned_bytes[n]:.3g}")
        total = (f"All rounds: planned {self.planned_total_s:.4g} s, measured {self.measured_total_s:.4g} s, ratio "
                 f"{self.measured_total_s / self.planned_total_s:.3g}. Nodes do not report joules.")
        return [table, total]

    def to_dict(self) -> dict[str, Any]:
        """The sums and ratios of each node and of all rounds, for JSON."""
        keys = ("rounds", "planned_s", "measured_s", "planned_bytes", "measured_bytes")
        nodes = [{"name": name, **{key: float(getattr(self, key)[n]) for key in keys},
                  "seconds_ratio": _ratio(self.measured_s[n], self.planned_s[n]),
                  "bytes_ratio": _ratio(self.measured_bytes[n], self.planned_bytes[n])}
                 for n, name in enumerate(self.names)]
        return {"nodes": nodes, "planned_s": self.planned_total_s, "measured_s": self.measured_total_s,
                "ratio": _ratio(self.measured_total_s, self.planned_total_s)}


def _ratio(measured: float, planned: float) -> float | None:
    return float(measured / planned) if planned else None


def planned_and_measured(folder: Path) -> PlannedMeasured:
    """Read from a deployed run what was planned and what its nodes measured."""
    run = Run(folder)
    job, history = run.trained_job, run.history
    size = len(job.names)
    rounds, planned_s, measured_s, planned_bytes, measured_bytes = np.zeros((5, size))
    if not any("client_measured_s" in event for event in history):
        raise InputError(f"{folder}: must be a deployment (fedgap deploy), which measures its nodes; this run was "
                         "simulated")
    share = job.kept_share
    for event in history:
        segment = int(job.schedule[event["round"]])
        for n, seconds, sent in zip(event["clients"], event["client_measured_s"], event["client_uploaded_bytes"],
                                    strict=True):
            if seconds is None or sent is None:
                continue
            rounds[n] += 1
            planned_s[n] += job.compute_s[segment, n]
            measured_s[n] += seconds
            planned_bytes[n] += share[segment, n] * job.gradient_bits[n] * job.upload_bits / 32.0 / 8.0
            measured_bytes[n] += sent
    return PlannedMeasured(
        job.names, rounds, planned_s, measured_s, planned_bytes, measured_bytes,
        planned_total_s=float(sum(event["delay_s"] for event in history)),
        measured_total_s=float(sum(event["measured_s"] for event in history)))


def corrected_fleet(folder: Path, out: Path) -> PlannedMeasured:
    """Write the run's scenario with each node's ``flops_per_cycle`` changed so that planned seconds equal the measured
    ones.

    A node that answered no round keeps its figures. The figures of the radio are kept, because nodes measure only
    computing."""
    seen = planned_and_measured(folder)
    document = yaml.safe_load((folder / "scenario.yaml").read_text(encoding="utf-8"))
    for client, planned, measured in zip(document["clients"], seen.planned_s, seen.measured_s, strict=True):
        if measured > 0.0 and planned > 0.0:
            client["flops_per_cycle"] = four_digits(float(client["flops_per_cycle"]) * planned / measured)
    write_document(Scenario.from_dict(document).to_dict() | {"format": 1}, out)
    return seen
