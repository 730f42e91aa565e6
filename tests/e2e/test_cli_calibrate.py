"""``fedgap calibrate``: what was measured is what is written, and the scenario stays its author's."""

import pytest
import yaml

from fedgap.config import Experiment, Scenario, write_template
from fedgap.running.calibrate import calibrate
from fedgap.running.prepare import divide
from tests.e2e.terminal import fedgap

SMALL = ["model.name=mlp", "data.train_samples=400", "engine.threads=1", "partition.target_size=20"]


@pytest.fixture(scope="module")
def measured():
    return calibrate(Experiment.load("embedded", SMALL), pilots=2, steps=4)


def test_maxima_bound_and_the_secant_is_a_median(measured):
    taken = {q.key: q for q in measured.quantities}
    assert list(taken) == ["initial_gap", "smoothness", "gradient_moment", "parameter_moment", "pruning_sensitivity"]
    for key, q in taken.items():
        assert q.taken == (q.quantile(0.5) if key == "pruning_sensitivity" else max(q.values))
        assert min(q.values) > 0.0
        assert len(q.values) == (2 if key == "initial_gap" else 10)  # two pilots, five visited points each
        written = getattr(measured.scenario.bound, key)
        assert written == pytest.approx(q.taken, rel=1e-3)
    assert measured.sensitivities.keys() == {0.1, 0.3, 0.5}


def test_the_same_seed_measures_the_same(measured):
    again = calibrate(Experiment.load("embedded", SMALL), pilots=2, steps=4)
    assert [q.values for q in again.quantities] == [q.values for q in measured.quantities]


def test_the_statements_are_those_of_the_actual_partition(measured):
    _, parts, planned = divide(Experiment.load("embedded", SMALL))
    assert measured.phi.tolist() == planned.phi().tolist()
    assert measured.scenario.label_counts().tolist() == parts.label_counts.tolist()


def test_the_mode_and_the_budgets_stay_and_the_readings_follow(tmp_path, measured):
    path = tmp_path / "scenario.yaml"
    measured.save(path)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["mode"] == "repaired"
    assert "aggregation" not in document["bound"]
    read = Scenario.load(path)
    assert read == measured.scenario
    assert (read.bound.sensitivity, read.bound.aggregation, read.bound.constants) == ("secant", "mixture", "corrected")
    printed = Scenario.load(path, ["mode=as_printed"])
    assert (printed.bound.sensitivity, printed.bound.aggregation) == ("theorem", "sum")
    as_json = tmp_path / "scenario.json"
    measured.save(as_json)
    assert Scenario.load(as_json) == read


def test_an_experiments_own_keys_win():
    keys = ["mode=as_printed", "aggregation=mean", "rounds=7", "budget.delay_s=99"]
    found = calibrate(Experiment.load("embedded", [*SMALL, *keys]), pilots=1, steps=1, sizes=True).scenario
    assert (found.rounds, found.budget.delay_s, found.budget.energy_j) == (7, 99.0, 250.0)
    assert (found.bound.aggregation, found.bound.constants, found.bound.statement) == ("mean", "printed", "as_printed")
    assert found.model.gradient_bits != 1421632  # the model's own, not the preset's


def test_the_command(tmp_path):
    path = tmp_path / "new" / "scenario.yaml"
    answer = fedgap("calibrate", "embedded", *SMALL, "--out", path, "--pilots", 1, "--steps", 2)
    assert (answer.code, answer.err) == (0, "")
    text = path.read_text(encoding="utf-8")
    for key in ("initial_gap", "smoothness", "gradient_moment", "parameter_moment", "pruning_sensitivity"):
        assert f"bound.{key}" in answer.out
        assert f"# {key}: " in text
    assert "not a bound" in text
    assert fedgap("plan", path, "--quiet").code == 0


@pytest.mark.full
def test_the_authors_comments_stay_and_numbers_are_numbers(tmp_path):
    """The template's scenario, whose clients are a CSV, is calibrated twice into the same file."""
    paths = write_template(tmp_path)
    written = paths[0].read_text(encoding="utf-8")
    for _ in range(2):
        experiment = Experiment.load(paths[2], [*SMALL, "rounds=7"])
        calibrate(experiment, pilots=1, steps=2, forecast=False).save(paths[0])
    text = paths[0].read_text(encoding="utf-8")
    for comment in (line.partition("#")[2] for line in written.splitlines()):
        assert comment in text
    assert text.count("# Measured by fedgap calibrate") == 1
    assert "  max_ratio: 0.5              # at most" in text  # a line that nothing changes stays to the letter
    document = yaml.safe_load(text)
    assert document["rounds"] == 7
    assert all(isinstance(value, float) for value in document["bound"].values())
    for client in document["clients"]:
        numbers = {key: value for key, value in client.items() if key not in ("name", "label_counts", "target_counts")}
        assert all(isinstance(value, (int, float)) for value in numbers.values()), numbers
    scenario = Scenario.load(paths[0])
    assert (scenario.size, scenario.names[0], scenario.clients[0].max_frequency_hz) == (6, "kitchen", 5e8)


def test_bad_options_are_one_line(tmp_path):
    out = tmp_path / "scenario.yaml"
    for arguments in (["--ratio", "1"], ["--pilots", "0"], ["data.name=nowhere"]):
        answer = fedgap("calibrate", "embedded", *arguments, "--out", out)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
    assert not out.exists()
