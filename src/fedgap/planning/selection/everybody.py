"""Every client takes part."""

import numpy as np

from fedgap.arrays import Bools
from fedgap.config import Scenario


def everybody(scenario: Scenario) -> Bools:
    """All clients."""
    return np.ones(scenario.size, dtype=np.bool_)
