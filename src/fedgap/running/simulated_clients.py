"""Simulated clients, whose updates are computed in this process for all runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgap.learning import reference
from fedgap.learning.aggregators import aggregate, load_aggregator, mean, weighted_mean
from fedgap.learning.contract import RoundInput, RoundOutput, known
from fedgap.learning.engine import Engine
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.robust_aggregators import ROBUST, aggregate_buffers
from fedgap.learning.stochastic_rounding import arriving
from fedgap.learning.structure import Channels, Structure
from fedgap.running.batch_queue import Batches, RoundBatches
from fedgap.running.clients import Delivery, Update
from fedgap.running.run_accounts import RunAccounts


class SimulatedClients:
    """The simulated clients of runs that can be trained together (``Job.kind``). They train on ``inputs`` and
    ``labels``."""

    def __init__(self, accounts: Sequence[RunAccounts], engine: Engine, structure: Structure, inputs: Tensor,
                 labels: Tensor) -> None:
        self._job = job = accounts[0].job
        self._engine, self._structure, self._inputs, self._labels = engine, structure, inputs, labels
        self._aggregator, self._local = load_aggregator(job.aggregator), job.learner.local
        # Whether the updates of single clients are needed; otherwise the engine's result is already the mean.
        self._by_client = (self._aggregator is not mean or job.accounting == "measured" or job.upload_bits < 32
                           or job.weighting != "equal")
        self.keep(accounts)

    def keep(self, accounts: Sequence[RunAccounts]) -> None:
        """Drop all other runs, and use the jobs that these accounts now have."""
        self._batches = Batches(accounts, self._inputs, self._labels, self._structure)

    def work(self, model: GlobalModel, accounts: Sequence[RunAccounts]) -> Delivery:
        """Charge a round to every run and compute its update."""
        batches = self._batches.take(model.round)
        outlines = [account.outline(model.round) for account in accounts]
        events = [account.book(model.round, outline) for account, outline in zip(accounts, outlines, strict=True)]
        senders, tasks = [outline.arrived for outline in outlines], batches.tasks
        if not tasks.run:  # all clients dropped out
            nothing = model.weights.new_zeros(0)
            return Delivery(events, senders, nothing, nothing.bool(), None)
        round_input = RoundInput(model.weights, model.ranks, model.buffers, tasks.run, tasks.ratios, batches.inputs,
                                 batches.labels, self._structure)
        output = self.compute(round_input, model.client_rates, per_client=self._by_client)
        if self._by_client:
            output = replace(output, gradient=self._aggregated(round_input, output, model.round, batches),
                             buffers=self._aggregated_buffers(round_input, output, batches))
        update = Update(output.gradient, known(round_input, output), output.buffers, tasks.heard)
        return Delivery(events, senders, output.losses, output.finite, update)

    def compute(self, round_input: RoundInput, rates: Tensor, *, per_client: bool = False) -> RoundOutput:
        """Compute the clients' updates, by the stacked engine or one after another."""
        local, module = self._local, self._engine.module
        if self._job.engine == "stacked":
            return (self._engine.gradients(round_input, per_client=per_client) if local.is_gradient else
                    self._engine.updates(round_input, local, rates, per_client=per_client))
        return (reference.gradients(module, round_input) if local.is_gradient else
                reference.updates(module, round_input, local, rates))

    def _aggregated(self, round_input: RoundInput, output: RoundOutput, round: int, batches: RoundBatches) -> Tensor:
        """The directions (R, M) of the runs, from the clients' updates as the server decodes them after upload."""
        assert output.client_gradients is not None
        _, samples, _, _, keys, runs, keeps, _, _ = batches.table
        job, finite, tasks = self._job, output.finite, batches.tasks
        masks = round_input.ranks[runs] < keeps[:, None]
        updates = torch.where(finite[:, None], output.client_gradients, 0)
        if job.accounting == "measured" or job.upload_bits < 32:  # an upload has float32 values or fewer bits
            updates = arriving(updates.float(), masks, keys, round, job.upload_bits).to(updates)
        weights = finite.to(updates) if job.weighting == "equal" else samples.to(updates) * finite
        direction = torch.zeros_like(round_input.weights)
        for row, rows in zip(tasks.heard, tasks.slices, strict=True):
            if self._aggregator is mean:
                direction[row] = weighted_mean(updates[rows], weights[rows])
            elif bool(finite[rows].any()):
                direction[row] = aggregate(self._aggregator, updates[rows][finite[rows]], masks[rows][finite[rows]])
        return direction

    def _aggregated_buffers(self, round_input: RoundInput, output: RoundOutput, batches: RoundBatches) -> Tensor:
        """BatchNorm's statistics (R, B) after the round, combined in the way the aggregator treats updates."""
        if self._aggregator not in ROBUST or not output.buffers.numel():
            return output.buffers
        assert output.client_buffers is not None
        runs, keeps = batches.table[5], batches.table[6]
        after, finite, tasks = output.buffers.clone(), output.finite, batches.tasks
        for row, rows in zip(tasks.heard, tasks.slices, strict=True):
            if not bool(finite[rows].any()):
                continue
            counted = None
            if isinstance(self._structure, Channels):
                masks = round_input.ranks[runs[rows]] < keeps[rows][:, None]
                counted = self._structure.buffer_mask(masks[finite[rows]])
            after[row] = aggregate_buffers(self._aggregator, output.client_buffers[rows][finite[rows]], counted,
                                           round_input.buffers[row])
        return after
