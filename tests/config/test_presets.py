import numpy as np
import pytest

from fedgap.config import PRESETS, Experiment, Scenario, preset_text
from fedgap.config.document import open_document
from fedgap.errors import InputError


@pytest.mark.parametrize("name", PRESETS["scenario"])
def test_a_scenario_preset_round_trips(name, tmp_path):
    scenario = Scenario.load(name)
    for file in ("s.yaml", "s.json"):
        again = Scenario.load(scenario.save(tmp_path / file))
        assert again == scenario
        assert again.hash() == scenario.hash()
    assert np.all(np.isfinite(scenario.phi()))


@pytest.mark.parametrize("name", PRESETS["experiment"])
def test_an_experiment_preset_round_trips(name, tmp_path):
    experiment = Experiment.load(name)
    again = Experiment.load(experiment.save(tmp_path / "e.yaml"))
    assert again == experiment
    assert again.hash() == experiment.hash()
    assert again.planning_scenario() == experiment.planning_scenario()


@pytest.mark.parametrize("name", [*PRESETS["scenario"], *PRESETS["experiment"]])
def test_a_preset_is_a_file_to_copy(name, tmp_path):
    copied = tmp_path / "copy.yaml"
    copied.write_text(preset_text(name))
    model = Scenario if name in PRESETS["scenario"] else Experiment
    assert model.load(copied) == model.load(name)
    lines = preset_text(name).splitlines()
    assert sum("#" in line for line in lines) >= 5
    assert all(len(line) <= 125 for line in lines)


def test_the_papers_mnist_column():
    """Table I and Section V."""
    scenario = Scenario.load("paper-mnist")
    fleet = scenario.fleet()
    assert (scenario.size, scenario.learning.rate, scenario.rounds) == (10, 0.01, 400)
    assert (scenario.budget.energy_j, scenario.budget.delay_s) == (250.0, 150.0)
    assert scenario.model.gradient_bits == 44_426 * 32
    assert scenario.model.flops_per_sample == 1.8e6
    assert scenario.pruning.max_ratio == 0.5
    assert set(fleet.bandwidth_hz) == {100e3}
    assert set(fleet.max_frequency_hz) == {500e6}
    assert set(fleet.max_power_w) == {0.5}
    assert set(fleet.flops_per_cycle) == {4}
    assert set(fleet.pue) == {1}
    listed = np.array([0.88, 0.84, 1.41, 1.33, 0.94, 1.37, 1.8, 1.01, 0.26, 0.96])
    np.testing.assert_allclose(fleet.capacitance, listed * 1e-27, rtol=1e-12)
    assert scenario.noise_psd_w_hz == 3.98e-21
    assert scenario.server.power_w == 0.5
    assert scenario.server.bandwidth_hz == 10 * 100e3
    assert set(scenario.label_counts().sum(axis=1)) == {6000}


def test_the_papers_cifar_column():
    scenario = Scenario.load("paper-cifar10")
    fleet = scenario.fleet()
    assert (scenario.size, scenario.rounds) == (10, 2500)
    assert (scenario.budget.energy_j, scenario.budget.delay_s) == (7100.0, 3600.0)
    assert scenario.model.gradient_bits == 658_586 * 32
    assert scenario.model.flops_per_sample == 0.59e9
    assert scenario.pruning.max_ratio == 0.7
    assert set(fleet.bandwidth_hz) == {2e6}
    assert set(fleet.max_frequency_hz) == {2e9}
    assert set(fleet.flops_per_cycle) == {8}
    np.testing.assert_allclose(fleet.capacitance[[0, 6, 8]], [0.88e-28, 1.8e-28, 0.26e-28], rtol=1e-12)
    assert scenario.server.bandwidth_hz == 10 * 2e6
    assert set(scenario.label_counts().sum(axis=1)) == {5000}


def test_phi_has_the_size_measured_at_sigma_five():
    """About 160 as printed and about 10 size-normalised, over many clients of the paper's kind."""
    many = ["fleet.count=500"]
    assert np.median(Scenario.load("paper-mnist", [*many, "mode=as_printed"]).phi()) == pytest.approx(160, rel=0.1)
    assert np.median(Scenario.load("paper-mnist", many).phi()) == pytest.approx(10, rel=0.15)


def test_the_citys_channels_differ_by_orders_of_magnitude():
    gains = Scenario.load("city").fleet().uplink_gain
    assert np.log10(gains.max() / gains.min()) > 4


def test_names_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "city").mkdir()
    assert Scenario.load("city").size == 40  # a folder of the same name is not a file
    (tmp_path / "mine").write_text(preset_text("paper-mnist"))
    assert Scenario.load("mine") == Scenario.load("paper-mnist")
    with pytest.raises(InputError, match=r"'embeded': is neither a file nor an experiment preset; did you mean 'embed"):
        open_document("embeded", "experiment")
    with pytest.raises(InputError, match=r"presets: paper-mnist, paper-cifar10, city"):
        open_document("xyz", "scenario")
