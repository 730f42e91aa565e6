"""Rounds of pfl 0.6.0: FederatedAveraging on its SimulatedBackend, local SGD steps, all ten users a cohort."""

import time

import torch
from common import BATCH, CLIENTS, RATE, STEPS, LeNet5, data, serve
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Model(LeNet5):
    """LeNet-5 with the methods that pfl needs."""

    def loss(self, x, y, is_eval=False):
        """The loss that a user minimises."""
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, is_eval=False):
        """No metrics, because evaluation is not timed."""
        return {}


class Clock(TrainingProcessCallback):
    """Counts iterations and ends the training when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rounds, self.start, self.stop = seconds, 0, 0.0, 0.0

    def on_train_begin(self, *, model):
        """Start the clock."""
        self.start = time.perf_counter()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Count a round; end the training if the time is up."""
        self.rounds += 1
        self.stop = time.perf_counter()
        return self.stop - self.start >= self.seconds, Metrics()


x, y = data()
users = {str(n): Dataset((x[n], y[n])) for n in range(CLIENTS)}
dataset = FederatedDataset(lambda user: users[user], get_user_sampler("minimize_reuse", list(users)))
module = Model()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))


def rounds_within(seconds: float) -> tuple[int, float]:
    clock = Clock(seconds)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(central_num_iterations=10**9, evaluation_frequency=10**9,
                                           train_cohort_size=CLIENTS, val_cohort_size=0),
        backend=SimulatedBackend(training_data=dataset, val_data=None), model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=None, local_num_steps=STEPS, local_learning_rate=RATE,
                                              local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH), callbacks=[clock])
    return clock.rounds, clock.stop - clock.start


if __name__ == "__main__":
    serve(rounds_within)
