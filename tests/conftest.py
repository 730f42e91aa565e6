"""What holds for every test."""

import pytest


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as in a pipe, whatever runs the tests (pytest-xdist tells its workers a width)."""
    monkeypatch.delenv("COLUMNS", raising=False)
