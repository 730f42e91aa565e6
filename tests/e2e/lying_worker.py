"""A node's worker that lies: python -m tests.e2e.lying_worker FOLDER. The first round is honest, then six lies."""

import sys
from pathlib import Path

from fedgap.deploy.packet import Packet
from fedgap.deploy.worker import Worker, serve
from tests.deploy.test_session import no_packet, not_a_number, other_plan, oversized, wrong_round, wrong_shape

LIES = {1: wrong_shape, 2: not_a_number, 3: wrong_round, 4: other_plan, 5: oversized, 6: no_packet}


class LyingWorker(Worker):
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
