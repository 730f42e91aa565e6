"""CUDA graphs: a pass is recorded once and then replayed, which saves about a thousand kernel launches per round."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from fedgap.learning.masks import ranks

_KEPT = 8  # cached recordings; a training alternates between a few selections of clients
Given = TypeVar("Given")
Result = TypeVar("Result")


def _capture(function: Callable[[Given], Result], given: Given) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record ``function`` on the memory of ``given``. Returns the graph, and the tensors into which a replay writes its
    result."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # before recording, cuDNN must choose its algorithms and Triton compile
            function(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(given)
    return graph, result


class Recording:
    """A recorded function that maps a named tuple of tensors of fixed shapes to another one."""

    def __init__(self, function: Callable[[Any], Any], example: Any) -> None:
        self._given = type(example)(*(tensor.clone() for tensor in example))
        self._graph, self._result = _capture(function, self._given)

    def __call__(self, given: Any) -> Any:
        """Replay on ``given``. The result is a copy, except ``gradients``, which the next replay overwrites."""
        for name, mine, new in zip(given._fields, self._given, given):
            if name != "run" and mine.numel():  # each model's run is fixed by the recording's key
                mine.copy_(new, non_blocking=True)
        self._graph.replay()
        result = self._result
        return type(result)(*(tensor if name == "gradients" or not tensor.numel() else tensor.clone()
                              for name, tensor in zip(result._fields, result)))


class Recorder:
    """Runs functions by replaying recordings. A function is recorded when its ``key`` (the pass's structure) occurs for
    the second time."""

    def __init__(self) -> None:
        self._recordings: OrderedDict[Hashable, Callable[[Any], Any] | None] = OrderedDict()

    def run(self, key: Hashable, function: Callable[[Given], Result], given: Given) -> Result:
        """``function(given)``, by replay if it has been recorded under ``key``."""
        if key not in self._recordings:
            self._recordings[key] = None
            if len(self._recordings) > _KEPT:
                self._recordings.popitem(last=False)
            return function(given)
        self._recordings.move_to_end(key)
        known = self._recordings[key]
        if known is None:
            try:
                known = Recording(function, given)
            except RuntimeError:  # a user's module may read values on the host, which cannot be recorded
                known = function
            self._recordings[key] = known
        return cast(Result, known(given))


class RecordedRanks:
    """Runs a ranking function by replay, recorded when a shape occurs for the second time in a row.

    A sort takes twenty kernel launches, which is longer than ranking a small model. The next call overwrites the
    result."""

    def __init__(self, rank: Callable[[Tensor], Tensor] = ranks) -> None:
        self._rank = rank
        self._kind: tuple[torch.Size, torch.dtype] | None = None
        self._recorded: tuple[Tensor, torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, scores: Tensor) -> Tensor:
        """Rank ``scores`` on a GPU."""
        kind = scores.shape, scores.dtype
        if kind != self._kind:
            self._kind, self._recorded = kind, None
            return self._rank(scores)
        if self._recorded is None:
            mine = scores.clone()
            self._recorded = (mine, *_capture(self._rank, mine))
        mine, graph, result = self._recorded
        mine.copy_(scores)
        graph.replay()
        return result
