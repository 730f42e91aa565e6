from functools import partial

import pytest
import torch

from tests.deploy.direct import make_fleet


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fleet(tmp_path):
    """fleet(nodes, "key=value", ...) → an experiment's nodes in this process."""
    return partial(make_fleet, tmp_path)
