"""``fedgap deploy``: the same algorithm over Flower, on this machine or on several machines."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgap.cli.arguments import AsJson, ExperimentFile, Overrides, allowing
from fedgap.cli.extras import require
from fedgap.errors import InputError
from fedgap.files import hold_folder, write_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedgap.running.events import Event
    from fedgap.running.run import Run

app = typer.Typer(help="Run an experiment over Flower, in separate processes or on several machines.",
                  no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="The run's folder. The same command resumes an interrupted run.")]
RoundTimeout = Annotated[float, typer.Option(min=1.0, help="Seconds that the server waits for the answers of a round.")]
EnrolTimeout = Annotated[float, typer.Option(min=1.0, help="Seconds that the server waits for all nodes to enrol.")]

WithProfile = Annotated[bool, typer.Option("--profile", help="Let the nodes measure how long steps and messages take, "
                                           "and plan with that.")]

MinClients = Annotated[str, typer.Option(
    metavar="N", help="Number of gradients that a round needs, or the share of its selected clients such as 0.5 "
    "(1.0: all). With fewer the server waits for nodes and tries the round again.")]


@app.command()
@allowing
def up(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    local: Annotated[int, typer.Option(min=1, help="Number of nodes to start on this machine; they are the first "
                                       "clients of the scenario.")] = 4,
    out: Out = Path("runs/deployed"),
    epsilon: Annotated[float | None, typer.Option(help="Add noise to the nodes' label histograms (Laplace, scale 1/ε); "
                                                  "smaller is more private.")] = None,
    round_timeout: RoundTimeout = 60.0,
    enrol_timeout: EnrolTimeout = 180.0,
    min_clients: MinClients = "1",
    profile: WithProfile = False,
    plain: Annotated[bool, typer.Option("--plain", help="Use Flower's own SuperNode and SuperExec, with their polling "
                                        "intervals and a new process for every message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a SuperLink and nodes on this machine, with TLS and node keys, and run an experiment on them."""
    from fedgap.config import Experiment
    from fedgap.deploy.local_deployment import local as start
    from fedgap.deploy.transport import Patience, Quorum

    _positive(epsilon)
    patience = Patience(round_timeout, enrol_timeout, quorum=Quorum.parse(min_clients))
    chosen = Experiment.load(experiment, overrides or [])
    _fresh(out)
    with _terminable(), hold_folder(out):
        _keep_command(out)
        _say(f"starting a SuperLink and {local} nodes on this machine", as_json)
        with start(chosen, local, out, patience=patience, epsilon=epsilon, warm=not plain,
                   profile=profile) as deployment:
            _say(f"the SuperLink listens on 127.0.0.1:{deployment.superlink.port}; logs are in {out}/deployment",
                 as_json)
            run = deployment.run(None if as_json else _show(out), on_wait=lambda what: _say(what, as_json))
    _report(run, as_json)


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the certificates and keys; it is created "
                                                               "with permissions 0700.")],
    host: Annotated[list[str], typer.Option(help="A name or address by which nodes reach the server. May be "
                                                 "repeated.")],
    node: Annotated[list[str] | None, typer.Option(help="Also make the key of the node with this name. May be "
                                                        "repeated. Without it, nodes make their keys with `fedgap "
                                                        "deploy key`.")] = None,
) -> None:
    """Make the certificate of a server, and the keys of the nodes named by --node."""
    from fedgap.deploy.keys import make_certificates, make_node_key

    for name in node or ():
        _check_node_name(name, "--node")
    make_certificates(folder, host)
    for name in node or ():
        make_node_key(folder, name)
    typer.echo(f"wrote {folder}: give each node ca.crt and, unless it makes its own, its key; give the other files to "
               "nobody")


@app.command()
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name, as in its file.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the key pair; it is created with "
                                                               "permissions 0700.")] = Path("keys"),
) -> None:
    """Make a node's key pair on the node itself; only the public half leaves it."""
    from fedgap.deploy.keys import make_node_key

    _check_node_name(name, "NAME")
    private, public = make_node_key(folder, name)
    typer.echo(f"wrote {private}, which stays here; give {public.name} to the server's operator, who puts it into the "
               "folder of `fedgap deploy server --keys`")


