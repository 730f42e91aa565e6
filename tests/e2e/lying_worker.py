"""A node's worker that lies: python -m tests.e2e.lying_worker FOLDER. The first round is honest, then nine lies."""

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


class LyingWorker(NodeWorker):
    def answer(self, which: bytes, request: bytes) -> bytes:
        asked, answer = Packet.from_bytes(request, 2**30), super().answer(which, request)
        lie = LIES.get(asked.fields.get("round"))
        if lie is None or "ratio" not in asked.fields:
            return answer
        said = lie(asked, Packet.from_bytes(answer, 2**30))
        return said if isinstance(said, bytes) else said.to_bytes()


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    serve(folder, LyingWorker(folder))
