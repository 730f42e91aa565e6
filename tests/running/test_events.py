"""rounds.jsonl: what was written is read, a torn last line is dropped, and a resumed log goes on where it stood."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.errors import InputError
from fedgap.running.events import RoundLog, read_rounds

EVENTS = [{"round": i, "energy_j": 0.1 * i, "clients": [1, 2]} for i in range(5)]


@settings(max_examples=60)
@given(st.integers(0, 300))
def test_a_file_cut_anywhere_gives_the_whole_lines_before_the_cut(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log") / "rounds.jsonl"
    log = RoundLog(path)
    log.write(EVENTS)
    log.close()
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    assert read_rounds(path) == EVENTS[:data.count(b"\n")]


def test_a_log_goes_on_at_its_checkpoint_and_forgets_what_came_after(tmp_path):
    path = tmp_path / "rounds.jsonl"
    log = RoundLog(path)
    log.write(EVENTS[:2])
    position = log.sync()
    log.write(EVENTS[2:4])
    log.close()
    path.write_bytes(path.read_bytes() + b'{"round": 4, "ener')
    again = RoundLog(path, position)
    again.write(EVENTS[2:])
    again.close()
    assert read_rounds(path) == EVENTS


def test_damage_in_the_middle_is_not_silently_dropped(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        read_rounds(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_rounds(tmp_path / "absent")
