"""Aggregators combine the clients' updates of a round into the one direction in which the server moves the model.

An aggregator is any function or callable object with the signature of :class:`Aggregator`. Your own one is named in an
experiment (``learning.aggregator: package.module:NAME``) or added to the entry-point group ``fedgap.aggregators``::

    def median(updates, kept):
        return updates.median(dim=0).values
"""

from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from fedgap.errors import InputError
from fedgap.registry import AGGREGATORS, call_extension

KEY = "learning.aggregator"
"""The experiment's key, for error messages."""


class NotFiniteError(InputError):
    """An aggregator returned infinity or NaN."""


class Aggregator(Protocol):
    """Combines the updates of a round's k clients into one direction.

    >>> import torch
    >>> def middle(updates, kept):
    ...     return updates.median(dim=0).values
    >>> middle(torch.tensor([[1.0, 2.0], [3.0, 0.0], [9.0, 1.0]]), torch.ones(3, 2, dtype=torch.bool))
    tensor([3., 1.])
    """

    def __call__(self, updates: Tensor, kept: Tensor, /) -> Tensor:
        """Return the direction, shape (M,). The server subtracts the learning rate times this from the weights.

        :param updates: the masked gradient of each client whose update was accepted, shape (k, M); 0 where the client
            pruned the weight. :param kept: whether the client kept the weight, boolean, shape (k, M).
        """


def mean(updates: Tensor, kept: Tensor) -> Tensor:
    """(1/k)·Σ_n G̃_n, as in the paper: a weight that a client pruned counts as 0 for that client."""
    return updates.sum(0) / len(updates)


def weighted_mean(updates: Tensor, weights: Tensor) -> Tensor:
    """Σ_n w_n·u_n / Σ_n w_n of updates (k, M) with weights (k,), such as the clients' numbers of samples.

    A client with weight 0 is left out; if all weights are 0, the result is 0. On a CPU the terms are added one after
    another, so that a term of 0 does not change a digit."""
    terms, total = weights[:, None] * updates, weights.sum()
    summed = terms.sum(0) if terms.is_cuda else reduce(torch.add, terms, torch.zeros_like(terms[0]))
    return summed / torch.where(total > 0, total, 1)


def load_aggregator(name: str) -> Aggregator:
    """Load the aggregator with this name. Raises an :class:`InputError` if the object found is not callable."""
    aggregator: Aggregator = AGGREGATORS.load(name, KEY)
    if not callable(aggregator):
        raise InputError(f"{KEY}: {name} must be a function of the clients' updates and masks; it is a "
                         f"{type(aggregator).__name__}")
    return aggregator


def aggregate(aggregator: Aggregator, updates: Tensor, kept: Tensor) -> Tensor:
    """Call an aggregator and check its result; returns the direction (M,), which is 0 for weights that no client kept.

    (Nodes receive only the weights that some client kept, so moving others would make their copies differ.)"""
    name = getattr(aggregator, "__name__", type(aggregator).__name__)
    direction = call_extension(KEY, name, aggregator, updates, kept)
    if not isinstance(direction, Tensor) or direction.shape != updates.shape[1:]:
        shape = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
        raise InputError(f"{KEY}: must return a tensor of shape ({updates.shape[1]},); {name} returned {shape}")
    direction = torch.where(kept.any(0), direction, 0).to(updates.dtype)
    if not bool(direction.isfinite().all()):
        raise NotFiniteError(f"{KEY}: must return finite numbers for finite updates; {name} returned infinity or NaN")
    return direction
