"""What holds for every test."""

import os

import pytest
from hypothesis import settings

# Some processors, and some virtual machines, announce AMX and die of an illegal instruction when bfloat16 kernels use
# it. oneDNN reads this variable when its first kernel runs; child processes inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The workers of pytest-xdist share the cores. With as many threads as cores in each worker and each of its child
# processes, they would mostly wait for each other, and spin while they do.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A fixed sample by default, so that what passes once passes again; new examples each time where the counts are full.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("full", derandomize=False, deadline=None, print_blob=True)
FULL = os.environ.get("FEDGAP_FULL") == "1"
settings.load_profile("full" if FULL else "fixed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked ``full`` to `make test-all`, and begin with the browser, lest one worker wait for it."""
    if not FULL:
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]
    items.sort(key=lambda item: item.path.name != "test_studio_browser.py")


@pytest.fixture
def cpu_precision(request: pytest.FixtureRequest) -> str:
    """The test's ``precision``; the test is skipped where this computer's processor cannot compute in it."""
    from fedgap.learning.engine.cpu_probe import WORKS, probe

    precision: str = request.getfixturevalue("precision")
    if probe(precision) != WORKS:
        pytest.skip(f"this computer's processor cannot compute in {precision}")
    return precision


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as in a pipe, whatever runs the tests (pytest-xdist tells its workers a width)."""
    monkeypatch.delenv("COLUMNS", raising=False)
