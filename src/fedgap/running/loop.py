"""The loop: select → mask → gradients → encode → charge → aggregate → update → evaluate, for one run or many at once.

Several runs of one model on one data set advance together, round by round, through the engine's runs dimension; one run
is the case R = 1. A run's results do not depend on its company (up to floating-point sums on some devices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgap.errors import InputError
from fedgap.learning import reference
from fedgap.learning.codec import decode, encode, upload_bytes
from fedgap.learning.contract import RoundInput, RoundOutput, known
from fedgap.learning.data import Dataset
from fedgap.learning.engine import Engine
from fedgap.learning.masks import keep_count, kept_fraction, mask
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models import build
from fedgap.running.batch_queue import Batches
from fedgap.running.events import Event, finite_or_none
from fedgap.running.job import Job
from fedgap.running.run_accounts import Member, Turn
from fedgap.running.stacked_importance import Importances
from fedgap.streams import stream_seed

_IMPORTANCE = "importance."  # its tensors' names in a checkpoint
_PENDING = 16  # rounds whose losses stay on an accelerator before they are read


@dataclass
class _Pending:
    """A round whose losses (K,) have not been read yet: an event and a turn a run."""

    events: list[Event]
    turns: list[Turn]
    losses: Tensor
    finite: Tensor


class Rounds:
    """R runs advancing together. ``members`` are in the order of the rows of ``weights`` (R, M)."""

    def __init__(self, jobs: Sequence[Job], dataset: Dataset) -> None:
        first = jobs[0]
        torch.set_num_threads(first.threads)
        modules = [build(**job.model, input_shape=dataset.shape, classes=dataset.classes,
                         seed=stream_seed(job.seed, "model")) for job in jobs]
        _same_frozen(modules)
        self.engine = Engine(modules[0], device=first.device, precision=first.precision)
        device, layout = self.engine.device, self.engine.layout
        self.members = [Member(job, device, layout.size) for job in jobs]
        self.weights = torch.stack([layout.weights(module) for module in modules]).to(device, self.engine.dtype)
        self.buffers = torch.stack([layout.buffers(module) for module in modules]).to(device, self.engine.dtype)
        self._gradients = self.engine.gradients if first.engine == "stacked" else self._loop
        self.round = 0
        self._ranks = self._unranked = torch.arange(layout.size, dtype=torch.int32, device=device).repeat(len(jobs), 1)
        self._train_x, self._train_y, self._test_x, self._test_y = (
            tensor.to(device) if not tensor.is_floating_point() else tensor.to(device, self.engine.dtype)
            for tensor in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y))
        self._rates = torch.tensor([[job.learning_rate] for job in jobs], dtype=self.engine.dtype, device=device)
        self.importances = Importances(jobs, device)
        self._batches = Batches(self.members, self._train_x, self._train_y)
        self._pending: list[_Pending] = []

    # --- one round --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Round ``self.round`` of every member."""
        jobs, inputs, labels = self._batches.take(self.round)
        booked = [member.book(self.round) for member in self.members]
        events, turns = [event for event, _ in booked], [turn for _, turn in booked]
        self._rank(jobs.pruned)  # of all selected: the pruned model is theirs, whoever vanished
        if jobs.run:
            round_input = RoundInput(self.weights, self._ranks, self.buffers, jobs.run, jobs.ratios, inputs, labels)
            output = self._upload(round_input)
            self.importances.observe(self.weights, output.gradient, known(round_input, output), jobs.heard)
            self.weights = self.weights - self._rates * output.gradient
            self.buffers = output.buffers
            self._pending.append(_Pending(events, turns, output.losses, output.finite))
        else:  # everybody vanished: the model stays
            none = self.weights.new_zeros(0)
            self._pending.append(_Pending(events, turns, none, none.bool()))
        self.round += 1
        self._evaluate(events)

    def _loop(self, round_input: RoundInput, *, per_client: bool = False) -> RoundOutput:
        return reference.gradients(self.engine.module, round_input)

    def _upload(self, round_input: RoundInput) -> RoundOutput:
        """The round's gradients; in measured accounting each goes through the codec, and what arrives is averaged."""
        if self.members[0].job.accounting != "measured":
            return self._gradients(round_input)
        output = self._gradients(round_input, per_client=True)
        assert output.client_gradients is not None
        total = torch.zeros_like(self.weights)
        for j, (row, ratio) in enumerate(zip(round_input.run, round_input.ratios, strict=True)):
            if output.finite[j]:
                own, plan = mask(self._ranks[row], ratio), self.members[row].job.extra["scenario_hash"]
                data = encode(output.client_gradients[j], own, round=self.round, plan=plan)
                assert len(data) == upload_bytes(keep_count(ratio, len(own)))  # what the ledger charged
                arrived = decode(data, size=len(own), round=self.round, plan=plan, mask=own)
                total[row] += arrived.gradient.to(total)
        return replace(output, gradient=total / output.accepted.clamp(min=1)[:, None], client_gradients=None)

    def _rank(self, pruned: bool) -> None:
        """The round's ranking; where nobody prunes it decides nothing and is not computed."""
        self._ranks = self.engine.rank(self.importances.scores(self.weights, self.round)) if pruned else self._unranked

    # --- what comes out ---------------------------------------------------------------------------------------------

    def model(self, row: int) -> Tensor:
        """The weights that are evaluated and shipped after the last round, (M,): ω, or ω̃ = (1/k)·Σ_n ω̃_n (pruned)."""
        return self.weights[row] * self.kept(row)

    def kept(self, row: int) -> Tensor:
        """The share of the last round's selected clients that keep each weight, (M,); 1 where ω itself is shipped."""
        job = self.members[row].job
        if not job.evaluate_pruned or self.round == 0:
            return torch.ones_like(self.weights[row])
        segment = job.schedule[self.round - 1]
        ratios = job.ratio[segment, job.selected[segment]].tolist()
        return kept_fraction(self._ranks[row], ratios).to(self.weights)

    def test_answers(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The shipped model's classes for the test samples and the true ones, each (T,) int64."""
        logits = self.engine.logits(self.model(row), self.buffers[row], self._test_x)
        return logits.argmax(1).cpu().numpy(), self._test_y.cpu().numpy()

    def _evaluate(self, events: list[Event]) -> None:
        due = [row for row, member in enumerate(self.members)
               if self.round % member.job.evaluate_every == 0 or member.stopped(self.round)]
        if not due:
            return
        weights, buffers = torch.stack([self.model(row) for row in due]), self.buffers[due]
        tests = self.engine.evaluate(weights, buffers, self._test_x, self._test_y)
        for row, test, training in zip(due, tests, self._on_training_samples(due, weights, buffers), strict=True):
            events[row] |= {"test_loss": finite_or_none(test.loss), "test_accuracy": test.accuracy,
                            "training_set_loss": finite_or_none(training.loss),
                            "generalization_gap": finite_or_none(training.loss - test.loss)}

    def _on_training_samples(self, due: list[int], weights: Tensor, buffers: Tensor) -> list[Evaluation]:
        """Each due run's model on its own sample of the training set."""
        samples = [self.members[row].sample for row in due]
        if self.engine.device.type == "cuda" and len({len(sample) for sample in samples}) == 1:
            index = torch.stack(samples)
            return self.engine.evaluate(weights, buffers, self._train_x[index], self._train_y[index])
        alone = ((slice(i, i + 1), self._train_x[sample], self._train_y[sample]) for i, sample in enumerate(samples))
        return [self.engine.evaluate(weights[one], buffers[one], x, y)[0] for one, x, y in alone]

    def ready(self) -> bool:
        """Whether the pending rounds should be read now: at once on the CPU, some rounds at a time elsewhere."""
        return self.engine.device.type == "cpu" or len(self._pending) >= _PENDING

    def drain(self) -> list[list[Event]]:
        """The finished rounds' events since the last call, one list a member."""
        events: list[list[Event]] = [[] for _ in self.members]
        if not self._pending:
            return events
        # One copy from the device for all rounds.
        losses = torch.cat([pending.losses for pending in self._pending]).tolist()
        finite = torch.cat([pending.finite for pending in self._pending]).tolist()
        fine, start = all(finite), 0
        for pending in self._pending:
            for row, (event, turn) in enumerate(zip(pending.events, pending.turns, strict=True)):
                end = start + len(turn.ratios)
                good = losses[start:end]
                if not fine:
                    good = [loss for loss, one in zip(good, finite[start:end], strict=True) if one]
                    rejected = [n for n, one in zip(turn.arrived.tolist(), finite[start:end], strict=True) if not one]
                    if rejected:
                        event["rejected"] = rejected
                        self.members[row].ledger.rejected[rejected] += 1
                event["train_loss"] = sum(good) / len(good) if good else None
                events[row].append(event)
                start = end
        self._pending = []
        return events

    # --- coming and going -------------------------------------------------------------------------------------------

    def keep(self, rows: list[int]) -> None:
        """Goes on with these members only. Nothing may be pending."""
        assert not self._pending
        self.members = [self.members[row] for row in rows]
        self.weights, self.buffers = self.weights[rows], self.buffers[rows]
        self._ranks, self._unranked, self._rates = self._ranks[rows], self._unranked[rows], self._rates[rows]
        self.importances.keep(rows)
        self._batches = Batches(self.members, self._train_x, self._train_y)

    def state(self, row: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint of one run must hold. Nothing may be pending."""
        assert not self._pending
        tensors = {"weights": self.weights[row], "buffers": self.buffers[row], "ranks": self._ranks[row]}
        tensors |= {f"{_IMPORTANCE}{name}": tensor for name, tensor in self.importances.state(row).items()}
        return tensors, {"round": self.round, "ledger": self.members[row].ledger.state()}

    def load(self, states: Sequence[tuple[dict[str, Tensor], dict[str, Any]]]) -> None:
        """Restores every member's :meth:`state`; all are at the same round."""
        def stacked(name: str) -> Tensor:
            return torch.stack([tensors[name] for tensors, _ in states]).to(self.engine.device)

        self.round = int(states[0][1]["round"])
        self.weights, self.buffers, self._ranks = stacked("weights"), stacked("buffers"), stacked("ranks")
        for member, (_, state) in zip(self.members, states, strict=True):
            member.ledger.load(state["ledger"])
        self.importances.load([{name.removeprefix(_IMPORTANCE): tensor.to(self.engine.device)
                                for name, tensor in tensors.items() if name.startswith(_IMPORTANCE)}
                               for tensors, _ in states])


def _same_frozen(modules: Sequence[nn.Module]) -> None:
    """The engine computes with one module's frozen parameters; runs that drew others cannot be stacked on it."""
    first, *others = [[p for p in module.parameters() if not p.requires_grad] for module in modules]
    if any(not torch.equal(a, b) for own in others for a, b in zip(first, own, strict=True)):
        raise InputError("model: its frozen parameters differ from seed to seed, so that runs of several seeds cannot "
                         "be trained together; train them one by one, or draw them alike (initialisation: own)")
