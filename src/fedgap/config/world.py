"""The section ``world`` of a scenario: how channels, clients, processors and labels change during training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedgap.arrays import Floats
from fedgap.config.checked_fields import File, Number, Seed, count, wrong
from fedgap.config.document import Section
from fedgap.config.trace_csv import read_trace
from fedgap.errors import InputError
from fedgap.streams import stream
from fedgap.system.random_processes import moving_shadows, on_and_off, rayleigh_fading
from fedgap.system.trace import Trace

Seconds = Annotated[float, Number("s", above=0, reason="it is a duration")]
Share = Annotated[float, Number(above=0, at_most=1, reason="it is a share")]


class Fading(Section):
    """Fast fading that is correlated over time, with Clarke's spectrum."""

    doppler_hz: Annotated[float, Number("Hz", at_least=0, reason="it is a speed over a wavelength")]
    """The Doppler spread, speed divided by wavelength: 10 Hz for a pedestrian at 2 GHz. With 0 each client's fading
    does not change."""


class Shadowing(Section):
    """Shadows of buildings that change as a client moves."""

    deviation_db: Annotated[float, Number("dB", at_least=0, limit=40, reason="it is a standard deviation")] = 7.82
    """The standard deviation; 7.82 dB is a street canyon without line of sight (TR 38.901)."""
    decorrelation_m: Annotated[float, Number("m", above=0, reason="it is a distance")] = 13.0
    """The distance after which the correlation has fallen to 1/e; 13 m is a street canyon (TR 38.901)."""
    speed_m_s: Annotated[float, Number("m/s", at_least=0, reason="it is a speed")] = 1.4
    """How fast clients move; 1.4 m/s is walking."""


class Availability(Section):
    """Clients that come and go."""

    mean_on_s: Seconds
    """How long a client stays available, on average, in seconds."""
    mean_off_s: Seconds
    """How long a client is away, on average, in seconds."""
    daily: Annotated[float, Number(at_least=0, below=1, reason="a stay must have some duration at any hour")] = 0.0
    """How strongly both durations follow a daily rhythm. With 0.5, stays last between 0.5 and 1.5 times mean_on_s, and
    absences the inverse."""


class Throttling(Section):
    """Processors that become slow when they are hot."""

    mean_full_s: Seconds
    """How long a processor can run at its full clock, on average, in seconds."""
    mean_slow_s: Seconds
    """How long it is slow afterwards, on average, in seconds."""
    slow: Share = 0.5
    """Its highest clock frequency while it is slow, as a share of max_frequency_hz."""


class Drift(Section):
    """Label distributions that change from the initial ones to one in which a few classes have most of the samples."""

    kind: Literal["sudden", "gradual", "recurring"] = "sudden"
    """sudden (after half of the rounds), gradual (over the middle half of the rounds), or recurring (to the new
    distribution and back, with a change after each eighth of the rounds)."""
    who: Literal["target", "clients", "both"] = "target"
    """Whose labels change: the target's, the clients', or both."""
    classes: Annotated[int, count("some class must have most of the samples")] = 5
    """How many classes, counted from the first, have most of the samples after the change."""
    mass: Share = 0.8
    """The share of the samples that these classes then have."""
    memory_rounds: Annotated[int, count("a client needs data")] | None = None
    """Number of rounds after which clients discard their data. By default they keep all data since the start."""

    def require_classes(self, known: int) -> None:
        """Raise an error if more classes are to have most of the samples than there are."""
        if self.classes > known:
            raise InputError(f"world.drift.classes: must be at most the number of classes, {known}; got {self.classes}")

    def amount(self, progress: float) -> float:
        """Return how far the change is, from 0 to 1, after the share ``progress`` of the rounds."""
        if self.kind == "sudden":
            return float(progress >= 0.5)
        if self.kind == "gradual":
            return min(1.0, max(0.0, (progress - 0.25) / 0.5))
        return float(int(progress * 8.0) % 2)

    def labels(self, at_start: Floats, amount: float) -> Floats:
        """Return the label distribution (..., classes) when the change is this far, from 0 to 1.

        :param at_start: label counts or probabilities before the change, (..., classes).
        """
        start = at_start / at_start.sum(axis=-1, keepdims=True)
        few = np.arange(start.shape[-1]) < self.classes
        late = np.where(few, self.mass / few.sum(), (1.0 - self.mass) / max(1, (~few).sum()))
        return np.asarray((1.0 - amount) * start + amount * late / late.sum())

    def collected(self, row: int, rounds: int) -> float:
        """Return how far the change is, from 0 to 1, in the data that a client has at row ``row`` of the trace.

        A client collects equally many samples in each row, so that this is the mean over the rows that it remembers.
        """
        first = 0 if self.memory_rounds is None else max(0, row + 1 - self.memory_rounds)
        return float(np.mean([self.amount(min(1.0, each / rounds)) for each in range(first, row + 1)]))


