"""The studio's doors: who may ask, what they may send, and what they can reach."""

import json
import shutil
from pathlib import Path

import httpx
import pytest

from fedgap.web.security import MOST_BYTES, POLICY
from fedgap.web.server import _listen
from tests.web.studio_server import Studio

RUN = {"preset": "paper-mnist", "overrides": ["rounds=3"]}


def test_listens_on_this_machine_only() -> None:
    with _listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1.evil"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/plotly.min.js"])
def test_foreign_host_is_refused(studio: Studio, host: str, path: str) -> None:
    assert studio.client.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("headers", [
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "https://127.0.0.1"},
    {"origin": "http://127.0.0.1:1"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
])  # fmt: skip
@pytest.mark.parametrize("path", ["/api/plan", "/api/scenario", "/api/scenario/upload", "/api/runs"])
def test_cross_origin_post_is_refused(studio: Studio, headers: dict[str, str], path: str) -> None:
    reply = studio.client.post(path, json=RUN, headers=headers)
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers


def test_own_origin_is_let_in(studio: Studio) -> None:
    headers = {"origin": studio.address, "sec-fetch-site": "same-origin"}
    assert studio.client.post("/api/scenario", json=RUN, headers=headers).status_code == 200


@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
@pytest.mark.parametrize("path", ["/api/runs", "/api/runs/one/stop", "/api/runs/one/resume"])
def test_what_changes_something_needs_the_token(studio: Studio, token: str | None, path: str) -> None:
    headers = {} if token is None else {"x-fedgap-token": token.encode("latin-1")}
    assert httpx.post(studio.address + path, json=RUN, headers=headers).status_code == 401


