"""Rounds of Flower 1.41.0's simulation (Ray): FedAvg over ten virtual SuperNodes, one local SGD step, no evaluation.

Clients run in Ray actors with one processor each, on all processors of the machine.
"""

import os
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
               "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONPATH": os.path.dirname(__file__)}

import torch
from common import BATCH, CLIENTS, RATE, LeNet5, data, serve
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()
AT_A_TIME = 3  # rounds of one call of the strategy; its start costs little


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One SGD step on the client's batch."""
    x, y = data()
    client = int(context.node_config["partition-id"])
    module = LeNet5()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    torch.nn.functional.cross_entropy(module(x[client]), y[client]).backward()
    optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds whenever the referee asks for them, until it closes the input."""
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    state = {"arrays": ArrayRecord(LeNet5().state_dict())}

    def rounds_within(seconds: float) -> tuple[int, float]:
        rounds, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            result = strategy.start(grid=grid, initial_arrays=state["arrays"], num_rounds=AT_A_TIME)
            state["arrays"] = result.arrays
            rounds += AT_A_TIME
        return rounds, time.perf_counter() - start

    serve(rounds_within)


if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=CLIENTS,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
