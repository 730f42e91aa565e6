"""Simulated clients: their gradients are computed in this process, those of all runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from fedgap.learning import reference
from fedgap.learning.aggregators import aggregate, load_aggregator, mean
from fedgap.learning.codec import decode, encode, upload_bytes
from fedgap.learning.contract import RoundInput, RoundOutput, known
from fedgap.learning.engine import Engine
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.masks import mask
from fedgap.running.batch_queue import Batches
from fedgap.running.clients import Delivery, Update
from fedgap.running.run_accounts import RunAccounts


class SimulatedClients:
    """The clients of runs of one kind (``Job.kind``), which train on ``inputs`` and ``labels``."""

    def __init__(self, accounts: Sequence[RunAccounts], engine: Engine, inputs: Tensor, labels: Tensor) -> None:
        job = accounts[0].job
        self._engine, self._inputs, self._labels = engine, inputs, labels
        self._aggregator, self._measured = load_aggregator(job.aggregator), job.accounting == "measured"
        self._batches = Batches(accounts, inputs, labels)
        self.compute = engine.gradients if job.engine == "stacked" else self._one_by_one

    def keep(self, accounts: Sequence[RunAccounts]) -> None:
        """Continue with these runs only."""
        self._batches = Batches(accounts, self._inputs, self._labels)

    def work(self, model: GlobalModel, accounts: Sequence[RunAccounts]) -> Delivery:
        """Book a round with every run and compute its update."""
        tasks, inputs, labels = self._batches.take(model.round)
        outlines = [account.outline(model.round) for account in accounts]
        events = [account.book(model.round, outline) for account, outline in zip(accounts, outlines, strict=True)]
        senders = [outline.arrived for outline in outlines]
        if not tasks.run:  # everybody vanished
            nothing = model.weights.new_zeros(0)
            return Delivery(events, senders, nothing, nothing.bool(), None)
        round_input = RoundInput(model.weights, model.ranks, model.buffers, tasks.run, tasks.ratios, inputs, labels)
        if self._aggregator is mean and not self._measured:
            output = self.compute(round_input)  # the engine's sums are the mean already
        else:
            output = self._by_client(round_input, model.round, accounts)
        update = Update(output.gradient, known(round_input, output), output.buffers, tasks.heard)
        return Delivery(events, senders, output.losses, output.finite, update)

    def _one_by_one(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        return reference.gradients(self._engine.module, round_input)

    def _by_client(self, round_input: RoundInput, round: int, accounts: Sequence[RunAccounts]) -> RoundOutput:
        """The round's gradients one by one, through the codec where uploads are measured, then aggregated."""
        output = self.compute(round_input, per_client=True)
        assert output.client_gradients is not None
        direction = torch.zeros_like(round_input.weights)
        delivered: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for task, (row, ratio) in enumerate(zip(round_input.run, round_input.ratios, strict=True)):
            if output.finite[task]:
                update, kept = output.client_gradients[task], mask(round_input.ranks[row], ratio)
                if self._measured:
                    update = _upload(update, kept, round, accounts[row].job.extra["scenario_hash"]).to(direction)
                delivered.setdefault(row, []).append((update, kept))
        for row, pairs in delivered.items():
            updates, masks = zip(*pairs, strict=True)
            if self._aggregator is mean:  # added one after the other: another order would give other last digits
                direction[row] = reduce(torch.add, updates, direction[row]) / len(updates)
            else:
                direction[row] = aggregate(self._aggregator, torch.stack(updates), torch.stack(masks))
        return replace(output, gradient=direction, client_gradients=None)


def _upload(update: Tensor, kept: Tensor, round: int, plan: str) -> Tensor:
    """What arrives of a masked update (M,) that a client encodes and the server decodes."""
    data = encode(update, kept, round=round, plan=plan)
    assert len(data) == upload_bytes(int(kept.sum()))  # what the ledger charged
    return decode(data, size=len(kept), round=round, plan=plan, mask=kept).gradient
