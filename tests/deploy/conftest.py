import pytest
import torch

from fedgap.config import Experiment
from fedgap.deploy.enrol import first_clients
from tests.deploy.direct import Fleet


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fleet(tmp_path):
    """fleet(nodes, "key=value", ...) → an experiment's nodes in this process."""

    def make(count=3, *overrides, preset="embedded"):
        keys = ["rounds=6", "model.name=mlp", "data.train_samples=600", "data.test_samples=200", "engine.threads=1",
                "engine.kind=loop", "evaluate_every=3", "budget.energy_j=30", "budget.delay_s=15", *overrides]
        return Fleet(first_clients(Experiment.load(preset, keys), count), count, tmp_path)

    return make
