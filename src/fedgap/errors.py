"""The exceptions that fedgap raises. Each message is one line for a person.

The command line prints the message and exits with the ``exit_code`` of the class; in Python you can catch them.

>>> try:
...     fedgap.Scenario.load("paper-mnist", ["budget.delay_s=-1"])
... except fedgap.errors.InputError as error:
...     print(error)
budget.delay_s: must be above 0 s ... got -1 (override 'budget.delay_s=-1')
"""

import difflib
from collections.abc import Iterable


class FedgapError(Exception):
    """Any error that fedgap raises on purpose.

    >>> [error.exit_code for error in (errors.InputError, errors.InfeasibleError, errors.RunFailedError)]
    [2, 3, 4]
    """

    exit_code = 1


class InputError(FedgapError):
    """An input is wrong: the message names the key and says what would be right.

    >>> fedgap.Scenario.load("paper-mnist", ["rouns=20"])
    Traceback (most recent call last):
    fedgap.errors.InputError: rouns: unknown key; did you mean 'rounds'? (override 'rouns=20')
    """

    exit_code = 2


class InfeasibleError(FedgapError):
    """No plan fits the budgets: the message names the binding constraint and what would be enough.

    ``fedgap.plan`` does not raise this but returns a plan with the status ``infeasible``. Functions that need a
    feasible plan raise it.

    >>> fedgap.train(fedgap.Experiment.load("embedded", ["budget.delay_s=1"]), "runs/hopeless")
    Traceback (most recent call last):
    fedgap.errors.InfeasibleError: budget.delay_s: even client ... raise budget.delay_s to ...
    """

    exit_code = 3


class RunFailedError(FedgapError):
    """A run failed after it had begun, for example because training diverged: the message says why and what to change.

    >>> raise errors.RunFailedError("training diverged: the loss is no longer finite")
    Traceback (most recent call last):
    fedgap.errors.RunFailedError: training diverged: the loss is no longer finite
    """

    exit_code = 4


EXTRA_OF_PACKAGE = {"torch": "train", "safetensors": "train", "pooch": "train", "mlxtend": "train", "fastapi": "web",
                    "uvicorn": "web", "plotly": "web", "flwr": "deploy", "cryptography": "deploy", "ray": "ray",
                    "tensorboard": "tensorboard"}
"""Packages that ``pip install fedgap`` does not install, and the extra that contains each."""


def missing_extra(error: Exception) -> str | None:
    """Return a message that names the missing package and its extra; None for any other error."""
    package = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = EXTRA_OF_PACKAGE.get(package)
    return f"needs the package {package}; pip install 'fedgap[{extra}]'" if extra else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` if a known word is similar, otherwise ``""``."""
    written, known = str(word)[:100].lower(), list(known)
    near = difflib.get_close_matches(written, known, n=1, cutoff=0.6)
    near += [name for name in known if len(written) > 2 and written in name]  # 'gain' for 'uplink_gain'
    return f"; did you mean '{near[0]}'?" if near else ""
