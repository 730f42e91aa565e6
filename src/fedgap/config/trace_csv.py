"""Read and write a trace (:class:`~fedgap.system.trace.Trace`) as a CSV file with one row for each round and client.

The columns are ``round`` (from 0), ``client`` (a name), ``gain`` (channel power gain, relative to the scenario's),
``available`` (0 or 1) and ``speed`` (highest clock, relative to the scenario's). The last three may be left out; they
are then 1. Every client has a row for every round.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedgap.config.document import exists
from fedgap.config.error_messages import shown
from fedgap.config.fleet_csv import read_table
from fedgap.errors import InputError, did_you_mean
from fedgap.files import write_text
from fedgap.system.trace import Trace

_VALUES = ("gain", "available", "speed")
_MOST_ROUNDS = 1_000_000
_LARGEST = 1e30
"""Largest gain and speed, and the inverse of the smallest ones above 0: far beyond any channel, within what the solvers
can compute with."""


def read_trace(name: str, folder: Path, clients: Sequence[str]) -> Trace:
    """Read a trace of these clients. Error messages name the line.

    :param name: the file, relative to ``folder`` or, if it does not exist there, to the current folder.
    """
    path = folder / name if exists(folder / name) else Path(name)
    if not exists(path):
        raise InputError(f"world.trace: {shown(name)} does not exist; name a CSV file with one row for each round and "
                         "client")
    header, rows = read_table(path)
    for key in header:
        if key not in ("round", "client", *_VALUES):
            raise InputError(f"{shown(path)}: unknown column {shown(key)}; use round, client, {', '.join(_VALUES)}"
                             f"{did_you_mean(key, ('round', 'client', *_VALUES))}")
    if missing := [key for key in ("round", "client") if key not in header]:
        raise InputError(f"{shown(path)}: has no column {missing[0]}; round and client are needed")
    index = {client: n for n, client in enumerate(clients)}
    cells: dict[tuple[int, int], list[float]] = {}
    for line, row in rows:
        where = f"{shown(path)} line {line}"
        client = row["client"]
        if client not in index:
            raise InputError(f"{where}: client: {client!r} is not in the fleet{did_you_mean(client, clients)}")
        number = _number(row, "round", where)
        if number != int(number) or not 0 <= number < _MOST_ROUNDS:
            raise InputError(f"{where}: round: must be a whole number from 0 to {_MOST_ROUNDS - 1:,}; "
                             f"got {row['round']!r}")
        place = int(number), index[client]
        if place in cells:
            raise InputError(f"{where}: {client} already has a row for round {place[0]}; remove one of the two")
        cells[place] = [_number(row, key, where) if key in header else 1.0 for key in _VALUES]
        gain, available, speed = cells[place]
        if max(gain, speed) > _LARGEST or 0.0 < min(gain, speed) < 1.0 / _LARGEST:
            raise InputError(f"{where}: gain and speed: must be from {1.0 / _LARGEST:g} to {_LARGEST:g}, relative to "
                             f"the scenario's; got {gain:g} and {speed:g}")
        if available not in (0.0, 1.0):
            raise InputError(f"{where}: available: must be 0 or 1; got {row['available']!r}")
        if available and not (gain > 0.0 and speed > 0.0):
            raise InputError(f"{where}: gain and speed: must be above 0 if the client is available; got {gain:g} and "
                             f"{speed:g}")
    rounds = 1 + max((number for number, _ in cells), default=-1)
    if len(cells) != rounds * len(clients) or not cells:
        lacking = next((f"{client} has no row for round {t}" for t in range(rounds) for client, n in index.items()
                        if (t, n) not in cells), "it has no rows")
        raise InputError(f"{shown(path)}: must have a row for each round and client; {lacking}")
    values = np.array([[cells[t, n] for n in range(len(clients))] for t in range(rounds)])
    # A client that is not available may have a gain or speed of 0, but the solvers divide by these.
    away = values[..., 1] == 0.0
    gains, speeds = (np.where(away & (values[..., k] <= 0.0), 1.0, values[..., k]) for k in (0, 2))
    return Trace(gains, ~away, speeds)


def write_trace(path: Path, trace: Trace, clients: Sequence[str]) -> None:
    """Write a trace so that :func:`read_trace` returns exactly the same numbers."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("round", "client", *_VALUES))
    for t in range(trace.rounds):
        for n, client in enumerate(clients):
            table.writerow((t, client, repr(float(trace.gain[t, n])), int(trace.available[t, n]),
                            repr(float(trace.speed[t, n]))))
    write_text(path, text.getvalue())


def _number(row: dict[str, str], key: str, where: str) -> float:
    try:
        value = float(row[key])
    except ValueError:
        raise InputError(f"{where}: {key}: must be a number; got {row[key]!r}") from None
    if not np.isfinite(value) or value < 0.0:
        raise InputError(f"{where}: {key}: must be a finite number of at least 0; got {row[key]!r}")
    return value
