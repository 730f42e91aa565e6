"""rounds.jsonl: what was written is read, and a resumed log continues where it ended."""

from fedgap.running.events import RoundLog, read_rounds

EVENTS = [{"round": i, "energy_j": 0.1 * i, "clients": [1, 2]} for i in range(5)]


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
