"""The selection rule by which every client takes part."""

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Scenario


def everybody(scenario: Scenario) -> Bools:
    """Return True for every client, (N,)."""
    return np.ones(scenario.size, dtype=np.bool_)
