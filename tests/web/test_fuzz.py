"""Requests made up from the OpenAPI description: whatever comes, the server answers, and never with a 5xx."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

import requests  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.web.studio_server import Studio  # noqa: E402

FULL = os.environ.get("FEDGAP_FULL") == "1"
EXAMPLES = 450 if FULL else 6
"""For each of the twelve operations that take anything: over 5,000 requests, or some 70."""
BARE = ("/api/opened", "/api/presets", "/api/names", "/api/runs")
"""What GET asks for without anything to make up."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio whose folder of runs cannot be made, so that a valid request gets as far as possible and starts none."""
    place = tmp_path_factory.mktemp("fuzz") / "runs"
    with Studio(place) as running:
        place.write_text("a file")
        yield running
        reply = running.post("/api/runs", preset="paper-mnist")
        assert (reply.status_code, "cannot be written" in reply.text) == (422, True)


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio with a finished run, for whatever is asked about runs."""
    runs = tmp_path_factory.mktemp("lived-in")
    (runs / "done" / "job").mkdir(parents=True)
    for name, text in {"job/job.json": "{}", "summary.json": '{"rounds": 1, "ended": "all rounds are done"}',
                       "rounds.jsonl": '{"round": 0, "clients": [0], "train_loss": 1.5}\n'}.items():
        (runs / "done" / name).write_text(text)
    with Studio(runs) as running:
        yield running


OPERATIONS = {"GET": ("/api/presets", "/api/names", "/api/runs", "/api/runs/{name}", "/api/runs/{name}/rounds",
                      "/api/runs/{name}/events", "/api/compare", "/api/opened"),
              "POST": ("/api/scenario", "/api/scenario/upload", "/api/scenario/yaml", "/api/scenario/csv", "/api/plan",
                       "/api/budget", "/api/runs", "/api/runs/{name}/stop", "/api/runs/{name}/resume")}  # fmt: skip


@pytest.fixture(scope="module")
def description(fuzzed: Studio) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.address}/api/openapi.json")


def test_every_operation_is_described(description: Any) -> None:
    described = {(found.ok().method.upper(), found.ok().path) for found in description.get_all_operations()}
    assert described == {(method, path) for method, paths in OPERATIONS.items() for path in paths}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in OPERATIONS.items() for path in paths])
def test_no_request_breaks_the_server(method: str, path: str, description: Any, fuzzed: Studio,
                                      lived_in: Studio) -> None:
    sent: list[int] = []
    studio = lived_in if "{name}" in path else fuzzed

    @given(description[path][method].as_strategy())
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=not FULL,
              database=None)
    def ask(case: Any) -> None:
        if "{name}" in path and len(sent) % 2:
            case.path_parameters["name"] = "done"  # which no made-up name would hit
        request = case.as_transport_kwargs(base_url=studio.address)
        request["headers"] = {**dict(request.get("headers") or {}), "x-fedgap-token": studio.token}
        try:
            reply = requests.request(**request, stream=True, timeout=120)
        except (requests.exceptions.InvalidHeader, UnicodeError):
            return  # no request that could be sent
        with reply:  # a plan's stream is hung up on after its first line
            sent.append(reply.status_code)
            assert reply.status_code < 500, (case.as_curl_command(), reply.text)
            next(reply.iter_lines(), None)

    ask()
    assert len(sent) >= (1 if method == "GET" and path in BARE else 0.93 * EXAMPLES)
    if "{name}" in path:
        assert sent.count(404) <= len(sent) // 2 + 1


KEYS = ("rounds", "budget.energy_j", "budget.delay_s", "learning.rate", "learning.batch_size", "labels.concentration",
        "labels.classes", "fleet.count", "mode", "bound.aggregation", "pruning.max_ratio", "clients[0].phi", "seed",
        "clients[3].label_counts", "clients[9].max_power_w", "clients[99].pue", "clients[0]", "clients", "fleet", "no")
VALUES = ("0", "1", "-1", "1e-300", "1e300", "1e999", ".nan", "3", "0.5", "", "null", "[]", "{}", "[1,2]", "true", "x",
          "'1'", "mixture", "mean", "as_printed", "[" * 50, "2**3", "1_000", "\u2028", "!!python/name:os.system")


@given(preset=st.sampled_from(["paper-mnist", "paper-cifar10"]),
       overrides=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3))
@settings(max_examples=400 if FULL else 8, deadline=None, suppress_health_check=list(HealthCheck),
          derandomize=not FULL, database=None)
def test_no_scenario_breaks_the_server(preset: str, overrides: list[tuple[str, str]], fuzzed: Studio) -> None:
    body = {"preset": preset, "overrides": [f"{key}={value}" for key, value in overrides]}
    checked = fuzzed.post("/api/scenario", **body)
    assert checked.status_code in (200, 422), checked.text
    if checked.status_code == 422:
        assert checked.json()["message"]
        return
    for kind in ("yaml", "csv"):
        assert fuzzed.post(f"/api/scenario/{kind}", **body).status_code == 200
    first = next(fuzzed.stages(**body))
    assert first["stage"] == "draft", (body, first)
