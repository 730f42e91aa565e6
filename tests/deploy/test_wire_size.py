"""Bytes of an answer as Flower sends it: bits × kept weights, and little else."""

import pytest

from fedgap.deploy.packet import PACKET, RECORD
from fedgap.learning.masks import keep_count
from fedgap.upload_size import HEADER_BYTES

flwr = pytest.importorskip("flwr.app")

MESSAGE_BYTES = 600
"""What a message may have beside its values and their scales, the upload's header included. Measured: 575 to 578;
docs/how-to/deploy.md says it."""
MLP_WEIGHTS = 784 * 16 + 16 + 16 * 10 + 10


def bytes_sent(request, answer, monkeypatch):
    """Bytes of all objects that a SuperNode pushes for the reply ``answer`` to ``request``."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 2**63 - 1)  # as long as such a number gets
    asked = flwr.Message(flwr.RecordDict({RECORD: flwr.ConfigRecord({PACKET: request.to_bytes()})}),
                         dst_node_id=2**63 - 1, message_type="train", group_id=str(request.fields["round"]), ttl=60.0)
    asked.metadata.__dict__["_message_id"] = asked.object_id
    reply = flwr.Message(flwr.RecordDict({RECORD: flwr.ConfigRecord({PACKET: answer.to_bytes()})}), reply_to=asked)
    return sum(len(one.deflate()) for one in get_all_nested_objects(reply).values())


@pytest.mark.parametrize(("bits", "steps", "energy_j", "delay_s"), [
    (32, 1, 1.4, 3.4), (8, 3, 0.5, 1.2), (4, 2, 0.5, 1.2)])  # so that clients have to prune
def test_an_answer_has_its_bits_for_each_kept_weight_and_a_constant(fleet, monkeypatch, bits, steps, energy_j, delay_s):
    nodes = fleet(4, "rounds=7", "model.arguments={hidden: [16]}", "scheme=all_clients", "evaluate_every=7",
                  f"learning.upload_bits={bits}", f"learning.local_steps={steps}", f"budget.energy_j={energy_j}",
                  f"budget.delay_s={delay_s}")
    answers = []
    for client in range(4):
        nodes.spoil[client] = lambda request, answer: answers.append((request, answer)) or answer.to_bytes()
    run = nodes.session().run()
    done = [(request, answer) for request, answer in answers if answer.fields["status"] == "done"]
    assert len(done) == 4 * len(run.history)
    assert any(ratio > 0.1 for event in run.history for ratio in event["pruning_ratio"])
    for request, answer in done:
        values = bits * keep_count(request.fields["ratio"], MLP_WEIGHTS) / 8
        sent = bytes_sent(request, answer, monkeypatch)
        assert values < sent <= 1.05 * values + MESSAGE_BYTES
        assert sent - len(answer.blobs["upload"]) + HEADER_BYTES <= MESSAGE_BYTES
