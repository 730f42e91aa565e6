"""FedAvg, FedAvgM, FedAdam, FedYogi and FedProx against other people's code: Flower's strategies and pfl's algorithms.

Four clients of equally many samples take three local steps in each of five rounds, every client its batches in the same
order. The others train with torch's own optimiser; Flower aggregates with its strategies in float64, pfl runs whole,
in float32. After five rounds the global models agree to 1e-5 relative.

How their settings map to ours (η the clients' rate, d = η·ū the direction that the server's optimiser is given):

| theirs | ours |
|---|---|
| Flower FedAvg; pfl FederatedAveraging, central SGD(lr=1) | ``sgd``, rate 1 |
| Flower FedAvgM(server_learning_rate, server_momentum); pfl central SGD(lr, momentum) | ``momentum``, rate, momentum |
| pfl central SGD(lr, momentum, nesterov=True) | ``nesterov``, rate, momentum |
| Flower FedAdam(eta, eta_l, beta_1, beta_2, tau) | ``Adam(beta_1, beta_2, tau)``; Flower corrects the bias by its rate, eta·√(1 − β₂ˢ⁺¹)/(1 − β₁ˢ⁺¹) in round s = 1, 2, …, which ours is given as the round's rate; eta_l is η |
| pfl central Adam(lr, betas, eps) | the same with exponent s for s + 1, and ε·√(1 − β₂ˢ) in round s: torch corrects √v inside the sum |
| Flower FedYogi(eta, eta_l, beta_1, beta_2, tau) | ``Yogi(beta_1, beta_2, tau)``, rate eta |
| Flower FedProx(proximal_mu); pfl FedProx(mu) | ``LocalTraining(proximal=mu)``, ``sgd``, rate 1 |
"""  # noqa: E501

from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedgap.learning import reference
from fedgap.learning.contract import LocalTraining, RoundInput, known
from fedgap.learning.engine import Engine
from fedgap.learning.models import Layout, build
from fedgap.learning.server_optimisers import Adam, Momentum, Nesterov, ServerOptimiser, Yogi

CLIENTS, STEPS, BATCH, ROUNDS, RATE = 4, 3, 5, 5, 0.05
SHAPE = (1, 28, 28)
BETA_1, BETA_2, EPSILON = 0.9, 0.99, 1e-3
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(dtype):
    return build("lenet5", input_shape=SHAPE, classes=10, seed=0).to(dtype)


def data(dtype):
    """Images (K, τ, Z, *shape) and labels (K, τ, Z)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, STEPS, BATCH, *SHAPE, generator=generator)
    return x.to(dtype), torch.randint(10, (CLIENTS, STEPS, BATCH), generator=generator)


def ours(optimiser_of_round, rate_of_round, local=None, engine=False):
    """Five rounds by the loop engine, or the stacked one, in float64: the weights (M,).

    ``optimiser_of_round`` and ``rate_of_round`` are functions of s = 1, 2, …
    """
    local = local or LocalTraining(STEPS)
    module = model(torch.float64)
    x, y = data(torch.float64)
    layout = Layout.of(module)
    weights, none = layout.weights(module)[None], torch.zeros(1, 0, dtype=torch.float64)
    everything = torch.arange(layout.size, dtype=torch.int32)[None]
    rates = torch.tensor([RATE], dtype=torch.float64)
    stacked = Engine(module, precision="float64")
    state = optimiser_of_round(1).init(weights)
    for s in range(1, ROUNDS + 1):
        given = RoundInput(weights, everything, none, (0,) * CLIENTS, (0.0,) * CLIENTS, x, y)
        out = (stacked.updates(given, local, rates) if engine else reference.updates(module, given, local, rates))
        weights, state = optimiser_of_round(s).step(weights, rates[:, None] * out.gradient, known(given, out),
                                                    rate_of_round(s), state)
    return weights[0]


def assert_same(mine, theirs):
    start = Layout.of(model(torch.float64)).weights(model(torch.float64))
    assert float((theirs - start).norm() / start.norm()) > 1e-3  # it has moved
    assert float((mine - theirs).norm() / theirs.norm()) <= TOLERANCE


def adam_rate(rate, exponent):
    return rate * sqrt(1 - BETA_2**exponent) / (1 - BETA_1**exponent)


# --- Flower ---------------------------------------------------------------------------------------------------------


def flowers(strategy_of, proximal=0.0):
    """Five rounds of a Flower strategy's own aggregation; its clients train in plain torch."""
    common = pytest.importorskip("flwr.common")
    module = model(torch.float64)
    x, y = data(torch.float64)
    arrays = [p.detach().numpy().copy() for p in module.parameters()]
    strategy = strategy_of(common.ndarrays_to_parameters(arrays))
    for s in range(1, ROUNDS + 1):
        results = []
        for client in range(CLIENTS):
            _load(module, arrays)
            start = [p.detach().clone() for p in module.parameters()]
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
            for images, labels in zip(x[client], y[client], strict=True):
                optimizer.zero_grad()
                loss = functional.cross_entropy(module(images), labels)
                loss = loss + proximal / 2 * sum((p - q).square().sum() for p, q in zip(module.parameters(), start,
                                                                                       strict=True))
                loss.backward()
                optimizer.step()
            trained = common.ndarrays_to_parameters([p.detach().numpy().copy() for p in module.parameters()])
            status = common.Status(common.Code.OK, "")
            results.append((None, common.FitRes(status, trained, STEPS * BATCH, {})))
        parameters, _ = strategy.aggregate_fit(s, results, [])
        arrays = common.parameters_to_ndarrays(parameters)
    return torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))


