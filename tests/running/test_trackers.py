"""Trackers see every round exactly once, whatever becomes of the run."""

import pytest

from fedgap.errors import InputError
from fedgap.running.run import execute
from fedgap.running.sweep import sweep
from fedgap.running.train_and_resume import resume, train
from tests.running.test_learner import planned
from tests.running.test_run import interrupt_after
from tests.running.test_take_back import prepared, steep  # noqa: F401  (a fixture)

__fedgap__ = ["Broken", "Recorder", "Unmakeable"]


class Recorder:
    """Keeps what it was told, for all runs of this process."""

    made: list = []  # noqa: RUF012

    def __init__(self, run):
        self.rounds, self.ends = [event["round"] for event in run.history], []
        self.folder, self.began_with = run.folder, len(self.rounds)
        self.made.append(self)

    def log(self, events):
        self.rounds += [event["round"] for event in events]

    def close(self, summary):
        self.ends.append(summary and summary["rounds"])


class Broken(Recorder):
    def log(self, events):
        raise OSError("the service is gone")


class Unmakeable:
    def __init__(self, run):
        raise ValueError("no address")


@pytest.fixture(autouse=True)
def _forget():
    Recorder.made.clear()


def curves(folder):
    """Tag to (step, value) pairs, read back from the raw records of the event files: nothing is merged or purged."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.util.tensor_util import make_ndarray

    found = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        for record in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(record)
            for value in event.summary.value:
                number = make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_tensorboards_curves_are_the_rounds_also_after_an_interruption(small, tmp_path):
    pytest.importorskip("tensorboard")
    experiment = small("rounds=7", "checkpoint_every=100", "trackers=tensorboard")
    plan = planned(experiment, (1, range(10), 0.0), (6, range(6), 0.4))
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "run", plan=plan, on_events=interrupt_after(4))
    assert [step for step, _ in curves(tmp_path / "run")["loss/train"]] == [0, 1, 2, 3, 4]
    run = resume(tmp_path / "run")
    found = curves(run.folder)
    for key, tag in (("train_loss", "loss/train"), ("test_loss", "loss/test"), ("test_accuracy", "accuracy/test"),
                     ("energy_j", "energy_j/round"), ("energy_total_j", "energy_j/total"),
                     ("delay_s", "delay_s/round"), ("delay_total_s", "delay_s/total")):
        points = [(event["round"], event[key]) for event in run.history if key in event]
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in points], rel=1e-6), tag
    assert [(step, float(value)) for step, value in found["clients/selected"]] == [
        (event["round"], len(event["clients"])) for event in run.history]
    assert any("hparams" in tag for tag in found)
    assert found["ended/text_summary"][0][1].item() == b"all rounds are done"


def test_the_forecast_is_a_curve(small, tmp_path):
    pytest.importorskip("tensorboard")
    experiment = small("rounds=4", "mode=practical", "scenario.forecast={like: lenet5-mnist}", "data.validation=100",
                       "learning.local_steps=2", "trackers=tensorboard", "evaluate_every=2")
    run = train(experiment, tmp_path / "run")
    found = curves(run.folder)
    forecast = run.summary["forecast"]
    assert {key: found[f"forecast_planned/{key}"] for key in ("accuracy", "low", "high")} == {
        key: [(0, pytest.approx(forecast[key]))] for key in ("accuracy", "low", "high")}
    later = {event["round"]: event["forecast"]["accuracy"] for event in run.history if "forecast" in event}
    assert dict(found["forecast_corrected/accuracy"]) == pytest.approx(later)
    assert later


def test_a_kill_after_a_checkpoint_doubles_nothing(small, tmp_path):
    """The log holds rounds after the last checkpoint, which are trained again."""
    experiment = small("rounds=7", "checkpoint_every=2", "trackers=tests.running.test_trackers:Recorder")

    class Killed(BaseException):
        pass

    def die(position, job, events):
        if events[-1]["round"] >= 4:
            raise Killed

    with pytest.raises(Killed):
        train(experiment, tmp_path / "run", plan=planned(experiment, (7, range(6), 0.4)), on_events=die)
    resume(tmp_path / "run")
    first, second = Recorder.made
    assert first.rounds[:5] == list(range(5))
    assert second.began_with == 4
    assert (second.rounds, second.ends) == (list(range(7)), [7])


def test_rounds_that_are_taken_back_leave_the_log(steep, tmp_path):  # noqa: F811
    """Two runs in one computation; each has its own tracker."""
    folders = []
    for rate in (0.01, 1e25):
        experiment, plan = steep(rate)
        chosen = experiment.to_dict() | {"trackers": ["tests.running.test_trackers:Recorder"]}
        folders.append(prepared(type(experiment).from_dict(chosen), plan, tmp_path / f"{rate:g}"))
    good, bad = execute(folders)
    of_good, of_bad, again = Recorder.made
    assert (of_good.folder, of_good.rounds, of_good.ends) == (good.folder, list(range(24)), [24])
    assert of_bad.ends == [None]
    assert (again.folder, again.rounds) == (bad.folder, [event["round"] for event in bad.history])


def test_a_tracker_that_fails_does_not_end_the_run(small, tmp_path):
    names = [f"tests.running.test_trackers:{name}" for name in ("Broken", "Recorder")]
    experiment = small("rounds=3", f"trackers=[{', '.join(names)}]")
    with pytest.warns(UserWarning, match=r"trackers: .*Broken failed \(OSError: the service is gone\)") as caught:
        run = train(experiment, tmp_path / "run", plan=planned(experiment, (3, range(4), 0.0)))
    assert len(caught) == 1
    assert run.finished
    assert [tracker.rounds for tracker in Recorder.made] == [[], [0, 1, 2]]


def test_one_that_cannot_be_made_is_an_error_of_its_key(small, tmp_path):
    experiment = small("rounds=3", "trackers=tests.running.test_trackers:Unmakeable")
    with pytest.raises(InputError, match=r"^trackers: .*Unmakeable failed \(ValueError: no address\)$"):
        train(experiment, tmp_path / "run", plan=planned(experiment, (3, range(4), 0.0)))


def test_every_run_of_a_sweep_is_tracked(small, tmp_path):
    experiment = small("rounds=2", "trackers=tests.running.test_trackers:Recorder", "evaluate_every=2")
    sweep(experiment, {"seed": [0, 1]}, tmp_path / "sweep", stacked=True)
    assert [(made.folder.name, made.rounds, made.ends) for made in Recorder.made] == [
        (f"seed={seed}", [0, 1], [2]) for seed in (0, 1)]


def test_without_trackers_documents_and_hashes_are_as_before(small):
    assert "trackers" not in small().to_dict()
    assert small("trackers=tensorboard").to_dict()["trackers"] == ["tensorboard"]
