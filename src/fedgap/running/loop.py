"""The loop over rounds, for one run or many at once: rank weights → clients compute → update → evaluate.

Several runs of one model on one data set advance together, round by round, as the R rows of the engine's tensors. The
results of a run do not depend on the other runs (up to floating-point rounding on some devices)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgap.errors import InputError
from fedgap.learning.data import Dataset
from fedgap.learning.engine import Engine
from fedgap.learning.global_model import GlobalModel
from fedgap.learning.learner import ServerUpdate
from fedgap.learning.metrics import Evaluation
from fedgap.learning.models import build
from fedgap.learning.stacked_importance import Importances
from fedgap.learning.structure import structure_of
from fedgap.running.clients import Clients, Delivery, Update
from fedgap.running.events import Event, finite_or_none
from fedgap.running.forecast_along import expected
from fedgap.running.job import Job
from fedgap.running.run_accounts import RunAccounts
from fedgap.running.simulated_clients import SimulatedClients
from fedgap.running.weights import load_weights
from fedgap.streams import stream, stream_seed

FINITE_SAMPLES = 64
"""Number of test samples on which the model's outputs are checked to be finite."""
if TYPE_CHECKING:
    from fedgap.running.ruled_steering import RuledSteering
    from fedgap.running.steering import Steering

_PENDING = 16  # rounds after which losses are copied from an accelerator


