"""The command line: one file per group of commands. It contains no formulas."""

from fedgap.cli.main import main

__all__ = ["main"]
