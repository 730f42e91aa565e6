"""The studio's HTTP interface: scenarios, plans (as a stream of stages) and runs (as server-sent events)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from fedgap.config import PRESETS, Experiment, Scenario, preset_text
from fedgap.errors import FedgapError, InputError
from fedgap.registry import AGGREGATORS, DATA, MODELS, OBJECTIVES, POLICIES, SCHEMES, SELECTION
from fedgap.web import documents
from fedgap.web.api_models import (
    BudgetRequest,
    OpenedReply,
    PlanRequest,
    Refusal,
    RunName,
    RunRequest,
    ScenarioReply,
    ScenarioSource,
    TextReply,
    UploadRequest,
)
from fedgap.web.opened import Opened
from fedgap.web.round_stream import follow
from fedgap.web.run_comparison import comparison
from fedgap.web.runs import Runs
from fedgap.web.security import Guard
from fedgap.web.solver_pool import Solvers

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal} for code in (401, 403, 404, 413, 421, 422)
}
COMPILE_ALL = b"//# allFunctionsCalledOnLoad\n"
"""A comment at the start of a script that asks Chromium to compile all of it in the background while it downloads."""
_KEY = re.compile(r"[A-Za-z_][\w.\[\]]*")


def create_app(runs: Path, opened: Opened, *, token: str, hosts: Iterable[str]) -> FastAPI:
    """The application.

    :param runs: the only folder in which run folders are read and written;
    :param opened: what the command line asked to open; the page gets no other files of this machine;
    :param token: needed by all requests that change something; :param hosts: the allowed Host headers."""
    solvers, store, closing = Solvers(), Runs(runs), asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await solvers.start()
        known = asyncio.create_task(asyncio.to_thread(_names))  # searches the installed packages
        yield
        await known
        await solvers.stop()

    app = FastAPI(title="fedgap studio", version="1", lifespan=lifespan, docs_url=None, redoc_url=None,
                  openapi_url="/api/openapi.json", responses=_ERRORS)
    _add_errors(app)
    _add_planning(app, solvers)
    _add_opened(app, opened)
    _add_runs(app, store, closing)
    _add_training(app, store, opened)
    _add_pages(app)
    app.state.closing = closing
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.add_middleware(Guard, hosts=hosts, token=token, guarded="/api/runs")
    return app


def _add_errors(app: FastAPI) -> None:
    def refuse(status: int, message: str, key: str = "") -> JSONResponse:
        return JSONResponse({"key": key, "message": message}, status)

    @app.exception_handler(FedgapError)
    async def wrong_input(request: Request, error: FedgapError) -> JSONResponse:
        message = str(error)
        key, colon, _ = message.partition(": ")
        return refuse(422, message, key if colon and _KEY.fullmatch(key) else "")

    @app.exception_handler(RequestValidationError)
    async def wrong_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][1:])
        return refuse(422, _printable(f"{key or 'request'}: {first['msg']}"), _printable(key))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return refuse(error.status_code, str(error.detail))

    @app.exception_handler(LookupError)
    async def no_such_run(request: Request, error: LookupError) -> JSONResponse:
        return refuse(404, "there is no such run")

    @app.exception_handler(RecursionError)
    async def too_deep(request: Request, error: RecursionError) -> JSONResponse:
        return refuse(422, "document: must be nested less deeply")


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:500]


@cache
def _names() -> dict[str, list[str]]:
    """The registered names by kind. They are cached, because searching the installed packages takes a while."""
    return {registry.kind: registry.names() for registry in
            (SCHEMES, OBJECTIVES, SELECTION, AGGREGATORS, POLICIES, DATA, MODELS)}


def _scenario(source: ScenarioSource) -> tuple[dict[str, Any], Scenario]:
    """The document of a request, and its scenario."""
    if (source.preset is None) == (source.document is None):
        raise InputError("preset: must be given, or a document instead, but not both")
    document = documents.preset(source.preset) if source.preset is not None else source.document
    assert document is not None
    return document, documents.open_scenario(document, source.overrides)


def _reply(document: dict[str, Any], scenario: Scenario) -> ScenarioReply:
    try:
        phi: list[float | None] = scenario.phi().tolist()
    except InputError:
        phi = [client.phi for client in scenario.clients]  # with a pooled statement, clients need no φ
    return ScenarioReply(
        document=document, listed=documents.listed(scenario), scenario=scenario.to_dict(), names=scenario.names,
        phi=phi, hash=scenario.hash(), recipe="labels" in scenario.document(), usual_scheme=scenario.usual_scheme,
    )  # fmt: skip


def _add_planning(app: FastAPI, solvers: Solvers) -> None:
    @app.get("/api/presets")
    def presets() -> dict[str, str]:
        """The scenario presets and their texts."""
        return {name: preset_text(name) for name in PRESETS["scenario"]}

    @app.get("/api/names")
    def names() -> dict[str, list[str]]:
        """The names of all known schemes, objectives and so on, also those of installed packages."""
        return _names()

    @app.post("/api/scenario")
    def scenario(source: ScenarioSource) -> ScenarioReply:
        """Check a scenario and resolve it."""
        return _reply(*_scenario(source))

    @app.post("/api/scenario/upload")
    def upload(request: UploadRequest) -> ScenarioReply:
        """Read a file: a scenario, or a fleet that replaces the scenario's."""
        if request.kind == "yaml":
            document = documents.parse_yaml(request.text, "file")
            return _reply(document, documents.open_scenario(document, []))
        document, _ = _scenario(ScenarioSource(preset=request.preset, document=request.document))
        changed = documents.listed(documents.with_table(document, request.overrides, request.text))
        return _reply(changed, documents.open_scenario(changed, []))

    @app.post("/api/scenario/yaml")
    def as_yaml(source: ScenarioSource) -> TextReply:
        """The scenario as a YAML file."""
        return TextReply(name="scenario.yaml", text=documents.to_text(_scenario(source)[1]))

    @app.post("/api/scenario/csv")
    def as_csv(source: ScenarioSource) -> TextReply:
        """The fleet as a CSV file."""
        return TextReply(name="fleet.csv", text=documents.to_csv(_scenario(source)[1]))

    @app.post("/api/plan", response_class=StreamingResponse, responses={
        200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}})
    async def plan(request: PlanRequest) -> StreamingResponse:
        """Plan a scenario. The reply has JSON objects, one per line, with a ``stage``: draft, plan, scheme (six), grid,
        frontier, failed, done.

        Closing the connection stops the solver."""
        document, _ = await asyncio.to_thread(_scenario, request)
        return _streamed(solvers.events({
            "document": document, "overrides": request.overrides, "scheme": request.scheme,
            "objective": request.objective, "selection": request.selection}))

    @app.post("/api/budget", response_class=StreamingResponse, responses={
        200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}})
    async def budget(request: BudgetRequest) -> StreamingResponse:
        """Find the smallest joules and seconds for an accuracy. The reply has JSON objects, one per line, with a
        ``stage``: budget (the answers), budget_point (a point of the frontier), failed.

        Closing the connection stops the search."""
        document, _ = await asyncio.to_thread(_scenario, request)
        return _streamed(solvers.alone("budget", {
            "document": document, "overrides": request.overrides, "accuracy": request.accuracy,
            "confidence": request.confidence}))


