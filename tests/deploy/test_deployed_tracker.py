"""The server of a deployment tells its trackers of every round once, also when it was killed in between."""

import json

import pytest

__fedgap__ = ["Lines"]


class Lines:
    """Writes the numbers of the rounds into a file."""

    def __init__(self, run):
        self.path = run.folder / "seen.json"
        self.rounds = [event["round"] for event in run.history]

    def log(self, events):
        self.rounds += [event["round"] for event in events]
        self.path.write_text(json.dumps(self.rounds), encoding="utf-8")

    def close(self, summary):
        self.path.write_text(json.dumps([*self.rounds, summary["ended"]]), encoding="utf-8")


def test_the_servers_tracker_has_every_round_once(fleet):
    class Killed(BaseException):
        pass

    def die(job, event):
        if event["round"] == 2:
            raise Killed

    nodes = fleet(3, "trackers=tests.deploy.test_deployed_tracker:Lines")
    with pytest.raises(Killed):
        nodes.session("cut", on_event=die).run()
    run = nodes.session("cut").run()
    assert json.loads((run.folder / "seen.json").read_bytes()) == [0, 1, 2, 3, 4, 5, run.summary["ended"]]
