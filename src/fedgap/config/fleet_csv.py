"""Read and write clients as a CSV file: one row per client, one column per key."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgap.config.document import exists
from fedgap.config.error_messages import shown
from fedgap.config.yaml_files import read_file, write_checked
from fedgap.errors import InputError

HISTOGRAMS = ("label_counts", "target_counts")
"""Columns whose cells contain a list, such as ``12;0;7``."""


def read_clients(name: str, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the clients of a CSV as one dict per client, and the file and line of each for error messages.

    Keys with an empty cell are left out. Values stay strings, which are checked later.

    :param name: the file, relative to ``folder`` or, if it does not exist there, to the current folder.
    """
    path = folder / name if exists(folder / name) else Path(name)
    if not exists(path):
        raise InputError(f"clients: {shown(name)} does not exist; name a CSV file with one row per client")
    clients: list[dict[str, Any]] = []
    places: list[str] = []
    for line, row in read_table(path)[1]:
        clients.append({key: _cell(key, cell) for key, cell in row.items() if cell})
        places.append(f"{shown(path)} line {line}")
    if not clients:
        raise InputError(f"{shown(path)}: has no clients; the first line must name the columns, and each line after "
                         "it must describe one client")
    return clients, places


def read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns that the first line of a CSV names, and the number and the cells of each further line.

    Empty lines and lines that begin with # are left out.
    """
    rows = csv.reader(io.StringIO(read_file(path), newline=""), skipinitialspace=True)
    header: list[str] = []
    table: list[tuple[int, dict[str, str]]] = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not header:
                header = _header(cells, path)
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{shown(path)}: line {rows.line_num}: must have {len(header)} cells, one per column of the "
                    f"header; got {len(cells)}"
                )
            table.append((rows.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InputError(f"{shown(path)}: line {rows.line_num}: is not CSV ({error})") from None
    return header, table


def write_client(path: Path, client: Mapping[str, Any], comments: Sequence[str]) -> None:
    """Add a client to a CSV, or replace the client of the same name. Columns are added if needed.

    :param comments: lines for the top of the file. They replace the lines there that begin with the client's name.
    """
    name = str(client["name"])
    kept, rows = [], []
    if path.exists():
        kept = [line for line in read_file(path).splitlines()
                if line.lstrip().startswith("#") and not line.lstrip("# ").startswith(f"{name}: ")]
        rows = [row for row in read_clients(str(path), Path())[0] if row.get("name") != name]
    rows.append(dict(client))
    header = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: ";".join(value) if isinstance(value, list) else value for key, value in row.items()})
    lines = [*kept, *(f"# {comment}" for comment in comments)]
    write_checked(path, "".join(f"{line}\n" for line in lines) + text.getvalue())


def _header(cells: list[str], path: Path) -> list[str]:
    other = next((sign for sign in (";", "\t") if len(cells) == 1 and sign in cells[0]), None)
    if other is not None:
        raise InputError(
            f"{shown(path)}: the header has no comma; separate cells by commas, not by {shown(other)}"
            " (and write decimals with a point)"
        )
    for position, key in enumerate(cells):
        if not key:
            raise InputError(f"{shown(path)}: column {position + 1} has no name; the first line must name each column")
        if key in cells[:position]:
            raise InputError(f"{shown(path)}: the column {shown(key)} occurs twice; remove one of them")
    return cells


def _cell(key: str, cell: str) -> Any:
    if key not in HISTOGRAMS:
        return cell
    parts = [part.strip() for part in cell.split(";")]
    return parts if len(parts) > 1 else cell  # the error for that key says how to write a list