class World(Section):
    """What changes during training. Whatever is left out does not change."""

    seed: Seed = 0
    """Seed of the world's random processes."""
    step_s: Seconds = 1.0
    """Seconds between two rounds, by which the random processes advance."""
    fading: Fading | None = None
    """Fast fading."""
    shadowing: Shadowing | None = None
    """Slow fading."""
    availability: Availability | None = None
    """When clients are available."""
    throttling: Throttling | None = None
    """Processors that slow down."""
    drift: Drift | None = None
    """Labels that change."""
    trace: File | None = Field(default=None)
    """A CSV file with one row for each round and client, in place of random fading, shadowing, availability and
    throttling."""

    @model_validator(mode="after")
    def _trace_or_processes(self) -> Self:
        given = self.channels_and_clients
        if self.trace is not None and len(given) > 1:
            raise wrong(f"must not have both trace and {given[0]}, because the trace replaces it")
        return self

    @property
    def channels_and_clients(self) -> list[str]:
        """The keys of this world that describe changes of channels, clients and processors."""
        keys = ("fading", "shadowing", "availability", "throttling", "trace")
        return [key for key in keys if getattr(self, key) is not None]


def trace_of(
    world: World | None, names: Sequence[str], rounds: int, folder: Path, seed: int = 0, draws: str = "world"
) -> Trace:
    """Return the trace of a world for these clients and this number of rounds.

    :param world: None for a world in which nothing changes; :param names: the clients' names;
    :param folder: where a trace file is searched first; :param seed: of the run. Each seed has other random numbers,
        but a trace from a file is the same for all seeds. :param draws: the name of the random stream.
    """
    clients = len(names)
    still = Trace.constant(rounds, clients)
    if world is None:
        return still
    if world.trace is not None:
        return read_trace(world.trace, folder, names)
    gain, available, speed = still.gain, still.available, still.speed

    def random(process: int) -> np.random.Generator:
        return stream(world.seed, draws, seed, process)

    if world.fading is not None:
        gain = gain * rayleigh_fading(rounds, clients, world.fading.doppler_hz, world.step_s, random(0))
    if world.shadowing is not None:
        gain = gain * moving_shadows(rounds, clients, world.shadowing.deviation_db, world.shadowing.decorrelation_m,
                                     world.shadowing.speed_m_s, world.step_s, random(1))
    if world.availability is not None:
        stays = world.availability
        available = on_and_off(rounds, clients, stays.mean_on_s, stays.mean_off_s, world.step_s, random(2), stays.daily)
    if world.throttling is not None:
        hot = world.throttling
        full = on_and_off(rounds, clients, hot.mean_full_s, hot.mean_slow_s, world.step_s, random(3))
        speed = np.where(full, 1.0, hot.slow)
    return Trace(gain, available, speed)


def typical_rows(world: World | None, names: Sequence[str], rows: int) -> Trace | None:
    """Independent rows with the distribution of a world's rows, but none of its own: what its parameters tell in
    advance.

    None where channels and clients do not change at random.
    """
    if world is None or world.trace is not None or not world.channels_and_clients:
        return None
    parts = [trace_of(world, names, 1, Path(), seed, draws="policy") for seed in range(rows)]
    return Trace(*(np.vstack([getattr(part, key) for part in parts]) for key in ("gain", "available", "speed")))
