"""What is measured about nodes before planning: seconds of a step by pruning ratio λ, memory, power, and the time that
messages take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgap.config import Experiment
from fedgap.deploy.packet import Packet, PacketError, one_line
from fedgap.deploy.transport import Answer, Patience, Transport
from fedgap.errors import FedgapError
from fedgap.learning.codec import HEADER_BYTES
from fedgap.learning.data import Dataset
from fedgap.planning.cost_curve_fit import convex_upper_fit
from fedgap.report.number_format import four_digits, si
from fedgap.running.device_profile import MOST_STEPS, RATIOS, Measured, link_figures
from fedgap.running.prepare import model_arguments, model_sizes
from fedgap.system import Fleet, download_delay

EXCHANGES = 3
"""Number of times that each kind of message is timed."""
LARGEST_GAIN = 1e29
"""The gain given to a downlink that is faster than its bandwidth allows; a scenario accepts no larger gain."""
LEAST_FALL = 1e-3
"""A measured cost curve falls by at least this much per unit of λ, because planning needs a curve that saves
something."""


@dataclass(frozen=True)
class NodeProfile:
    """What one node measured, and what the server measured about messages to it; None for what could not be
    measured."""

    ratios: tuple[float, ...]
    steps_s: tuple[Measured, ...]
    """Seconds of a step at each pruning ratio."""
    follow_s: Measured
    """Seconds of a round in addition to its steps, for reading the last round's direction and ranking the weights."""
    peak_bytes: int
    clock_hz: float | None
    idle_w: Measured | None
    busy_w: Measured | None
    exchange_s: Measured | None = None
    """Seconds from sending the whole model until a short answer arrives."""
    upload_s: float | None = None
    """Additional seconds if the answer is a whole update instead of a short one."""

    @staticmethod
    def read(answer: Packet, ratios: Sequence[float]) -> NodeProfile:
        """Read and check a node's answer to a ``profile`` request with these ratios."""
        fields = answer.fields
        if fields.get("status") != "profiled":
            raise PacketError(one_line(fields.get("reason", fields.get("status"))))
        seconds = fields.get("seconds")
        if not isinstance(seconds, list) or len(seconds) != len(ratios):
            raise PacketError("seconds: must be one list for each ratio")
        idle, busy = (None if fields.get(key) is None else _measured(key, fields[key]) for key in ("idle_w", "busy_w"))
        clock = None if fields.get("clock_hz") is None else answer.number("clock_hz", 1e12)
        return NodeProfile(tuple(ratios), tuple(_measured("seconds", row) for row in seconds),
                           _measured("follow", fields.get("follow")), answer.whole("peak_bytes"), clock, idle, busy)

    @property
    def energy(self) -> tuple[float, float, float] | None:
        """Clock in Hz, idle power and power during steps in W; None unless all three are known and steps draw more than
        idling."""
        if self.clock_hz and self.idle_w is not None and self.busy_w is not None and (
                self.busy_w.median > self.idle_w.median):
            return self.clock_hz, self.idle_w.median, self.busy_w.median
        return None

    def figures(self, device: Mapping[str, Any], fleet: Fleet) -> dict[str, Any]:
        """The node's own figures, with measured ones replacing those that were measured.

        Nobody sets the node's clock and power, so the smallest values equal the largest. If joules are not reported,
        the clock stays as written in the node's file, and with it the power of the written capacitance.

        :param fleet: a fleet of this node alone, with its own figures."""
        energy, step = self.energy, self.steps_s[0].median
        clock = energy[0] if energy else float(device["max_frequency_hz"])
        work = float((fleet.batch_size * fleet.flops_per_sample)[0])
        row = {**device, "max_frequency_hz": clock, "min_frequency_hz": clock,
               "flops_per_cycle": four_digits(work / (clock * step))}
        if energy:
            row |= {"idle_power_w": four_digits(energy[1]),
                    "capacitance": four_digits((energy[2] - energy[1]) / clock**3)}
        if self.upload_s is None:
            return row
        link = link_figures(float(fleet.gradient_bits[0]) / self.upload_s, float(fleet.uplink_noise_psd_w_hz),
                            float(device["max_power_w"]), float(device["bandwidth_hz"]))
        return row | {**link, "min_power_w": link["max_power_w"]}

    def waiting(self, fleet: Fleet, position: int) -> dict[str, float]:
        """The figures that make this node's fixed seconds equal to the measured ones: its latency, and a faster
        downlink if the modelled download would take longer.

        :param fleet: all nodes with their measured figures, because they share the server's band."""
        exchange, download = 0.0 if self.exchange_s is None else self.exchange_s.median, download_delay(fleet)[position]
        figures = {"latency_s": four_digits(self.follow_s.median + max(0.0, exchange - float(download)))}
        if 0.0 < exchange < download:
            figures["downlink_gain"] = _downlink_gain(fleet, position, float(fleet.gradient_bits[position]) / exchange)
        return figures

    @property
    def left_out(self) -> list[str]:
        """Phrases that say what could not be measured."""
        lines = [] if self.energy else ["joules (the machine does not report them to this user)"]
        return lines if self.exchange_s is not None else [*lines, "messages (a test message was not answered)"]

    def text(self) -> str:
        """The profile in one line."""
        line = f"a step takes {self.steps_s[0].text('s')}, "
        if len(self.ratios) > 1:
            line += f"{self.steps_s[-1].median / self.steps_s[0].median:.2f} of it at λ = {self.ratios[-1]:g}, "
        line += f"peak memory {si(float(self.peak_bytes), 'B')}"
        if self.exchange_s is not None and self.upload_s is not None:
            line += f", messages {self.exchange_s.text('s')}, a whole upload {si(self.upload_s, 's')} more"
        return line + (f"; not measured: {', '.join(self.left_out)}" if self.left_out else "")

    def to_dict(self) -> dict[str, Any]:
        """All measurements, for JSON."""
        measured = {"follow_s": self.follow_s, "idle_w": self.idle_w, "busy_w": self.busy_w,
                    "exchange_s": self.exchange_s}
        return {"steps": [{"ratio": ratio, **step.to_dict()}
                          for ratio, step in zip(self.ratios, self.steps_s, strict=True)],
                "peak_bytes": self.peak_bytes, "clock_hz": self.clock_hz, "upload_s": self.upload_s,
                **{key: None if value is None else value.to_dict() for key, value in measured.items()},
                "left_out": self.left_out}


