"""The command ``fedgap profile``."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Annotated

import typer

from fedgap.cli.arguments import AsJson, OptionalExperimentFile, Overrides
from fedgap.cli.extras import require
from fedgap.cli.terminal import show
from fedgap.errors import InputError


def profile(
    experiment: OptionalExperimentFile = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FLEET.csv", help="Add the device as a client to this fleet; a client with the same name "
                                               "is replaced.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the device. Default: its host name.",
                                             show_default=False)] = None,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Measure the upload speed to this address, "
                                                                         "where fedgap profile --listen PORT "
                                                                         "waits.", show_default=False)] = None,
    listen: Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Receive the uploads of devices "
                                               "that are profiled, until interrupted.", show_default=False)] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Number of measurements of each quantity.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure what an experiment's model costs on this device, and write the device as a client of a fleet."""
    require("train", "profile")
    from fedgap.config import Experiment
    from fedgap.config.fleet_csv import write_client
    from fedgap.running.device_profile import profile as measure
    from fedgap.running.device_profile import receive_one

    if listen is not None:
        with socket.create_server(("", listen)) as listener:
            typer.echo(f"listening on port {listener.getsockname()[1]}; end with Ctrl-C")
            while True:
                typer.echo(f"received {receive_one(listener):,} bytes")
    if experiment is None:
        raise InputError("EXPERIMENT: missing; name the experiment whose model is measured, or give --listen PORT")
    if out is not None and out.is_dir():
        raise InputError(f"--out: {out} is a folder; name a file, for example fleet.csv")
    loaded = Experiment.load(experiment, overrides or [])
    measured = measure(loaded, name=name, repeats=repeats, server=None if server is None else _address(server))
    client = measured.client(*loaded.radio)
    if out is not None:
        write_client(out, client, measured.comments())
    if as_json:
        typer.echo(json.dumps({**measured.to_dict(), "client": client}))
    else:
        columns = ", ".join(f"{key}: {value}" for key, value in client.items())
        show(measured, f"As a client: {columns}", *([f"The fleet is in {out}."] if out else []))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--server: must be HOST:PORT, for example 192.168.0.2:5000; got {text!r}")
    return host, int(port)
