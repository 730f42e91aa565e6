"""Schemes: the paper's design and its five baselines (Section V), and two that minimise something other than θ.

``fedgap.registry.SCHEMES`` finds a scheme by its name, also those that other packages add.
"""

from fedgap.planning.schemes.all_clients import SCHEME as ALL_CLIENTS
from fedgap.planning.schemes.fixed_frequency import SCHEME as FIXED_FREQUENCY
from fedgap.planning.schemes.fixed_power import SCHEME as FIXED_POWER
from fedgap.planning.schemes.no_generalization import SCHEME as NO_GENERALIZATION
from fedgap.planning.schemes.no_pruning import SCHEME as NO_PRUNING
from fedgap.planning.schemes.proposed import SCHEME as PROPOSED
from fedgap.planning.schemes.scheme import Scheme

PAPER_SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (PROPOSED, NO_PRUNING, ALL_CLIENTS, NO_GENERALIZATION, FIXED_POWER, FIXED_FREQUENCY)
}
"""The paper's six schemes by name, in the order of its legends."""

__all__ = ["PAPER_SCHEMES", "Scheme"]
