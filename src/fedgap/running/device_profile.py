"""Measure what an experiment's model costs on this device: seconds, memory and joules of a step, and the speed of an
upload."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedgap.config import Experiment
from fedgap.errors import InputError
from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput
from fedgap.learning.data import load
from fedgap.learning.engine import check_device
from fedgap.learning.models import build
from fedgap.learning.models.layout import Layout
from fedgap.learning.sizes import flops_per_sample, gradient_bits
from fedgap.learning.structure import Structure, structure_of
from fedgap.report.number_format import four_digits, si
from fedgap.report.printable import Printable
from fedgap.report.uncut_table import Sheet
from fedgap.running.prepare import data_arguments, model_arguments
from fedgap.streams import stream_seed

if TYPE_CHECKING:
    from rich.console import RenderableType

RATIOS = (0.0, 0.1, 0.3, 0.5, 0.7)
"""Pruning ratios at which a step is timed, up to the largest that the scenario allows."""
LEAST_S = 0.2
"""A measurement repeats a step for at least this many seconds, because short times are noisy."""
MOST_STEPS = 8
"""Maximum number of local steps in a timed round. With this many, the rest of a round is a small part of its time."""
RATE = 1e-3
"""Learning rate of the timed steps; their results are not used."""
IDLE_S = 1.0
"""For how many seconds the idle power is measured."""
NOMINAL_CLOCK_HZ = 1e9
"""The clock that is assumed if the system does not report it; only clock × flops_per_cycle matters for seconds."""
MOST_BITS_PER_HZ = 8.0
"""The best spectral efficiency that a radio link is given. A faster link is described by more bandwidth."""
PATIENCE_S = 60.0
"""Maximum duration of an upload in seconds."""


@dataclass(frozen=True)
class Measured:
    """A quantity that was measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the measurements."""
        return float(np.median(self.values))

    def text(self, unit: str) -> str:
        """The median with the smallest and largest value, as text with this unit."""
        return f"{si(self.median, unit)} ({si(min(self.values), unit)} to {si(max(self.values), unit)})"

    def to_dict(self) -> dict[str, float]:
        """The median, the smallest and the largest value, for JSON."""
        return {"median": self.median, "least": min(self.values), "most": max(self.values)}


def link_figures(rate: float, noise_psd_w_hz: float, power_w: float, bandwidth_hz: float) -> dict[str, float]:
    """The uplink gain, bandwidth and power with which Shannon's formula gives ``rate`` bit/s. A fast link gets more
    bandwidth."""
    bandwidth = max(bandwidth_hz, rate / MOST_BITS_PER_HZ)
    gain = float(np.expm1(rate / bandwidth * np.log(2.0))) * bandwidth * noise_psd_w_hz / power_w
    return {"uplink_gain": four_digits(gain), "bandwidth_hz": four_digits(bandwidth), "max_power_w": power_w}


@dataclass(frozen=True, eq=False, repr=False)
class DeviceProfile(Printable):
    """All measurements on a device; a quantity that the device cannot report is None."""

    name: str
    device: str
    batch_size: int
    """The batch size in the scenario."""
    flops: float
    """e: operations of one sample's gradient."""
    steps_s: dict[tuple[int, float], Measured]
    """Seconds of a client's step, by batch size and λ."""
    peak_bytes: int
    """Peak memory: of the whole process on a CPU, of the tensors on a GPU."""
    clock_hz: float | None
    idle_w: Measured | None
    busy_w: Measured | None
    upload_bit_s: Measured | None

    def client(self, noise_psd_w_hz: float, power_w: float, bandwidth_hz: float) -> dict[str, Any]:
        """The measured columns of a fleet file.

        The clock times ``flops_per_cycle`` is the measured speed; the capacitance is (P_busy − P_idle)/f³; the uplink
        gain is the one with which Shannon's formula gives the measured rate at ``power_w``."""
        clock = self.clock_hz or NOMINAL_CLOCK_HZ
        step = self.steps_s[self.batch_size, 0.0].median
        row: dict[str, Any] = {"name": self.name, "max_frequency_hz": clock,
                               "flops_per_cycle": four_digits(self.batch_size * self.flops / (clock * step))}
        if self.idle_w is not None and self.busy_w is not None:
            row["idle_power_w"] = four_digits(self.idle_w.median)
            if self.busy_w.median > self.idle_w.median:
                row["capacitance"] = four_digits((self.busy_w.median - self.idle_w.median) / clock**3)
        if self.upload_bit_s is not None:
            row |= link_figures(self.upload_bit_s.median, noise_psd_w_hz, power_w, bandwidth_hz)
        return row

    @property
    def left_out(self) -> list[str]:
        """Sentences that say what could not be measured, and why."""
        lines = []
        if self.clock_hz is None:
            lines.append(f"clock: the system does not report it; {si(NOMINAL_CLOCK_HZ, 'Hz')} is assumed")
        if self.busy_w is None:
            where = "nvidia-smi" if self.device == "cuda" else "/sys/class/powercap"
            lines.append(f"idle_power_w and capacitance: {where} reports no energy to this user")
        if self.upload_bit_s is None:
            lines.append("uplink_gain, bandwidth_hz and max_power_w: no --server was given to send to")
        return lines

    def time_share(self) -> tuple[list[float], list[float]]:
        """The measured pruning ratios λ, and for each the time of a step as a share of that at λ = 0, at the scenario's
        batch size."""
        pairs = sorted((ratio, step.median) for (batch, ratio), step in self.steps_s.items()
                       if batch == self.batch_size)
        return [ratio for ratio, _ in pairs], [min(seconds / pairs[0][1], 1.0) for _, seconds in pairs]

    def parts(self) -> list[RenderableType]:
        """The parts of the printed report: a table of the steps, and remarks."""
        ratios = sorted({ratio for _, ratio in self.steps_s})
        table = Sheet(f"A step of {self.name} on {self.device}", "batch", *(f"λ = {ratio:g}" for ratio in ratios))
        for batch in sorted({batch for batch, _ in self.steps_s}):
            table.add_row(str(batch), *(self.steps_s[batch, ratio].text("s") for ratio in ratios))
        lines = [f"Peak memory: {si(float(self.peak_bytes), 'B')}."]
        for what, value, unit in (("Idle power", self.idle_w, "W"), ("Power in steps", self.busy_w, "W"),
                                  ("Upload", self.upload_bit_s, "bit/s")):
            if value is not None:
                lines.append(f"{what}: {value.text(unit)}.")
        ratio, share = self.time_share()
        lines.append(f"At λ = {ratio[-1]:g} a step takes {share[-1]:.2f} of what it takes unpruned; without a "
                     f"model.cost_curve a plan assumes {1.0 - ratio[-1]:.2f}.")
        return [table, *lines, *(f"Left out: {line}." for line in self.left_out)]

    def comments(self) -> list[str]:
        """The spreads of the measurements, one line each, as comments for the fleet file."""
        lines = [f"{self.name}: a step of {batch} samples at pruning ratio {ratio:g} takes {step.text('s')}"
                 for (batch, ratio), step in sorted(self.steps_s.items())]
        lines.append(f"{self.name}: peak memory {self.peak_bytes} bytes")
        lines += [f"{self.name}: {what} {value.text(unit)}" for what, value, unit in (
            ("idle power", self.idle_w, "W"), ("power in steps", self.busy_w, "W"),
            ("upload", self.upload_bit_s, "bit/s")) if value is not None]
        return [*lines, *(f"{self.name}: left out {line}" for line in self.left_out)]

    def to_dict(self) -> dict[str, Any]:
        """All measurements, for JSON."""
        measured = {"idle_power_w": self.idle_w, "busy_power_w": self.busy_w, "upload_bit_s": self.upload_bit_s}
        return {
            "name": self.name, "device": self.device, "clock_hz": self.clock_hz, "peak_bytes": self.peak_bytes,
            "steps": [{"batch_size": batch, "ratio": ratio, **step.to_dict()}
                      for (batch, ratio), step in sorted(self.steps_s.items())],
            **{key: None if value is None else value.to_dict() for key, value in measured.items()},
            "left_out": self.left_out,
        }


