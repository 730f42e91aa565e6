"""Rounds of FedLab 1.3.0: SyncServerHandler and SGDSerialClientTrainer, local SGD steps, all ten clients a round.

Each client's data loader is a list of its batches, so that torch's DataLoader costs FedLab nothing.
"""

import logging
import sys
from unittest.mock import MagicMock

# FedLab imports torchvision for its data sets, which this benchmark does not use, and which must match torch's build.
for name in ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.datasets.utils"):
    sys.modules[name] = MagicMock()

from common import BATCH, CLIENTS, RATE, LeNet5, data, serve, stretch  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402

logging.disable(logging.CRITICAL)


class Batches:
    """The batches of each client, as many as it takes steps."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def get_dataloader(self, client, batch_size):
        """The client's batches."""
        return list(zip(self.x[client].split(batch_size), self.y[client].split(batch_size)))


model = LeNet5()
handler = SyncServerHandler(model, global_round=10**9, sample_ratio=1.0)
handler.num_clients = CLIENTS
trainer = SGDSerialClientTrainer(model, CLIENTS)
trainer.setup_dataset(Batches())
trainer.setup_optim(epochs=1, batch_size=BATCH, lr=RATE)


def step() -> None:
    chosen = handler.sample_clients()
    trainer.local_process(handler.downlink_package, chosen)
    for package in trainer.uplink_package:
        handler.load(package)


if __name__ == "__main__":
    serve(stretch(step))
