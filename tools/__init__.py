"""Tools of the repository, not part of the wheel: they write the claims page and the numbers in the documentation.

Each is run from the root of a clone, for example ``python -m tools.claims``.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
"""Definitions, results and trained runs of every figure."""