def _measured(key: str, values: Any) -> Measured:
    if not isinstance(values, list) or not 1 <= len(values) <= 1000 or not all(
            isinstance(value, float | int) and 0.0 < value < 1e9 for value in values):
        raise PacketError(f"{key}: must be a list of positive numbers")
    return Measured(tuple(map(float, values)))


def _downlink_gain(fleet: Fleet, position: int, rate: float) -> float:
    """The downlink gain ĥ with which the server reaches this client at ``rate`` bit/s."""
    band = float(fleet.server_bandwidth_hz)
    noise = band * float(fleet.downlink_noise_psd_w_hz[position])
    gain = float(np.expm1(min(rate / band, 1000.0) * np.log(2.0))) * noise / float(fleet.server_power_w)
    return four_digits(min(gain, LARGEST_GAIN))


def measure_nodes(transport: Transport, nodes: Sequence[int], experiment: Experiment, dataset: Dataset,
                  patience: Patience) -> dict[int, NodeProfile | str]:
    """Let all nodes measure at the same time, as they will compute; returns for each node its profile, or why there is
    none."""
    task = {"seed": experiment.seed, "model": model_arguments(experiment), "structure": experiment.pruning.structure,
            "input_shape": list(dataset.shape), "classes": dataset.classes}
    batch, largest = experiment.step_limits
    ratios = sorted({ratio for ratio in RATIOS if ratio < largest} | {largest, 0.0})
    request = Packet({"kind": "profile", "task": task, "ratios": ratios, "batch": batch,
                      "steps": min(experiment.usual_local_steps, MOST_STEPS)})
    measured: dict[int, NodeProfile | str] = dict.fromkeys(nodes, "gave no answer in time")
    for node, (answer, _) in _ask(transport, dict.fromkeys(nodes, request), patience.enrol_s, patience.poll_s).items():
        try:
            if answer.error:
                raise PacketError(answer.error)
            measured[node] = NodeProfile.read(Packet.from_bytes(answer.data, 2**20), ratios)
        except FedgapError as error:
            measured[node] = str(error)
    size = int(model_sizes(experiment, dataset)["gradient_bits"]) // 8 + HEADER_BYTES
    short, whole = _times(transport, nodes, size, patience)
    for node, profile in measured.items():
        if isinstance(profile, NodeProfile) and len(short[node]) == len(whole[node]) == EXCHANGES:
            exchange = Measured(tuple(short[node]))
            upload = Measured(tuple(whole[node])).median - exchange.median
            # The server checks for answers every poll_s seconds, so shorter times cannot be measured.
            measured[node] = replace(profile, exchange_s=exchange, upload_s=max(upload, patience.poll_s))
    return measured