@app.command()
@allowing
def server(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes that must enrol before planning.")] = 2,
    key_folder: Annotated[Path, typer.Option("--keys", help="The folder from `fedgap deploy keys`; every node with a "
                                                            "*.pub file in it may take part.")] = Path("keys"),
    out: Out = Path("runs/deployed"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    reach: Annotated[str, typer.Option(help="A name of this machine in its certificate, used by its own "
                                       "commands.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    round_timeout: RoundTimeout = 60.0,
    enrol_timeout: EnrolTimeout = 600.0,
    min_clients: MinClients = "1",
    profile: WithProfile = False,
    as_json: AsJson = False,
) -> None:
    """Start a SuperLink, wait for nodes on other machines, plan, and train."""
    from fedgap.config import Experiment
    from fedgap.deploy.enrol import most_request_bytes
    from fedgap.deploy.flower_processes import SuperLink, watch, write_app
    from fedgap.deploy.keys import private_folder, read_public_keys
    from fedgap.deploy.transport import Patience, Quorum

    patience = Patience(round_timeout, enrol_timeout, quorum=Quorum.parse(min_clients))
    chosen = Experiment.load(experiment, overrides or [])
    _fresh(out)
    names = read_public_keys(key_folder)
    if not names or not (key_folder / "server.crt").is_file():
        raise InputError(f"{key_folder}: must have server.crt and node keys (*.pub); make them with `fedgap deploy "
                         "keys`")
    most_bytes = most_request_bytes(chosen)
    with _terminable(), hold_folder(out):
        _keep_command(out)
        folder = private_folder(out / "deployment")
        file = chosen.save(folder / "experiment.yaml")
        superlink = SuperLink(folder, host=host, port=port, keys=key_folder, most_bytes=most_bytes, reach=reach)
        application = write_app(folder / "app")
        try:
            superlink.start()
            _say(f"listening on {host}:{port}; {', '.join(names)} may take part, {nodes} nodes must enrol", as_json)
            run = watch(superlink, out, lambda: superlink.submit(application, file, out, nodes, patience, profile),
                        None if as_json else _show(out), on_wait=lambda what: _say(what, as_json))
        finally:
            superlink.stop()
    _report(run, as_json)


@app.command()
def node(
    file: Annotated[Path, typer.Argument(metavar="NODE", help="The node's file: its data and its device's figures.")],
    superlink: Annotated[str, typer.Option(help="The server, host:port.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    key: Annotated[Path, typer.Option(help="This node's private key.")],
    folder: Annotated[Path | None, typer.Option(help="Folder for the node's socket and logs; it is created with "
                                                     "permissions 0700. Without it, NODE's name with .node instead of "
                                                     ".yaml.")] = None,
    poll: Annotated[float, typer.Option(min=0.05, max=3.0, help="Seconds between two requests for a message while "
                                        "idle.")] = 0.2,
    plain: Annotated[bool, typer.Option("--plain", help="Use Flower's own SuperNode and SuperExec.")] = False,
) -> None:
    """Run a node until it is interrupted. Its data never leave this machine."""
    from fedgap.config.yaml_files import write_document
    from fedgap.deploy.admission import why_not_admitted
    from fedgap.deploy.flower_processes import NodeProcesses
    from fedgap.deploy.keys import private_folder, read_private_key
    from fedgap.deploy.node_data import LocalNodeData, NodeSettings

    described = NodeSettings.load(file)
    for path in (ca, key):
        if not path.is_file():
            raise InputError(f"{path}: must be a file")
    read_private_key(key)
    server_name, _, port = superlink.rpartition(":")
    if not server_name or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--superlink: must be host:port, such as server.example:8000; got {superlink!r}")
    data = LocalNodeData(described)
    _, labels = data.samples()  # so that a wrong path is reported here rather than in a log
    values = described.node.model_dump(mode="json", exclude_none=True)
    for name in ("data", "experiment"):
        beside = described.path.parent / str(values.get(name, ""))
        if name in values and beside.is_file():
            values[name] = str(beside)
    node_folder = private_folder(folder or Path(f"{file.stem}.node")).resolve()
    write_document(values, node_folder / "node.yaml")
    processes = NodeProcesses(node_folder, superlink=superlink, ca=ca.resolve(), key=key.resolve(), warm=not plain,
                              poll_s=poll)
    typer.echo(f"{file.stem}: {len(labels)} samples; logs are in {node_folder}; Ctrl-C ends it", err=True)
    with _terminable():
        try:
            problem, told = why_not_admitted(superlink, ca, key, data.name), ""
            processes.start()
            while True:
                if problem not in ("", told):
                    typer.echo(f"{problem} (the node tries again every few seconds)", err=True)
                    told = problem
                time.sleep(5.0)
                said = processes.revive()
                if said or problem:
                    problem = why_not_admitted(superlink, ca, key, data.name, connected=not said)
                    problem = problem or (f"the SuperNode ended: {said}" if said else "")
        finally:
            processes.stop()


@app.command("app")
def write(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the app.")],
) -> None:
    """Write the folder of a Flower app, to run it with `flwr run`."""
    from fedgap.deploy.flower_processes import write_app

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: must be a folder; it is a file")
    typer.echo(f"wrote {write_app(folder)}; try: flwr run {folder}")


@app.callback()
def _root() -> None:
    """Run an experiment over Flower, in separate processes or on several machines."""
    require("deploy", "deploy")
    os.umask(0o077)  # only the owner can read what a deployment writes


class _terminable:  # noqa: N801  (lower case, because it is used like a function)
    """Turn SIGTERM into an interruption, so that all started processes are ended."""

    def __enter__(self) -> None:
        def interrupt(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        self._before = signal.signal(signal.SIGTERM, interrupt)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            typer.echo("fedgap: interrupted; the same command resumes the run", err=True)
            raise typer.Exit(130) from None


def _check_node_name(name: str, argument: str) -> None:
    if not name.replace("-", "").replace("_", "").replace(" ", "").isalnum():
        raise InputError(f"{argument}: {name!r} must have only letters, digits, spaces, - and _, because it names a "
                         "file")


def _positive(epsilon: float | None) -> None:
    if epsilon is not None and not epsilon > 0:
        raise InputError("--epsilon: must be above 0; smaller is more private")


def _fresh(out: Path) -> None:
    """Raise an InputError if the folder holds a run, unless that is an interrupted deployment."""
    from fedgap.running.run import Run
    from fedgap.running.run_folder import has_run

    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: must be a folder; it is a file")
    if has_run(out) and (Run(out).finished or not Run(out).job.extra.get("deployed")):
        raise InputError(f"{out}: holds a run already; choose another folder")


def _keep_command(out: Path) -> None:
    """Save the command that resumes the run."""
    from fedgap.deploy.keys import private_folder
    from fedgap.running.run import DEPLOY_COMMAND

    file = out / DEPLOY_COMMAND
    out.mkdir(parents=True, exist_ok=True)
    private_folder(file.parent)
    write_text(file, shlex.join(["fedgap", *sys.argv[1:]]) + "\n")


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)


def _show(out: Path) -> Callable[[list[Event]], None]:
    from fedgap.running.live_progress import describe, describe_news
    from fedgap.running.run import Run

    def lines(events: list[Event]) -> None:
        job = Run(out).job
        for event in events:
            typer.echo(f"{describe(job, event)}; took {event['measured_s']:.1f} s", err=True)
            for news in describe_news(job, event):
                typer.echo(f"  {news}", err=True)

    return lines


def _report(run: Run, as_json: bool) -> None:
    from fedgap.deploy.deployment_report import deployment_report

    if as_json:
        typer.echo(json.dumps({"folder": str(run.folder), **run.summary}))
    else:
        typer.echo("\n".join(deployment_report(run)))
