from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")

from tests.web.studio_server import Studio


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with Studio(tmp_path_factory.mktemp("studio") / "runs") as running:
        yield running
    assert not running.errors or running.errors == ["fedgap: interrupted\n"], running.errors
