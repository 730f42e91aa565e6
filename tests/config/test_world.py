"""The scenario's world: from keys, or from a CSV file that round-trips."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgap import Scenario
from fedgap.config.trace_csv import read_trace, write_trace
from fedgap.config.world import Drift, typical_rows
from fedgap.errors import InputError
from fedgap.system.trace import Trace

MOVING = ["world.fading.doppler_hz=0.1", "world.availability.mean_on_s=30", "world.availability.mean_off_s=10",
          "world.throttling.mean_full_s=20", "world.throttling.mean_slow_s=5", "world.throttling.slow=0.4"]
NAMES = ["Ada's phone", "board, 2", "büro"]


def test_without_a_world_nothing_changes() -> None:
    scenario = Scenario.load("paper-mnist")
    trace = scenario.trace()
    assert trace.available.all()
    assert (trace.gain == 1.0).all()
    assert (trace.speed == 1.0).all()
    assert "world" not in scenario.to_dict()


def test_a_world_is_drawn_by_seed() -> None:
    scenario = Scenario.load("paper-mnist", MOVING)
    first, again, other = scenario.trace(1), scenario.trace(1), scenario.trace(2)
    assert np.array_equal(first.gain, again.gain)
    assert not np.array_equal(first.gain, other.gain)
    assert set(np.unique(first.speed)) == {0.4, 1.0}
    assert 0.5 < first.available.mean() < 0.95


def test_the_fleet_of_a_round() -> None:
    scenario = Scenario.load("paper-mnist", MOVING)
    trace, nominal = scenario.trace(1), scenario.fleet()
    fleet = trace.fleet(nominal, trace.rounds + 3)  # a trace starts again from its first row
    assert np.allclose(fleet.uplink_gain, nominal.uplink_gain * trace.gain[3])
    assert np.allclose(fleet.max_frequency_hz, nominal.max_frequency_hz * trace.speed[3])


@settings(max_examples=25)
@given(values=arrays(np.float64, (2, 4, 3), elements=st.floats(1e-12, 1e12)), on=arrays(np.bool_, (4, 3)))
def test_traces_round_trip(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray, on: np.ndarray) -> None:
    folder = tmp_path_factory.mktemp("trace")
    write_trace(folder / "trace.csv", Trace(values[0], on, values[1]), NAMES)
    read = read_trace("trace.csv", folder, NAMES)
    assert np.array_equal(read.gain, values[0])
    assert np.array_equal(read.available, on)
    assert np.array_equal(read.speed, values[1])


@pytest.mark.parametrize(("lines", "message"), [
    ("round,client,gane\n", "did you mean 'gain'"),
    ("client,gain\n", "has no column round"),
    ("round,client\n0,anna\n", "'anna' is not in the fleet"),
    ("round,client,gain\n0,a,x\n", "line 2: gain: must be a number"),
    ("round,client,gain\n0,a,-1\n", "at least 0"),
    ("round,client,gain\n0,a,0\n", "must be above 0 if the client is available"),
    ("round,client,available\n0,a,0.5\n", "available: must be 0 or 1"),
    ("round,client\n0,a\n0,a\n", "already has a row for round 0"),
    ("round,client\n0,a\n1,b\n1,a\n", "b has no row for round 0"),
    ("round,client\n1e9,a\n", "must be a whole number from 0 to 999,999"),
    ("round,client\n", "it has no rows"),
    ("", "has no column round"),
    ("round,client,gain\n0,a\n", "line 2: must have 3 cells, one per column of the header; got 2"),
    ("round,client,gain\n0,a,0,31\n", "line 2: must have 3 cells, one per column of the header; got 4"),
    ("round,client,gain,gain\n0,a,1,2\n", "the column 'gain' occurs twice"),
    ("round;client;gain\n0;a;1\n", "separate cells by commas, not by ';'"),
    ("round,client,gain\n0,a,1e300\n", r"line 2: gain and speed: must be from 1e-30 to 1e\+30.*got 1e\+300"),
    ("round,client,gain\n0,a,1e-300\n", "line 2: gain and speed: must be from 1e-30"),
])
def test_a_wrong_trace_is_named(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "trace.csv").write_text(lines)
    with pytest.raises(InputError, match=message) as caught:
        read_trace("trace.csv", tmp_path, ["a", "b"])
    assert "\n" not in str(caught.value)


def test_a_trace_replaces_the_processes() -> None:
    with pytest.raises(InputError, match="must not have both trace and fading"):
        Scenario.load("paper-mnist", ["world.trace=x.csv", "world.fading.doppler_hz=1"])


@pytest.mark.parametrize(("kind", "amounts"), [
    ("sudden", [0, 0, 0, 1, 1, 1]),
    ("gradual", [0, 0, 0.4, 0.5, 1, 1]),
    ("recurring", [0, 0, 1, 0, 0, 1]),
])
def test_drift_goes_as_it_says(kind: str, amounts: list[float]) -> None:
    drift = Drift(kind=kind)  # type: ignore[arg-type]
    assert [drift.amount(p) for p in (0.0, 0.25, 0.45, 0.5, 0.75, 0.99)] == pytest.approx(amounts)


def test_labels_after_a_drift() -> None:
    drift, uniform = Drift(kind="sudden", classes=5, mass=0.8), np.full(10, 7.0)
    assert np.allclose(drift.labels(uniform, drift.amount(0.2)), 0.1)
    assert np.allclose(drift.labels(uniform, drift.amount(0.7)), [0.16] * 5 + [0.04] * 5)


def test_clients_keep_all_data_or_the_latest():
    """Of rows 0 to 6 of a sudden change at row 5 of 10, two are late; of the latest three rows likewise two."""
    assert Drift(kind="sudden").collected(6, 10) == pytest.approx(2.0 / 7.0)
    assert Drift(kind="sudden", memory_rounds=3).collected(6, 10) == pytest.approx(2.0 / 3.0)


def test_typical_rows_have_the_distribution_of_the_world_and_are_not_its_own() -> None:
    scenario = Scenario.load("paper-mnist", MOVING)
    rows = typical_rows(scenario.world, scenario.names, 400)
    assert rows is not None
    assert rows.available.mean() == pytest.approx(0.75, abs=0.03)  # 30 s of 40 s; 4,000 draws
    assert rows.gain.mean() == pytest.approx(1.0, abs=0.06)
    assert (rows.speed == 0.4).mean() == pytest.approx(0.2, abs=0.03)
    assert abs(np.corrcoef(rows.gain[1:, 0], rows.gain[:-1, 0])[0, 1]) < 0.15  # independent
    for seed in range(3):
        assert not (scenario.trace(seed).gain[0] == rows.gain).any()
    assert typical_rows(None, scenario.names, 4) is None
    drifting = Scenario.load("paper-mnist", ["world.drift.kind=sudden"])
    assert typical_rows(drifting.world, drifting.names, 4) is None
