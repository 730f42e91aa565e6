"""An ordinary Flower app: FedAvg, whose client imports torch, builds LeNet-5 and takes one step on a batch of its own.

It contains nothing of fedgap. The seconds of each round, and those of its slowest client, are written to the file
``out``."""

import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

BATCH = 32
client_app = ClientApp()
server_app = ServerApp()


class LeNet5(nn.Module):
    """LeNet-5 on 28×28, 44,426 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One SGD step."""
    began = time.perf_counter()
    torch.set_num_threads(1)
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    module = LeNet5()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    metrics = MetricRecord({"num-examples": BATCH, "seconds": time.perf_counter() - began})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """FedAvg that records how long a round took, from its configuration to its last answer."""

    out: Path

    def configure_train(self, *arguments, **options):
        """Record the start of a round."""
        self._began = time.monotonic()
        return super().configure_train(*arguments, **options)

    def aggregate_train(self, server_round, replies):
        """Record the end of a round, when all clients have answered or failed."""
        wall, replies = time.monotonic() - self._began, list(replies)
        own = [float(reply.content["metrics"]["seconds"]) for reply in replies if not reply.has_error()]
        with open(self.out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"measured_s": wall, "client_measured_s": own}) + "\n")
        return super().aggregate_train(server_round, replies)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    nodes = int(context.run_config["nodes"])
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.out = Path(str(context.run_config["out"]))
    strategy.start(grid=grid, initial_arrays=ArrayRecord(LeNet5().state_dict()),
                   num_rounds=int(context.run_config["rounds"]))
