"""Requests made up from the OpenAPI description: whatever comes, the server answers, and never with a 5xx."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

import requests  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402

from tests.web.studio_server import Studio  # noqa: E402

FULL = os.environ.get("FEDGAP_FULL") == "1"
EXAMPLES = 450 if FULL else 14
"""For each of the twelve operations that take anything: 5,400 requests, or some 150."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio whose folder of runs cannot be made, so that a valid request gets as far as possible and starts none."""
    place = tmp_path_factory.mktemp("fuzz") / "runs"
    place.write_text("a file")
    with Studio(place) as running:
        yield running
        reply = running.post("/api/runs", preset="paper-mnist")
        assert (reply.status_code, "cannot be written" in reply.text) == (422, True)


OPERATIONS = {"GET": ("/api/presets", "/api/runs", "/api/runs/{name}", "/api/runs/{name}/rounds",
                      "/api/runs/{name}/events", "/api/seeds"),
              "POST": ("/api/scenario", "/api/scenario/upload", "/api/scenario/yaml", "/api/scenario/csv", "/api/plan",
                       "/api/runs", "/api/runs/{name}/stop", "/api/runs/{name}/resume")}  # fmt: skip


@pytest.fixture(scope="module")
def description(fuzzed: Studio) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.address}/api/openapi.json")


def test_every_operation_is_described(description: Any) -> None:
    described = {(found.ok().method.upper(), found.ok().path) for found in description.get_all_operations()}
    assert described == {(method, path) for method, paths in OPERATIONS.items() for path in paths}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in OPERATIONS.items() for path in paths])
def test_no_request_breaks_the_server(method: str, path: str, description: Any, fuzzed: Studio) -> None:
    @given(description[path][method].as_strategy())
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=not FULL,
              database=None)
    def ask(case: Any) -> None:
        request = case.as_transport_kwargs(base_url=fuzzed.address)
        request["headers"] = {**dict(request.get("headers") or {}), "x-fedgap-token": fuzzed.token}
        try:
            reply = requests.request(**request, stream=True, timeout=120)
        except (requests.exceptions.InvalidHeader, UnicodeError):
            return  # no request that could be sent
        with reply:  # a plan's stream is hung up on after its first line
            assert reply.status_code < 500, (case.as_curl_command(), reply.text)
            next(reply.iter_lines(), None)

    ask()