def _load(module, arrays):
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.asarray(array)))


def strategies():
    return pytest.importorskip("flwr.server.strategy")


@pytest.mark.parametrize("engine", [False, True])
def test_fedavg_is_flowers(engine):
    theirs = flowers(lambda start: strategies().FedAvg(initial_parameters=start))
    assert_same(ours(lambda s: ServerOptimiser(), lambda s: 1.0, engine=engine), theirs)


@pytest.mark.parametrize("rate", [1.0, 0.7])
def test_fedavgm_is_flowers(rate):
    theirs = flowers(lambda start: strategies().FedAvgM(initial_parameters=start, server_learning_rate=rate,
                                                        server_momentum=0.9))
    assert_same(ours(lambda s: Momentum(0.9), lambda s: rate), theirs)


def test_fedadam_is_flowers():
    theirs = flowers(lambda start: strategies().FedAdam(initial_parameters=start, eta=0.01, eta_l=RATE, beta_1=BETA_1,
                                                        beta_2=BETA_2, tau=EPSILON))
    assert_same(ours(lambda s: Adam(BETA_1, BETA_2, EPSILON), lambda s: adam_rate(0.01, s + 1)), theirs)


def test_fedyogi_is_flowers():
    theirs = flowers(lambda start: strategies().FedYogi(initial_parameters=start, eta=0.01, eta_l=RATE, beta_1=BETA_1,
                                                        beta_2=BETA_2, tau=EPSILON))
    assert_same(ours(lambda s: Yogi(BETA_1, BETA_2, EPSILON), lambda s: 0.01), theirs)


@pytest.mark.parametrize("engine", [False, True])
def test_fedprox_is_flowers(engine):
    theirs = flowers(lambda start: strategies().FedProx(initial_parameters=start, proximal_mu=2.0), proximal=2.0)
    mine = ours(lambda s: ServerOptimiser(), lambda s: 1.0, LocalTraining(STEPS, proximal=2.0), engine)
    assert_same(mine, theirs)
    without = ours(lambda s: ServerOptimiser(), lambda s: 1.0)
    assert float((without - theirs).norm() / theirs.norm()) > 10 * TOLERANCE  # the term matters


# --- pfl ------------------------------------------------------------------------------------------------------------


def pfls(central_optimizer_of, mu=None, max_norm=None):
    """Five rounds of pfl's own algorithm and backend in float32; ``mu`` asks for FedProx."""
    pytest.importorskip("pfl", reason="pfl is not installed (pip install pfl)")
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        """LeNet-5 with what pfl asks of a module."""

        def __init__(self):
            super().__init__()
            self.inner = model(torch.float32)

        def loss(self, x, y, is_eval=False):
            return functional.cross_entropy(self.inner(x), y.long())

        def metrics(self, x, y, is_eval=False):
            return {}

    x, y = data(torch.float32)
    users = {str(n): Dataset((x[n].flatten(0, 1), y[n].flatten())) for n in range(CLIENTS)}
    dataset = FederatedDataset(lambda user: users[user], get_user_sampler("minimize_reuse", list(users)))
    module = Module()
    settings = {"central_num_iterations": ROUNDS, "evaluation_frequency": 10**9, "train_cohort_size": CLIENTS,
                "val_cohort_size": 0}
    algorithm, parameters = ((FederatedAveraging(), NNAlgorithmParams(**settings)) if mu is None else
                             (FedProx(), FedProxParams(**settings, mu=mu)))
    algorithm.run(
        algorithm_params=parameters, backend=SimulatedBackend(training_data=dataset, val_data=None),
        model=PyTorchModel(module, torch.optim.SGD, central_optimizer_of(module.parameters())),
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH,
                                              local_max_grad_norm=max_norm),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH), callbacks=[])
    return Layout.of(module.inner).weights(module.inner).double()


def test_fedavg_is_pfls():
    theirs = pfls(lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    assert_same(ours(lambda s: ServerOptimiser(), lambda s: 1.0), theirs)


def test_clipped_fedavg_is_pfls():
    theirs = pfls(lambda parameters: torch.optim.SGD(parameters, lr=1.0), max_norm=1.0)
    assert_same(ours(lambda s: ServerOptimiser(), lambda s: 1.0, LocalTraining(STEPS, clip_norm=1.0)), theirs)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_is_pfls(nesterov):
    theirs = pfls(lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=nesterov))
    assert_same(ours(lambda s: (Nesterov if nesterov else Momentum)(0.9), lambda s: 0.7), theirs)


def test_fedadam_is_pfls():
    theirs = pfls(lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(BETA_1, BETA_2), eps=EPSILON))
    mine = ours(lambda s: Adam(BETA_1, BETA_2, EPSILON * sqrt(1 - BETA_2**s)), lambda s: adam_rate(0.01, s))
    assert_same(mine, theirs)


def test_fedprox_is_pfls():
    theirs = pfls(lambda parameters: torch.optim.SGD(parameters, lr=1.0), mu=0.9)
    assert_same(ours(lambda s: ServerOptimiser(), lambda s: 1.0, LocalTraining(STEPS, proximal=0.9)), theirs)
