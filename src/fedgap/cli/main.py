"""``fedgap``: all commands, and the one place that turns errors into one line and an exit code."""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from fedgap.cli.arguments import allowing, list_known_names
from fedgap.cli.budget_command import budget
from fedgap.cli.calibrate_command import calibrate
from fedgap.cli.compare_command import compare, frontier
from fedgap.cli.cost_command import bound, cost
from fedgap.cli.deploy_command import app as deploy
from fedgap.cli.init_command import init, schema
from fedgap.cli.plan_command import plan
from fedgap.cli.predict_command import export, predict
from fedgap.cli.profile_command import profile
from fedgap.cli.reproduce_command import reproduce
from fedgap.cli.studio_command import studio
from fedgap.cli.sweep_command import sweep
from fedgap.cli.terminal import INTERRUPTED
from fedgap.cli.train_command import partition, resume, train
from fedgap.errors import FedgapError, missing_extra
from fedgap.files import disk_error

app = typer.Typer(
    name="fedgap",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Threshold of the garbage collector. With Python's default of 700 it would run dozens of times during the imports, and
find nothing."""


def _say(message: str, code: int) -> int:
    print(f"fedgap: {' '.join(message.split())}", file=sys.stderr)
    return code


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command end with one line and code 130 on Ctrl-C, unless it handles the interruption itself."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(_say("interrupted", INTERRUPTED)) from None

    return guarded


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start": (init, schema),
    "Plan": (plan, cost, bound, compare, frontier, budget),
    "Train": (partition, profile, calibrate, train, resume, sweep),
    "Use": (predict, export),
    "Look": (studio,),
    "Evidence": (reproduce,),
}
_READ_FILES = ("Plan", "Train", "Use")
"""Panels of commands that read scenarios, experiments or runs. They may name code, so they have ``--allow``."""
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(interruptible(allowing(_command) if _panel in _READ_FILES else _command))
app.add_typer(deploy, name="deploy", rich_help_panel="Deploy")


def _version(wanted: bool) -> None:
    if wanted:
        import fedgap

        typer.echo(f"fedgap {fedgap.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the "
                                                                                              "version.")] = False,
) -> None:
    """Plan and train federated edge learning within an energy and a delay budget.

    Try:  fedgap plan paper-mnist    or    fedgap train embedded --out runs/first
    """


# Base class of typer's errors about arguments; its module differs between versions of typer.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 means done, 2 bad input, 3 infeasible, 4 the run failed, 130 interrupted, and 1 a bug.
    An error is one line on stderr that begins with ``fedgap:``. With ``FEDGAP_DEBUG=1`` a bug shows its traceback.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows "?" for "φ" instead of crashing
    if {"-h", "--help"} & set(arguments):
        list_known_names()
    try:
        code = app(args=arguments, prog_name="fedgap", standalone_mode=False)
        sys.stdout.flush()
    except FedgapError as error:
        return _say(str(error), error.exit_code)
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "fedgap"
        return _say(f"{_message(error)} (see {path} --help)", 2)
    except BrokenPipeError:
        # The program that reads the output has ended. Discard the rest, so that the interpreter's last flush does not
        # fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if missing := missing_extra(error):
            return _say(f"{arguments[0]}: {missing}", 2)
        if os.environ.get("FEDGAP_DEBUG") == "1":
            raise
        problem = disk_error(error) if isinstance(error, OSError) else None
        if problem is not None:
            return _say(problem, 2)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"internal error ({what}); please report it, with the traceback that FEDGAP_DEBUG=1 shows", 1)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The entry point of the ``fedgap`` command."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    sys.exit(run())


def _message(error: Exception) -> str:
    text: str = error.format_message() if hasattr(error, "format_message") else str(error)
    return re.sub(r"( Did you mean '[^']*'\?)\1", r"\1", text.rstrip("."))  # some versions of typer repeat it
