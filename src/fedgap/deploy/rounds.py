"""The server's side of a round: the simulator's loop with the clients' gradients coming from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedgap.deploy.node import floats_from_bytes, floats_to_bytes
from fedgap.deploy.packet import Packet, PacketError
from fedgap.errors import InputError
from fedgap.learning.codec import HEADER_BYTES, Upload, decode, encode
from fedgap.learning.data import Dataset
from fedgap.learning.masks import digest, keep_count, prunes
from fedgap.learning.models.layout import Layout
from fedgap.running.events import Event
from fedgap.running.faults import Attendance
from fedgap.running.job import Job
from fedgap.running.ledger import Charge
from fedgap.running.loop import Rounds

MARGIN_BYTES = 4096
"""What a packet may have beyond its payload: fields, names, lengths."""


@dataclass(frozen=True)
class Gradient:
    """An accepted upload: masked gradient and mask (M,), buffers after the step (B,), loss, the node's own seconds,
    bytes of its payload, and whether indices had to come along."""

    upload: Upload
    buffers: Tensor
    loss: float
    seconds: float
    bytes: int
    indices: bool


@dataclass(frozen=True)
class Missing:
    """Who of the selected did not deliver, as positions of clients: known to be offline or failed; no answer by the
    deadline; an answer that was refused."""

    dropped: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()


def most_answer_bytes(layout: Layout) -> int:
    """Of a round's answer with this model: header, indices as a bitmap, all values, buffers, and a margin."""
    return HEADER_BYTES + layout.size // 8 + 1 + 4 * (layout.size + layout.buffer_size) + MARGIN_BYTES


