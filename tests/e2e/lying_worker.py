"""A node's worker that lies: python -m tests.e2e.lying_worker FOLDER [PROFILE].

With the name of a false profile it enrols with that. Otherwise the first round is honest, then nine lies.
"""

import sys
from pathlib import Path

from fedgap.deploy.node_worker import NodeWorker, serve
from fedgap.deploy.packet import Packet
from tests.deploy.test_hostile_nodes import one_infinite_length, with_field
from tests.deploy.test_session import no_packet, not_a_number, other_plan, oversized, wrong_round, wrong_shape


def enormous(request, answer):
    """The SuperLink itself refuses it, after it was announced: it never comes."""
    return Packet(answer.fields, {**answer.blobs, "more": bytes(2**24)})


LIES = {1: wrong_shape, 2: not_a_number, 3: wrong_round, 4: other_plan, 5: oversized, 6: no_packet,
        7: one_infinite_length, 8: with_field("loss", "1" + "0" * 400), 9: enormous}


def negative_gain(fields):
    return {**fields, "device": {**fields["device"], "uplink_gain": -1e-6}}


PROFILES = {"many samples": lambda fields: {**fields, "label_counts": [10**9] * 10},
            "five classes": lambda fields: {**fields, "label_counts": [10] * 5}, "negative gain": negative_gain}


class LyingWorker(NodeWorker):
    profile = None

    def answer(self, which: bytes, request: bytes) -> bytes:
        asked, answer = Packet.from_bytes(request, 2**30), super().answer(which, request)
        if self.profile is not None and asked.fields["kind"] == "enrol":
            return Packet(self.profile(Packet.from_bytes(answer, 2**30).fields)).to_bytes()
        lie = LIES.get(asked.fields.get("round"))
        if lie is None or "ratio" not in asked.fields:
            return answer
        said = lie(asked, Packet.from_bytes(answer, 2**30))
        return said if isinstance(said, bytes) else said.to_bytes()


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    worker = LyingWorker(folder)
    if len(sys.argv) > 2:
        worker.profile = PROFILES[sys.argv[2]]
    serve(folder, worker)