def _streamed(events: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Stream events as JSON objects, one per line."""
    async def lines() -> AsyncIterator[bytes]:
        async for event in events:
            yield json.dumps(event, separators=(",", ":")).encode() + b"\n"

    # No compression, because the compressor would hold back the first lines.
    headers = {"content-encoding": "identity", "cache-control": "no-store"}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _add_runs(app: FastAPI, store: Runs, closing: asyncio.Event) -> None:
    @app.get("/api/runs")
    def listing() -> list[dict[str, Any]]:
        """All runs, one row each, the newest first."""
        return [store.overview(name) for name in store.names()]

    @app.get("/api/compare")
    def compare(run: Annotated[list[str], Query(max_length=1000)],
                reference: Annotated[str | None, Query(max_length=1000)] = None) -> dict[str, Any]:
        """Compare runs, grouped over seeds: curves and outcomes with 95 % intervals, and paired differences from one
        group.

        ``reference`` is a run of the group with which the others are compared; by default the first run."""
        return comparison(store, run, reference)

    @app.get("/api/runs/{name}")
    def one(name: str) -> dict[str, Any]:
        """One run as a row."""
        return store.overview(name)

    @app.get("/api/runs/{name}/rounds")
    def rounds(name: str) -> list[dict[str, Any]]:
        """The rounds of a run so far."""
        return store.rounds(name)

    @app.get("/api/runs/{name}/events", response_class=StreamingResponse, responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}})
    async def events(name: str, position: Annotated[int, Query(ge=0, le=2**53)] = 0,
                     last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        """The rounds of a run as server-sent events: rounds, state, reset."""
        store.folder(name)
        known = last_event_id if last_event_id and last_event_id.isdigit() and len(last_event_id) < 16 else None
        stream = follow(store, name, int(known) if known else position, closing)
        headers = {"content-encoding": "identity", "cache-control": "no-store"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _add_opened(app: FastAPI, opened: Opened) -> None:
    @app.get("/api/opened")
    def what_was_opened() -> OpenedReply:
        """What the command line asked the studio to open."""
        return OpenedReply(**opened.to_dict())


def _add_training(app: FastAPI, store: Runs, opened: Opened) -> None:
    @app.post("/api/runs", status_code=201)
    def start(request: RunRequest) -> RunName:
        """Start a run."""
        _, scenario = _scenario(request)
        chosen: dict[str, Any] = {
            "scheme": request.scheme, "objective": request.objective, "selection": request.selection,
            "policy": request.policy, "seed": request.seed, "evaluate_every": request.evaluate_every}
        choices = {key: value for key, value in chosen.items() if value is not None}
        if request.opened:
            return RunName(name=store.start(opened.trained(scenario, choices), request.name))
        experiment = Experiment.from_dict({
            "scenario": scenario.document(), "data": {"name": request.data}, "model": {"name": request.model},
            "partition": {"kind": "dirichlet", "concentration": request.concentration},
            "learning": {"aggregator": request.aggregator}, **choices,
        })  # fmt: skip
        return RunName(name=store.start(experiment, request.name))

    @app.post("/api/runs/{name}/stop")
    def stop(name: str) -> RunName:
        """Stop a run after its current round."""
        store.stop(name)
        return RunName(name=name)

    @app.post("/api/runs/{name}/resume")
    def resume(name: str) -> RunName:
        """Continue a run."""
        store.resume(name)
        return RunName(name=name)


def _add_pages(app: FastAPI) -> None:
    static = Path(str(resources.files("fedgap.web"))) / "static"
    spec = find_spec("plotly")  # only its JavaScript file is needed, so it is not imported
    assert spec is not None
    assert spec.origin is not None
    bundle = Path(spec.origin).parent / "package_data" / "plotly.min.js"

    @app.get("/plotly.min.js", include_in_schema=False)
    def plotly() -> Response:
        # Within one machine, compressing these five megabytes takes longer than sending them.
        headers = {"cache-control": "max-age=86400", "content-encoding": "identity"}
        return Response(b"".join((COMPILE_ALL, bundle.read_bytes())), media_type="text/javascript", headers=headers)

    app.mount("/", StaticFiles(directory=static, html=True))