def _times(transport: Transport, nodes: Sequence[int], size: int,
           patience: Patience) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """For each node, the seconds from sending ``size`` bytes until a short answer arrives, and until one of ``size``
    bytes arrives."""
    times: tuple[dict[int, list[float]], dict[int, list[float]]] = {n: [] for n in nodes}, {n: [] for n in nodes}
    for _ in range(EXCHANGES):
        for answer_bytes, by_node in zip((0, size), times, strict=True):
            packet = Packet({"kind": "echo", "bytes": answer_bytes}, {"payload": bytes(size)})
            for node, (answer, seconds) in _ask(transport, dict.fromkeys(nodes, packet), patience.round_s,
                                                patience.poll_s).items():
                if not answer.error and len(answer.data) >= answer_bytes:
                    by_node[node].append(seconds)
    return times


def _ask(transport: Transport, packets: dict[int, Packet], patience_s: float,
         poll_s: float) -> dict[int, tuple[Answer, float]]:
    """The answers that arrive within ``patience_s``, each with the seconds since the packets were sent."""
    began = time.monotonic()
    waiting = {ticket: node for node, ticket in transport.send(packets, patience_s).items()}
    answers: dict[int, tuple[Answer, float]] = {}
    in_time = True
    while waiting and in_time:
        in_time = time.monotonic() - began < patience_s  # checked first, so that answers are read once more
        for answer in transport.collect(list(waiting)):
            if (node := waiting.pop(answer.ticket, None)) is not None:
                answers[node] = answer, time.monotonic() - began
        if waiting and in_time:
            time.sleep(poll_s)
    return answers


def measured_curve(profiles: Sequence[NodeProfile], bits: Mapping[str, Sequence[float]] | None) -> dict[str, Any]:
    """A scenario's ``model.cost_curve`` for these nodes: at no ratio does a node's step take longer than the curve
    says.

    :param profiles: at least one, all with the same ratios; :param bits: the cost curve for the experiment's channels,
    whose bits are used; None for single weights."""
    ratio = np.array(profiles[0].ratios)
    shares = [[step.median / profile.steps_s[0].median for step in profile.steps_s] for profile in profiles]
    flops = convex_upper_fit(ratio, np.clip(np.max(shares, axis=0), 1e-6, 1.0))
    left = 1.0 - ratio if bits is None else np.interp(ratio, bits["ratio"], bits["bits"])
    return {"ratio": ratio.tolist(), "bits": left.tolist(),
            "flops": np.minimum(flops, 1.0 - LEAST_FALL * ratio).tolist()}