class DeployedRounds(Rounds):
    """One run whose clients are nodes. ``run`` names it towards nodes, ``plan`` is its plan's hash."""

    def __init__(self, job: Job, dataset: Dataset, *, run: str, plan: str) -> None:
        if job.precision == "float64":
            raise InputError("engine.precision: uploads carry float32; use float32 to deploy")
        super().__init__([job], dataset)
        self.job, self.run, self.plan = job, run, plan
        self._last: bytes | None = None
        self._last_indices: bytes | None = None
        self._known = self.engine.layout.size

    # --- a round --------------------------------------------------------------------------------------------------

    @property
    def segment(self) -> int:
        """The plan's segment of the current round."""
        return int(self.job.schedule[self.round])

    @property
    def selected(self) -> list[int]:
        """The clients that the plan selects in the current round."""
        return [int(n) for n in np.flatnonzero(self.job.selected[self.segment])]

    def open(self) -> None:
        """Ranks the weights for the current round, from which every client's mask follows."""
        self._rank(prunes(self.job.ratio[self.segment, self.selected].tolist(), self.engine.layout.size))

    def mask(self, client: int) -> Tensor:
        """The client's mask (M,) as rebuilt here."""
        kept = keep_count(float(self.job.ratio[self.segment, client]), self.engine.layout.size)
        return (self._ranks[0] < kept).cpu()

    def request(self, client: int, *, state: bool, indices: bool, settings: Mapping[str, float]) -> Packet:
        """The current round's message to a client.

        ``state`` sends the whole state instead of the last round's gradient; ``indices`` sends the gradient's indices
        too, for a node whose floats differ; ``settings`` are its power and frequency.
        """
        fields: dict[str, Any] = {"kind": "round", "run": self.run, "plan": self.plan, "round": self.round}
        blobs: dict[str, bytes] = {}
        if state or self.round == 0:
            job = self.job
            fields["task"] = {"seed": job.seed, "client": client, "model": job.model, "importance": job.importance,
                              "learning_rate": job.learning_rate, "input_shape": job.extra["input_shape"],
                              "classes": job.extra["classes"]}
            blobs["state"] = self._state_bytes()
        elif self._last is not None:
            fields["known"] = self._known
            last = self._last_indices if indices else self._last
            assert last is not None
            blobs["gradient"] = last
            if self.engine.layout.buffer_size:
                blobs["buffers"] = floats_to_bytes(self.buffers[0])
        if client in self.selected:
            fields |= {"ratio": float(self.job.ratio[self.segment, client]), "mask": digest(self.mask(client)).hex(),
                       "batch": int(self.job.batch_size[client]), **settings}
        return Packet(fields, blobs)

    def _state_bytes(self) -> bytes:
        tensors, _ = self.state(0)
        return bytes(save_tensors({name: t.detach().cpu().float().flatten() for name, t in tensors.items()
                                   if name != "ranks" and t.numel()}))

    def most_bytes(self) -> int:
        """No answer of a round may be longer."""
        return most_answer_bytes(self.engine.layout)

    def accept(self, client: int, answer: Packet) -> Gradient:
        """A client's answer, checked in every field; :class:`~fedgap.errors.FedgapError` says what is wrong with it."""
        if answer.whole("round") != self.round:
            raise PacketError(f"the answer is of round {answer.whole('round')}; this is round {self.round}")
        data, layout = answer.blob("upload"), self.engine.layout
        upload = decode(data, size=layout.size, round=self.round, plan=self.plan, mask=self.mask(client))
        kept = keep_count(float(self.job.ratio[self.segment, client]), layout.size)
        if int(upload.mask.sum()) != kept:
            raise PacketError(f"{int(upload.mask.sum())} weights are kept; the plan says {kept}")
        buffers = torch.zeros(0)
        if layout.buffer_size:
            buffers = floats_from_bytes(answer.blob("buffers"), layout.buffer_size)
        nested = len(data) == HEADER_BYTES + 4 * kept
        return Gradient(upload, buffers, answer.number("loss"), answer.number("seconds"),
                        sum(map(len, answer.blobs.values())), not nested)

    def close(self, arrived: Mapping[int, Gradient], missing: Missing, extra: Event) -> Event:
        """Aggregates, steps, charges the ledger, evaluates; returns the round's line for ``rounds.jsonl``.

        ``extra`` is what was measured.
        """
        order = sorted(arrived)  # the order of arrival must not change a float
        event = self._book(set(arrived), missing) | extra
        member = self.members[0]
        if order:
            own = [arrived[n] for n in order]
            gradient = (torch.stack([g.upload.gradient for g in own]).sum(0) / len(own)).to(self.weights)
            known = torch.stack([g.upload.mask for g in own]).any(0)
            self.importances.observe(self.weights, gradient[None], known.to(self.weights.device)[None], (0,))
            rate = torch.tensor([[self.job.learning_rate]], dtype=self.weights.dtype, device=self.weights.device)
            self.weights = self.weights - rate * gradient[None]
            if self.engine.layout.buffer_size:
                self.buffers = (torch.stack([g.buffers for g in own]).sum(0) / len(own)).to(self.buffers)[None]
            losses = [g.loss for g in own]
            event["train_loss"] = sum(losses) / len(losses)
            self._known = int(known.sum())
            # A node whose floats differ keeps weights that the others cannot know from their own ranking.
            nested = bool(torch.equal(known, (self._ranks[0] < self._known).cpu()))
            self._last_indices = encode(gradient, known, round=self.round, plan=self.plan, nested=False)
            self._last = (encode(gradient, known, round=self.round, plan=self.plan) if nested else self._last_indices)
        else:
            self._last = self._last_indices = None
        for key in ("dropped", "late", "rejected"):
            if who := getattr(missing, key):
                event[key] = list(who)
        member.ledger.rejected[list(missing.rejected)] += 1
        self.round += 1
        self._evaluate([event])
        return event

    def _book(self, arrived: set[int], missing: Missing) -> Event:
        """Charges the modelled cost: everybody who worked pays the planned joules, a client that was offline none."""
        job, segment, member = self.job, self.segment, self.members[0]
        work, size = member.work[segment], len(job.names)

        def marked(who: tuple[int, ...] | set[int]) -> NDArray[np.bool_]:
            result = np.zeros(size, dtype=np.bool_)
            result[list(who)] = True
            return result

        dropped = marked(missing.dropped)
        delivered = marked(arrived) | marked(missing.rejected)
        spent = np.where(dropped, 0.0, 1.0)
        went = Attendance(delivered, dropped, marked(missing.late), spent * work.compute_j, spent * work.upload_j,
                          spent * work.client_s, float(work.client_s.max()))
        bits = float(member.bits[segment, delivered].sum())
        charge = Charge.of(went, member.broadcast_j, bits)
        member.ledger.book(charge)
        chosen = self.selected
        statement = float(job.statement[segment])
        return {"round": self.round, "clients": chosen, "pruning_ratio": job.ratio[segment, chosen].tolist(),
                "energy_j": charge.energy_j, "delay_s": charge.delay_s, "energy_total_j": member.ledger.energy_j,
                "delay_total_s": member.ledger.delay_s, "train_loss": None,
                "client_energy_j": charge.client_j[chosen].tolist(),
                "client_delay_s": charge.client_s[chosen].tolist(), "broadcast_j": charge.broadcast_j,
                "uploaded_bits": bits, "statement": statement if np.isfinite(statement) else None}

    def _evaluate(self, events: list[Event]) -> None:
        """On the server's test set; the training loss on the clients' samples is theirs, so there is no gap here."""
        if self.round % self.job.evaluate_every and not self.members[0].stopped(self.round):
            return
        (test,) = self.engine.evaluate(self.model(0)[None], self.buffers, self._test_x, self._test_y)
        finite = np.isfinite(test.loss)
        events[0] |= {"test_loss": float(test.loss) if finite else None, "test_accuracy": test.accuracy}