def profile(experiment: Experiment, *, name: str | None = None, repeats: int = 5,
            server: tuple[str, int] | None = None) -> DeviceProfile:
    """Measure this device with an experiment's model, pruned as the experiment prunes it.

    :param name: what to call the device; by default its host name; :param repeats: number of measurements of each
    quantity;
    :param server: host and port where ``fedgap profile --listen PORT`` waits; without it no upload is measured."""
    dataset = load(**data_arguments(experiment))
    engine = experiment.engine
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    device = check_device(engine.device)
    module = build(**model_arguments(experiment), input_shape=dataset.shape, classes=dataset.classes,
                   seed=stream_seed(experiment.seed, "model"))
    flops = float(flops_per_sample(module, dataset.shape))
    batch_size, largest = experiment.step_limits
    measured = measure_steps(
        module.to(device), structure_of(experiment.pruning.structure, module, dataset.shape),
        (dataset.train_x, dataset.train_y), ratios=[ratio for ratio in RATIOS if ratio <= largest] or [0.0],
        batches=sorted({max(1, batch_size // 2), batch_size, 2 * batch_size}),
        local_steps=min(experiment.usual_local_steps, MOST_STEPS), repeats=repeats)
    upload = None if server is None else Measured(
        tuple(send_to(server, gradient_bits(module) // 8) for _ in range(repeats)))
    return DeviceProfile(
        name=name or socket.gethostname(), device=device.type, batch_size=batch_size, flops=flops,
        steps_s=measured.steps_s, peak_bytes=measured.peak_bytes, clock_hz=measured.clock_hz, idle_w=measured.idle_w,
        busy_w=measured.busy_w, upload_bit_s=upload,
    )


class MeasuredSteps(NamedTuple):
    """What steps cost on this device; a quantity that it cannot report is None."""

    steps_s: dict[tuple[int, float], Measured]
    """Seconds of a step, by batch size and pruning ratio λ."""
    peak_bytes: int
    clock_hz: float | None
    idle_w: Measured | None
    busy_w: Measured | None


def measure_steps(module: nn.Module, structure: Structure, samples: tuple[Tensor, Tensor], *, ratios: Sequence[float],
                  batches: Sequence[int], local_steps: int, repeats: int) -> MeasuredSteps:
    """Time a client's local steps on the module's device as a deployed node does them: with channels on the smaller
    model, including the time to build it.

    Ratios and batch sizes are measured in turn, so that other work on the device disturbs all of them equally."""
    device = next(module.parameters()).device
    meter = energy_meter(device)
    idle = _power(meter, lambda: time.sleep(IDLE_S), repeats=1)
    rounds = {(batch, ratio): client_round(module, structure, samples, ratio, batch, local_steps)
              for batch in batches for ratio in ratios}
    seconds: dict[tuple[int, float], list[float]] = {key: [] for key in rounds}
    for _ in range(repeats):
        for key, function in rounds.items():
            seconds[key].append(_seconds(function) / local_steps)
    busy = _power(meter, partial(_seconds, rounds[batches[-1], ratios[0]]), repeats)
    return MeasuredSteps({key: Measured(tuple(values)) for key, values in seconds.items()}, _peak_bytes(device),
                         None if device.type == "cuda" else clock_hz(), idle, busy)


def repeated_seconds(function: Callable[[], None], repeats: int) -> Measured:
    """The duration of a function in seconds, measured ``repeats`` times."""
    return Measured(tuple(_seconds(function) for _ in range(repeats)))


def client_round(module: nn.Module, structure: Structure, samples: tuple[Tensor, Tensor], ratio: float, batch: int,
                 local_steps: int) -> Callable[[], None]:
    """A function that computes the local steps of a client with this pruning ratio on the first of ``samples``."""
    inputs, labels = samples
    layout, device = Layout.of(module), next(module.parameters()).device
    index = torch.arange(local_steps * batch).reshape(1, local_steps, batch) % len(labels)
    weights = layout.weights(module)[None]
    given = RoundInput(weights, structure.ranks(weights.abs()), layout.buffers(module)[None].to(device), (0,), (ratio,),
                       inputs[index].to(device), labels[index].to(device), structure)
    local, rates = LocalTraining(local_steps), weights.new_full((1,), RATE)

    def steps() -> None:
        reference.updates(module, given, local, rates)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return steps


def _seconds(step: Callable[[], None]) -> float:
    """The mean duration of ``step`` in seconds, over as many calls as take LEAST_S."""
    step()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < LEAST_S:
        step()
        count += 1
    return (time.perf_counter() - began) / count


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _power(meter: Callable[[], float] | None, work: Callable[[], object], repeats: int) -> Measured | None:
    """Watts that the device draws while it does ``work``, measured ``repeats`` times; None without a meter."""
    if meter is None:
        return None
    values = []
    for _ in range(repeats):
        joules, began = meter(), time.perf_counter()
        work()
        values.append((meter() - joules) / (time.perf_counter() - began))
    return Measured(tuple(values))


def energy_meter(device: torch.device, root: Path = Path("/sys/class/powercap")) -> Callable[[], float] | None:
    """A function that returns the joules counted so far, or None if this user may not read any: RAPL on a CPU, power
    over time on a GPU."""
    if device.type == "cuda":
        query = ["nvidia-smi", f"--id={device.index or 0}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        joules, last = 0.0, time.perf_counter()

        def gpu() -> float:
            """Add up power × time; the present power, which the driver averages over a second, stands for the time
            since the last call."""
            nonlocal joules, last
            watts = float(subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout)
            now = time.perf_counter()
            joules, last = joules + watts * (now - last), now
            return joules

        return gpu if _works(gpu) else None
    packages = [path / "energy_uj" for path in sorted(root.glob("*")) if re.fullmatch(r".*-rapl:\d+", path.name)]

    def rapl() -> float:
        return sum(int(path.read_text()) for path in packages) * 1e-6

    return rapl if packages and _works(rapl) else None


def _works(meter: Callable[[], float]) -> bool:
    try:
        meter()
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return True


def clock_hz(root: Path = Path("/")) -> float | None:
    """The processor's highest clock in Hz as Linux reports it, or None."""
    limit, listed = root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", root / "proc/cpuinfo"
    try:
        return 1e3 * int(limit.read_text())
    except (OSError, ValueError):
        pass
    try:
        return 1e6 * max(float(value) for value in re.findall(r"cpu MHz\s*:\s*([0-9.]+)", listed.read_text()))
    except (OSError, ValueError):
        return None


# --- the upload -------------------------------------------------------------------------------------------------------

_LENGTH = 8
"""Bytes of the number that announces the length of an upload, and of the one that confirms its arrival."""


def send_to(server: tuple[str, int], size: int) -> float:
    """Send ``size`` bytes to a listening :func:`receive_one`; returns the speed in bit/s until all have arrived."""
    try:
        with socket.create_connection(server, timeout=PATIENCE_S) as connection:
            began = time.perf_counter()
            connection.sendall(size.to_bytes(_LENGTH, "big") + bytes(size))
            arrived = int.from_bytes(connection.recv(_LENGTH), "big")
    except OSError as error:
        raise InputError(f"--server: {server[0]}:{server[1]} cannot be reached ({error}); run "
                         "fedgap profile --listen PORT there") from None
    if arrived != size:
        raise InputError(f"--server: {server[0]}:{server[1]} did not confirm the upload; run fedgap profile "
                         "--listen PORT there, and name that port")
    return 8.0 * size / (time.perf_counter() - began)


def receive_one(listener: socket.socket) -> int:
    """Accept one upload and confirm it; returns its number of bytes."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        received, size = 0, None
        head = b""
        while size is None or received < size:
            part = connection.recv(2**20)
            if not part:
                break
            if size is None:
                head += part
                if len(head) >= _LENGTH:
                    size, received = int.from_bytes(head[:_LENGTH], "big"), len(head) - _LENGTH
            else:
                received += len(part)
        connection.sendall(received.to_bytes(_LENGTH, "big"))
        return received

