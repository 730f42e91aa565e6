"""The command line: one file a group of commands. These doors hold no maths."""

from fedgap.cli.main import main

__all__ = ["main"]
