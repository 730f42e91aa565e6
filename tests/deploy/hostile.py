"""Nodes that lie, for tests and measurements: what they send, and what comes of it."""

import torch

from fedgap.deploy.node import floats_to_bytes
from fedgap.deploy.packet import Packet
from fedgap.learning.codec import decode, encode
from fedgap.learning.masks import digest

TRAINING = ("rounds=30", "learning.rate=0.2", "scheme=all_clients", "data.train_samples=2000", "data.test_samples=500",
            "budget.energy_j=1000", "budget.delay_s=1000", "evaluate_every=30")
"""A short training of the MLP on real digits that ends at about 85 %."""


def changed_gradient(request, answer, change):
    """The answer with another gradient: ``change(gradient, mask)``, in a well-formed upload."""
    size, number, plan = None, request.fields["round"], request.fields["plan"]
    header = answer.blobs["upload"]
    size = int.from_bytes(header[9:13], "little")
    kept = int.from_bytes(header[13:17], "little")
    mask = torch.ones(size, dtype=torch.bool) if kept == size else None
    upload = decode(header, size=size, round=number, plan=plan, mask=mask)
    gradient = torch.where(upload.mask, change(upload.gradient, upload.mask), 0.0)
    nested = digest(upload.mask).hex() == request.fields["mask"]
    return Packet(answer.fields, {**answer.blobs, "upload": encode(gradient, upload.mask, round=number, plan=plan,
                                                                  nested=nested)})


def scaled(factor):
    """A node that multiplies its gradient by a factor; float32's largest number is the limit."""
    def spoil(request, answer):
        if answer.fields["status"] != "done":
            return answer.to_bytes()
        return changed_gradient(request, answer, lambda g, mask: (g.double() * factor).clamp(-3.3e38, 3.3e38).float()
                                ).to_bytes()
    return spoil


def enormous(request, answer):
    """Every entry is 3.3e38."""
    if answer.fields["status"] != "done":
        return answer.to_bytes()
    return changed_gradient(request, answer, lambda g, mask: torch.full_like(g, 3.3e38)).to_bytes()


def with_buffers(change):
    """A node that sends other BatchNorm statistics: ``change(buffers)``, float32 (B,)."""
    def spoil(request, answer):
        if answer.fields["status"] != "done":
            return answer.to_bytes()
        sent = change(torch.frombuffer(bytearray(answer.blobs["buffers"]), dtype=torch.float32))
        return Packet(answer.fields, {**answer.blobs, "buffers": floats_to_bytes(sent)}).to_bytes()
    return spoil


def claims(**fields):
    """A node whose profile has other fields."""
    def spoil(request, answer):
        if request.fields["kind"] != "enrol":
            return answer.to_bytes()
        return Packet({**answer.fields, **fields}).to_bytes()
    return spoil
