"""What can go wrong, as exceptions whose message is one line for a person.

The command line prints the message and exits with the class's ``exit_code``; a library user catches them.
"""


class FedgapError(Exception):
    """Any error that fedgap raises on purpose."""

    exit_code = 1


class InputError(FedgapError):
    """Something a person wrote is wrong: the message names the key and says what would be right."""

    exit_code = 2


class InfeasibleError(FedgapError):
    """No plan fits the budgets: the message names the binding constraint and what would be enough."""

    exit_code = 3
