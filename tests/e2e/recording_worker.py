"""A node's worker that keeps what it uploads: python -m tests.e2e.recording_worker FOLDER WHERE."""

import sys
from pathlib import Path

from fedgap.deploy.node_worker import NodeWorker, serve
from fedgap.deploy.packet import Packet


class RecordingWorker(NodeWorker):
    def answer(self, which: bytes, request: bytes) -> bytes:
        answer = super().answer(which, request)
        packet = Packet.from_bytes(answer, 2**30)
        if "upload" in packet.blobs:
            (where / f"round-{packet.fields['round']}").write_bytes(packet.blobs["upload"])
        return answer


if __name__ == "__main__":
    folder, where = (Path(word).resolve() for word in sys.argv[1:3])
    serve(folder, RecordingWorker(folder))