class Rounds:
    """R runs that advance together. ``accounts`` has one entry per run, in the order of the rows of ``model.weights``
    (R, M).

    ``clients`` compute the updates; if None, clients are simulated on ``dataset``."""

    def __init__(self, jobs: Sequence[Job], dataset: Dataset, clients: Clients | None = None,
                 steerings: Sequence[Steering | RuledSteering | None] | None = None) -> None:
        """``steerings`` has for each run what decides its rounds, or None if it follows its plan."""
        first = jobs[0]
        torch.set_num_threads(first.threads)
        modules = [build(**job.model, input_shape=dataset.shape, classes=dataset.classes,
                         seed=stream_seed(job.seed, "model")) for job in jobs]
        for job, module in zip(jobs, modules, strict=True):
            if job.weights is not None:
                load_weights(module, job.weights)
        _same_frozen(modules)
        self.engine = Engine(modules[0], device=first.device, precision=first.precision)
        device, dtype, layout = self.engine.device, self.engine.dtype, self.engine.layout
        self.structure = structure_of(first.structure, modules[0], dataset.shape)
        self.accounts = [RunAccounts(job, device, self.structure, steering)
                         for job, steering in zip(jobs, steerings or [None] * len(jobs), strict=True)]
        for account in self.accounts:
            if account.steering is not None and clients is None:  # nodes of a deployment cannot be asked for losses
                account.steering.ask = partial(self._losses_of, account)
        weights = torch.stack([layout.weights(module) for module in modules]).to(device, dtype)
        self.model = GlobalModel(
            weights,
            torch.stack([layout.buffers(module) for module in modules]).to(device, dtype),
            Importances([job.importance for job in jobs], [stream_seed(job.seed, "selection") for job in jobs], device),
            ServerUpdate([job.learner for job in jobs], weights), self.engine.ranking(self.structure))
        self._train_x, self._train_y = dataset.train_x.to(device, dtype), dataset.train_y.to(device)
        self._test_x, self._test_y = dataset.test_x.to(device, dtype), dataset.test_y.to(device)
        self._validation: tuple[Tensor, Tensor] | None = None
        if dataset.validation_x is not None and dataset.validation_y is not None:
            self._validation = dataset.validation_x.to(device, dtype), dataset.validation_y.to(device)
        self.clients = clients or SimulatedClients(self.accounts, self.engine, self.structure, self._train_x,
                                                   self._train_y)
        self._pending: list[Delivery] = []
        self.on_not_finite: Callable[[Event], None] | None = None
        """If set (with a single run), each round is checked. A round that would make the model infinite or NaN is
        undone, and this function is called with its event."""

    @property
    def round(self) -> int:
        """The number of the next round."""
        return self.model.round

    def step(self) -> bool:
        """Train the next round of every run. Returns False if the round does not count and must be tried again.

        That is the case if too few clients delivered, or if the round was undone (:attr:`on_not_finite`)."""
        if self.round == 0:
            self._note_first_losses()
        if self._steered:
            self.model.follow_schedule([account.rate_place(self.round) for account in self.accounts])
            self.clients.keep(self.accounts)  # take over the jobs of this round
        self._leave_old_targets()
        self.model.rank(any(account.prunes(self.round) for account in self.accounts))
        delivery = self.clients.work(self.model, self.accounts)
        if delivery is None:
            return False
        if delivery.update is None:
            self.model.skip()
        elif self.on_not_finite is None:
            self.model.advance(*delivery.update)
        elif not self._advance_if_finite(delivery.update):
            self.on_not_finite(delivery.events[0])
            return False
        self._pending.append(delivery)
        if self._steered:
            self._report_losses(delivery)
        self._evaluate(delivery)
        return True

    def _leave_old_targets(self) -> None:
        """Restart the server's momentum in runs whose batches now follow another target than before.

        Otherwise it would continue towards the old target for about ten rounds, and overshoot each time if targets
        alternate."""
        if moved := [row for row, account in enumerate(self.accounts) if account.leaves_target(self.round)]:
            self.model.forget_direction(moved)

    def _advance_if_finite(self, update: Update) -> bool:
        """Apply the update of the only run. If the model or its outputs for some test samples would not be finite, undo
        it and return False."""
        before, number = self.model.state(0), self.round
        self.model.advance(*update)
        weights, buffers = self.model.weights[0], self.model.buffers[0]
        if bool(weights.isfinite().all()) and bool(buffers.isfinite().all()):
            logits = self.engine.logits(weights, buffers, self._test_x[:FINITE_SAMPLES])
            if bool(logits.isfinite().all()):
                return True
        self.model.load([before], number)
        return False

    @property
    def _steered(self) -> bool:
        return any(account.steering is not None for account in self.accounts)

    def _report_losses(self, delivery: Delivery) -> None:
        """Tell the policies the training losses of the clients."""
        losses, start = delivery.losses.tolist(), 0
        for account, senders in zip(self.accounts, delivery.senders, strict=True):
            clients = np.asarray(senders).tolist()
            if account.steering is not None:
                account.steering.learn(self.round - 1, clients, losses[start:start + len(clients)])
            start += len(clients)

    def _losses_of(self, account: RunAccounts, number: int, clients: Sequence[int]) -> list[float]:
        """The losses of a run's present model on one mini-batch of each of these clients."""
        job, row = account.job, self.accounts.index(account)
        width = int(job.batch_size.max())
        draws = stream(job.seed, "policy", number, 1).random((len(job.names), width))[list(clients)]
        places = job.offsets[list(clients), None] + (draws * job.sizes[list(clients), None]).astype(np.int64)
        index = torch.from_numpy(job.indices[places]).to(self._train_y.device)
        logits = self.engine.logits(self.model.weights[row], self.model.buffers[row], self._train_x[index.flatten()])
        losses = nn.functional.cross_entropy(logits.float(), self._train_y[index.flatten()], reduction="none")
        of_batch = torch.arange(width, device=losses.device) < torch.from_numpy(
            job.batch_size[list(clients), None]).to(losses.device)
        sums = (losses.reshape(index.shape) * of_batch).sum(dim=1) / of_batch.sum(dim=1)
        return [float(loss) for loss in sums.tolist()]

    # --- results ----------------------------------------------------------------------------------------------------

    def shipped(self, row: int) -> Tensor:
        """The weights (M,) that are evaluated and saved after the last round: ω, or those of the pruned model ω̃."""
        return self.model.weights[row] * self.kept(row)

    def kept(self, row: int) -> Tensor:
        """The factor (M,) on each weight in the shipped model: 1 if ω is shipped, otherwise by what the last round's
        selected clients keep.

        See :meth:`~fedgap.learning.structure.Structure.kept_share`."""
        job, weights = self.accounts[row].job, self.model.weights
        if not job.evaluate_pruned or self.round == 0:
            return torch.ones_like(weights[row])
        ratios = self.accounts[row].ratios(self.round - 1)
        return self.structure.kept_share(self.model.ranks[row], ratios).to(weights)

    def test_answers(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The classes that the saved model predicts for the test samples, and the true ones, each (T,) int64."""
        logits = self.engine.logits(self.shipped(row), self.model.buffers[row], self._test_x)
        return logits.argmax(1).cpu().numpy(), self._test_y.cpu().numpy()

    def _evaluate(self, delivery: Delivery) -> None:
        due = [row for row, account in enumerate(self.accounts)
               if self.round % account.job.evaluate_every == 0 or account.stopped(self.round)]
        if not due:
            return
        weights, buffers = torch.stack([self.shipped(row) for row in due]), self.model.buffers[due]
        events = [delivery.events[row] for row in due]
        tests = self.engine.evaluate(weights, buffers, self._test_x, self._test_y)
        for event, test in zip(events, tests, strict=True):
            event |= {"test_loss": finite_or_none(test.loss), "test_accuracy": test.accuracy}
        for row, event, weights_now, buffers_now in zip(due, events, weights, buffers, strict=True):
            target = self.accounts[row].target(self.round - 1)
            if target is not None:
                event |= self._on_present_target(target, weights_now, buffers_now)
        if self._validation is not None:
            judged = self.engine.evaluate(weights, buffers, *self._validation)
            for row, event, held_out in zip(due, events, judged, strict=True):
                event |= {"validation_loss": finite_or_none(held_out.loss), "validation_accuracy": held_out.accuracy}
                forecast = expected(self.accounts[row].job, self.round, held_out.accuracy, len(self._validation[1]))
                if forecast is not None:
                    event["forecast"] = forecast
        if all(len(self.accounts[row].sample) for row in due):  # in a deployment the server has no training samples
            trained = self._on_training_samples(due, weights, buffers)
            for event, test, training in zip(events, tests, trained, strict=True):
                event |= {"training_set_loss": finite_or_none(training.loss),
                          "generalization_gap": finite_or_none(training.loss - test.loss)}
        ends = np.cumsum([len(np.asarray(senders)) for senders in delivery.senders])
        accepted = np.split(delivery.accepted.cpu().numpy(), ends[:-1])
        for row, event in zip(due, events, strict=True):
            self.accounts[row].judge(event, all_rejected=len(accepted[row]) > 0 and not accepted[row].any())
            self._note_good(row)

    def _note_good(self, row: int) -> None:
        """Store a run's model and progress, to return to them if the model becomes infinite later."""
        account = self.accounts[row]
        unused = account.divergence is None or account.recovery or self.on_not_finite is not None
        if unused or account.progress.diverged:
            return
        tensors = {name: tensor.clone() for name, tensor in self.model.state(row).items()}
        account.good = tensors, {"round": self.round, "progress": asdict(account.progress)}

    def _on_present_target(self, target: np.ndarray, weights: Tensor, buffers: Tensor) -> Event:
        """A model's loss and accuracy on the test set, each class weighted by its share in the present target
        distribution."""
        logits, labels = self.engine.logits(weights, buffers, self._test_x).double(), self._test_y
        shares = torch.from_numpy(target).to(logits)
        counts = torch.bincount(labels, minlength=len(target)).clamp(min=1)
        counted = (shares / counts)[labels]
        counted = counted / counted.sum()
        loss = nn.functional.cross_entropy(logits, labels, reduction="none") @ counted
        return {"test_loss": finite_or_none(float(loss)), "target": target.tolist(),
                "test_accuracy": float((logits.argmax(1) == labels).to(counted) @ counted)}

    def _note_first_losses(self) -> None:
        """Compute the losses of the initial models, which the divergence rule needs."""
        rows = [row for row, account in enumerate(self.accounts) if account.divergence is not None]
        weights, buffers = self.model.weights[rows], self.model.buffers[rows]
        if rows and all(len(self.accounts[row].sample) for row in rows):
            found = self._on_training_samples(rows, weights, buffers)
        elif rows and self._validation is not None:
            found = self.engine.evaluate(weights, buffers, *self._validation)
        else:
            return
        for row, first in zip(rows, found, strict=True):
            self.accounts[row].progress.first_loss = finite_or_none(first.loss)
            self._note_good(row)

    def _on_training_samples(self, rows: list[int], weights: Tensor, buffers: Tensor) -> list[Evaluation]:
        """Evaluate the model of each of these runs on the run's own sample of the training set."""
        samples = [self.accounts[row].sample for row in rows]
        if self.engine.device.type == "cuda" and len({len(sample) for sample in samples}) == 1:
            index = torch.stack(samples)
            return self.engine.evaluate(weights, buffers, self._train_x[index], self._train_y[index])
        alone = ((slice(i, i + 1), self._train_x[sample], self._train_y[sample]) for i, sample in enumerate(samples))
        return [self.engine.evaluate(weights[row], buffers[row], x, y)[0] for row, x, y in alone]

    def ready(self) -> bool:
        """Whether the losses of the pending rounds should be read now: always on the CPU, otherwise after several
        rounds."""
        return self.engine.device.type == "cpu" or len(self._pending) >= _PENDING

    def drain(self) -> list[list[Event]]:
        """The events of the rounds since the last call, one list per run."""
        events: list[list[Event]] = [[] for _ in self.accounts]
        if not self._pending:
            return events
        # One copy from the device for all rounds.
        losses = torch.cat([delivery.losses for delivery in self._pending]).tolist()
        accepted = torch.cat([delivery.accepted for delivery in self._pending]).tolist()
        all_accepted, start = all(accepted), 0
        for delivery in self._pending:
            for row, (event, senders) in enumerate(zip(delivery.events, delivery.senders, strict=True)):
                clients = np.asarray(senders)
                end = start + len(clients)
                run_losses = losses[start:end]
                if not all_accepted:
                    taken = np.array(accepted[start:end], dtype=bool)
                    run_losses = np.array(run_losses)[taken].tolist()
                    self.accounts[row].reject(event, clients[~taken].tolist())
                event["train_loss"] = sum(run_losses) / len(run_losses) if run_losses else None
                events[row].append(event)
                start = end
        self._pending = []
        return events

    # --- runs that end, checkpoints ---------------------------------------------------------------------------------

    def keep(self, rows: list[int]) -> None:
        """Drop all runs except these rows. No round may be pending."""
        assert not self._pending
        self.accounts = [self.accounts[row] for row in rows]
        self.model.keep(rows)
        if rows:  # no run is left
            self.clients.keep(self.accounts)

    def state(self, row: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and values that a checkpoint of one run must hold. No round may be pending."""
        assert not self._pending
        account = self.accounts[row]
        return self.model.state(row), {"round": self.round, **account.state()}

    def load(self, states: Sequence[tuple[dict[str, Tensor], dict[str, Any]]]) -> None:
        """Restore every run from its :meth:`state`; all runs are at the same round."""
        self.model.load([tensors for tensors, _ in states], int(states[0][1]["round"]))
        for account, (_, state) in zip(self.accounts, states, strict=True):
            account.load(state)
        for row in range(len(self.accounts)):
            self._note_good(row)
        if any(account.recovery for account in self.accounts):
            self.model.set_rates([account.job.learner for account in self.accounts])


def _same_frozen(modules: Sequence[nn.Module]) -> None:
    """Raise an InputError for runs whose frozen parameters differ, because the engine uses those of one module."""
    first, *others = [[p for p in module.parameters() if not p.requires_grad] for module in modules]
    if any(not torch.equal(a, b) for frozen in others for a, b in zip(first, frozen, strict=True)):
        raise InputError("model: its frozen parameters differ between seeds, so runs of several seeds cannot be "
                         "trained together; train them one by one, or let the model set them to fixed values "
                         "(initialisation: own keeps these)")
