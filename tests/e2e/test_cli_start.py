"""``fedgap init`` and ``fedgap schema``."""

import json

from fedgap.config import schema
from tests.e2e.terminal import fedgap


def test_init_then_plan(tmp_path):
    folder = tmp_path / "fleet"
    answer = fedgap("init", folder)
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"next: fedgap plan {folder / 'scenario.yaml'}"
    planned = fedgap("plan", folder / "scenario.yaml")
    assert planned.code == 0
    assert "kitchen" in planned.out
    again = fedgap("init", folder)
    assert again.code == 2
    assert "exists already" in again.err


def test_schema():
    for kind in ("scenario", "experiment"):
        assert json.loads(fedgap("schema", kind).out) == schema()[kind]
    assert fedgap("schema", "plan").code == 2