def test_planning_and_watching_need_no_token(studio: Studio) -> None:
    assert httpx.get(f"{studio.address}/api/runs").status_code == 200
    assert httpx.post(f"{studio.address}/api/scenario", json={"preset": "city"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/main.js", "/plotly.min.js", "/api/runs", "/api/runs/none", "/nothing"])
def test_every_reply_carries_the_policy(studio: Studio, path: str) -> None:
    reply = studio.client.get(path)
    assert reply.headers["content-security-policy"] == POLICY
    assert "script-src 'self';" in POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["x-frame-options"] == "DENY"


def test_large_uploads_are_refused(studio: Studio) -> None:
    body = json.dumps({"kind": "yaml", "text": "x" * 50_000_000}).encode()
    headers = {"content-type": "application/json"}
    assert studio.client.post("/api/scenario/upload", content=body, headers=headers).status_code == 413

    def pieces() -> object:  # of a length that is not declared
        yield from (body[i : i + 65536] for i in range(0, len(body), 65536))

    try:
        reply = studio.client.post("/api/scenario/upload", content=pieces(), headers=headers)  # type: ignore[arg-type]
    except httpx.TransportError:
        pass  # hung up on while still sending
    else:
        assert reply.status_code == 413
    assert studio.client.get("/api/presets").status_code == 200
    assert MOST_BYTES < 50_000_000


@pytest.mark.parametrize("name", [
    "..", "%2e%2e", "..%2f..%2fetc", "..~..~etc", "a~..~b", "~", "%2e", "%2fetc%2fpasswd", "%5c..%5c", "a%00b", "-x",
    "x" * 300,
])  # fmt: skip
@pytest.mark.parametrize("what", ["", "/rounds", "/events", "/stop", "/resume"])
def test_names_that_lead_out_are_refused(studio: Studio, name: str, what: str) -> None:
    method = "POST" if what in ("/stop", "/resume") else "GET"
    reply = studio.client.request(method, f"/api/runs/{name}{what}")
    assert 400 <= reply.status_code < 500


def test_a_link_out_of_the_folder_is_no_run(studio: Studio, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "job").mkdir(parents=True)
    (outside / "job" / "job.json").write_text("{}")
    studio.runs.mkdir(exist_ok=True)
    (studio.runs / "link").symlink_to(outside)
    try:
        assert studio.client.get("/api/runs/link").status_code == 404
        assert "link" not in [run["name"] for run in studio.client.get("/api/runs").json()]
    finally:
        (studio.runs / "link").unlink()
        shutil.rmtree(outside)


@pytest.mark.parametrize("path", ["/../api.py", "/..%2fapi.py", "/%2e%2e/server.py", "/static/../../api.py"])
def test_pages_stay_in_their_folder(studio: Studio, path: str) -> None:
    assert studio.client.get(path).status_code == 404


@pytest.mark.parametrize("text", [
    "rounds: [", "\t- x", "{", "just words", "- 1", "rounds: 1\nrounds: 2", "a: *b",
    "!!python/object/apply:os.system [ls]",
    "clients: !!python/name:os.system", "x: &a [*a]",
    "a: &a [1,1]\n" + "".join(f"b{i}: &b{i} [*a,*a]\n" for i in range(3)),
])  # fmt: skip
def test_malformed_yaml_is_refused_in_one_line(studio: Studio, text: str) -> None:
    reply = studio.post("/api/scenario/upload", kind="yaml", text=text)
    assert reply.status_code == 422
    message = reply.json()["message"]
    assert message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize("secret", ["/etc/passwd", "../secret.csv", "secret.csv"])
def test_a_scenario_cannot_name_a_file(studio: Studio, secret: str) -> None:
    document = studio.post("/api/scenario", preset="paper-mnist").json()["listed"]
    for body in ({"document": document | {"clients": secret}},
                 {"preset": "paper-mnist", "overrides": [f"clients={secret}", "fleet="]},
                 {"document": document, "overrides": [f'clients="{secret}"']}):
        reply = studio.post("/api/scenario", **body)
        assert reply.status_code == 422
        assert reply.json()["key"] == "clients"
        assert "root:" not in reply.text
    text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in (document | {"clients": secret}).items())
    assert studio.post("/api/scenario/upload", kind="yaml", text=text).status_code == 422
    reply = studio.post("/api/scenario", preset="paper-mnist", overrides=["world.trace=/etc/passwd"])
    assert (reply.status_code, reply.json()["key"]) == (422, "world.trace")


def test_a_scenario_cannot_name_code(studio: Studio) -> None:
    for body in ({"preset": "paper-mnist", "overrides": ["fleet={kind: antigravity:fly}"]},
                 {"preset": "paper-mnist", "overrides": ["fleet.kind=antigravity:fly"]},
                 {"document": {"fleet": {"kind": "antigravity:fly"}}}):
        reply = studio.post("/api/scenario", **body)
        assert (reply.status_code, reply.json()["key"]) == (422, "fleet.kind")
        assert "installed fleets" in reply.text
    assert studio.post("/api/plan", preset="paper-mnist", scheme="antigravity:fly").status_code == 422


@pytest.mark.parametrize("change", [
    {"data": "os:system"}, {"data": "/etc/passwd.npz"}, {"model": "os:system"}, {"name": "../out"}, {"name": ""},
    {"name": ".hidden"}, {"name": "a/b"}, {"name": "a~b"}, {"scheme": "none"}, {"seed": -1}, {"concentration": 0},
    {"overrides": ["rounds=0"]}, {"overrides": ["data.name=x"]}, {"extra": 1},
])  # fmt: skip
def test_runs_take_known_words_only(studio: Studio, change: dict[str, object]) -> None:
    before = studio.client.get("/api/runs").json()
    assert studio.post("/api/runs", **(RUN | change)).status_code == 422
    assert studio.client.get("/api/runs").json() == before


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000,
    b'{"document": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
    b'{"document": {"rounds": 1e999, "clients": [NaN]}}', b'{"document": {"a": "\\ud800"}}',
    b'{"preset": "paper-mnist", "overrides": ["fleet.count=100000"]}',
    b'{"preset": "paper-mnist", "overrides": ["labels.classes=9999"]}',
    b'{"preset": "paper-mnist", "overrides": ["clients[3].name=\\ud800"]}',
    b'{"preset": "paper-mnist", "document": {}}',
])  # fmt: skip
@pytest.mark.parametrize("path", ["/api/scenario", "/api/plan", "/api/scenario/yaml", "/api/scenario/csv"])
def test_hostile_bodies_are_refused(studio: Studio, body: bytes, path: str) -> None:
    reply = studio.client.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= reply.status_code < 500, reply.text
    assert set(reply.json()) >= {"message"}
