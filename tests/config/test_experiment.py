import random

import numpy as np
import pytest

from fedgap.config import Experiment, Scenario
from fedgap.config.mode_defaults import PRACTICAL_SCHEME, mode_readings
from fedgap.errors import InputError

COUNTS = np.full((10, 10), 40) + 30 * np.eye(10, dtype=int)
TARGET = np.full(10, 10)


def test_defaults_are_the_repaired_proposed_scheme_on_embedded_data():
    experiment = Experiment.from_dict({"scenario": "paper-mnist"})
    assert (experiment.data.name, experiment.model.name) == ("embedded", "lenet5")
    assert (experiment.scheme, experiment.solver, experiment.seed) == ("proposed", "exact", 0)
    assert experiment.readings == {
        "mode": "repaired",
        "statement": "size_normalised",
        "aggregation": "mixture",
        "constants": "corrected",
        "sensitivity": "secant",
        "dense_first": True,
        "evaluate_pruned": True,
        "importance_weights": "current",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("statement", "size_normalised"),
        ("aggregation", "mean"),
        ("constants", "corrected"),
        ("sensitivity", "secant"),
        ("dense_first", True),
        ("evaluate_pruned", True),
        ("importance_weights", "current"),
    ],
)
def test_a_key_for_each_repair_overrides_the_mode(key, value):
    experiment = Experiment.load("mnist", ["mode=as_printed", f"{key}={value}"])
    printed = mode_readings("as_printed", clients=10, counts_known=True, secant_known=True)
    assert experiment.readings == {"mode": "as_printed"} | printed | {key: value}


def inline(**changes):
    return {**Scenario.load("paper-mnist").document(), **changes}


def test_what_the_experiment_says_wins_over_its_scenario():
    scenario = inline(mode="as_printed")
    scenario["bound"] = {**scenario["bound"], "constants": "corrected"}
    silent = Experiment.from_dict({"scenario": scenario}).readings
    assert (silent["mode"], silent["aggregation"], silent["constants"]) == ("as_printed", "sum", "corrected")
    written = Experiment.from_dict({"scenario": scenario, "mode": "as_printed"}).readings
    assert written["constants"] == "printed"  # an as_printed experiment is as printed, whatever its scenario holds
    assert Experiment.from_dict({"scenario": scenario, "mode": "repaired"}).readings["aggregation"] == "mixture"


def test_the_planning_scenario_takes_readings_rounds_and_budgets():
    readings = ["mode=as_printed", "aggregation=mean"]
    changes = ["rounds=30", "budget.delay_s=20", "scenario.pruning.max_ratio=0.6"]
    scenario = Experiment.load("mnist", readings + changes).planning_scenario()
    assert (scenario.rounds, scenario.budget.delay_s, scenario.budget.energy_j) == (30, 20.0, 250.0)
    assert (scenario.bound.aggregation, scenario.bound.statement, scenario.bound.constants) == (
        "mean",
        "as_printed",
        "printed",
    )
    assert scenario.pruning.max_ratio == 0.6
    assert scenario.pruning.dense_first is False
    assert [c.uplink_gain for c in scenario.clients] == [c.uplink_gain for c in Scenario.load("paper-mnist").clients]


def test_the_partitions_histograms_replace_the_scenarios():
    scenario = Experiment.load("mnist").planning_scenario(COUNTS, TARGET, np.full((10, 10), 11))
    np.testing.assert_array_equal(scenario.label_counts(), COUNTS)
    assert scenario.target_counts == (10,) * 10
    assert scenario.clients[3].target_counts == (11,) * 10
    assert scenario.bound.aggregation == "mixture"


def test_a_scenario_without_phi_gets_it_from_the_partition(document):
    for client in document["clients"]:
        del client["phi"]
    del document["bound"]["aggregation"]
    experiment = Experiment.from_dict({"scenario": document})
    assert (experiment.size, experiment.readings["aggregation"]) == (2, "mixture")
    scenario = experiment.planning_scenario([[5, 9], [9, 5]], [7, 7])
    assert scenario.bound.aggregation == "mixture"
    with pytest.raises(InputError, match="target_counts: missing"):
        experiment.planning_scenario()


def test_a_saved_experiment_stands_alone(tmp_path, document, monkeypatch):
    Scenario.from_dict(document).save(tmp_path / "fleet.yaml")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "own.json").write_text("[[0], [1]]")
    (tmp_path / "parts" / "own.npz").write_bytes(b"")
    (tmp_path / "e.yaml").write_text(
        "scenario: fleet.yaml\npartition: {kind: file, file: parts/own.json}\ndata: {name: parts/own.npz}\n"
        "mode: as_printed\nseed: 4\n"
    )
    experiment = Experiment.load(tmp_path / "e.yaml", ["scenario.rounds=7"])
    assert experiment.partition.file == str(tmp_path / "parts" / "own.json")
    assert experiment.data.name == str(tmp_path / "parts" / "own.npz")
    (tmp_path / "away").mkdir()
    saved = experiment.save(tmp_path / "away" / "config.yaml")
    (tmp_path / "fleet.yaml").unlink()
    monkeypatch.chdir(tmp_path / "away")
    again = Experiment.load(saved)
    assert again == experiment
    assert again.planning_scenario().rounds == 7
    assert again.readings == experiment.readings


def test_with_overrides_is_loading_with_them():
    together = Experiment.load("mnist", ["seed=3", "scenario.rounds=5"])
    assert Experiment.load("mnist", ["seed=3"]).with_overrides(["scenario.rounds=5"]) == together
    assert together.hash() != Experiment.load("mnist", ["seed=3"]).hash()


def test_a_module_of_ones_own():
    experiment = Experiment.load("mnist", ["model.name=my.net:Net", "model.arguments={width: 3}", "data.name=x.npz"])
    assert experiment.model.name == "my.net:Net"
    assert experiment.model.arguments == {"width": 3}


@pytest.mark.parametrize(
    ("override", "message"), [ ("seeed=3", "seeed: unknown key; did you mean 'seed'?"), ("partition.file=who.json",
    "partition.file: is used only with partition.kind=file; the kind is dirichlet; leave "
         "the file out, or change the kind"),
        ("learning.batch_size=8", "learning.batch_size: unknown key; did you mean 'scenario.learning.batch_size'?"),
        ("learning.local_steps=0",
         "learning.local_steps: must be at least 1 (a client takes at least one step); got 0"),
        ("learning.local_steps=many", "learning.local_steps: must be a number, or auto; got 'many'"),
        ("scenario.forecast={like: lenet5-mnist, start: 0, few_clients: 0, floor: 0}",
         "scenario.forecast: would forecast no error at all; one of start, few_clients and floor must be above 0"),
        ("learning.upload_bits=16", "learning.upload_bits: must be one of 32, 8, 4, auto; got 16"),
        ("scenario.learning.batches=even",
         "scenario.learning.batches: must be one of as_is, balanced, target; got 'even'"),
        ("learning.client.clip_norm=0",
         "learning.client.clip_norm: must be above 0 (a gradient of norm 0 moves nothing); got 0"),
        ("learning.warm_up=1", "learning.warm_up: must be at least 0 and below 1 (it is a share of the rounds); got 1"),
        ("data.validation=1.5", "data.validation: must be a share below 1, or a whole number of samples; got 1.5"),
        ("stop.accuracy=95", "stop.accuracy: must be above 0 and at most 1 (it is a share, such as 0.95); got 95"),
        ("dropout_probability=0.1", "dropout_probability: unknown key; did you mean 'faults.dropout_probability'?"),
        (
            "data.name=mnits",
            "data.name: must be one of embedded, mnist, fashion-mnist, cifar10, a .npz file, or"
            " package.module:NAME; got 'mnits'; did you mean 'mnist'?",
        ),
        (
            "model.name=lenet",
            "model.name: must be one of lenet5, mlp, resnet20, resnet32, resnet44, resnet56, resnet110, or"
            " package.module:NAME; got 'lenet'; did you mean 'lenet5'?",
        ),
        (
            "scheme=propsed",
            "scheme: must be one of proposed, no_pruning, all_clients, no_generalization, fixed_power, "
            "fixed_frequency, measured, forecast, or package.module:NAME; got 'propsed'; did you mean 'proposed'?",
        ),
        ("solver=[]", "solver: must be one of exact, alternating; got a list of 0"),
        (
            "partition.concentration=0",
            "partition.concentration: must be above 0 (a Dirichlet distribution needs a positive parameter); got 0",
        ),
        ("evaluate_every=0", "evaluate_every: must be at least 1 (it counts rounds); got 0"),
        (
            "faults.dropout_probability=1.5",
            "faults.dropout_probability: must be at least 0 and at most 1 (it is a probability); got 1.5",
        ),
        (
            "faults.straggler_slowdown=0.5",
            "faults.straggler_slowdown: must be at least 1 (a straggler is not faster than planned); got 0.5",
        ),
        ("engine.precision=half", "engine.precision: must be one of float32, tf32, bfloat16, float64; got 'half'"),
        ("rounds=0", "rounds: must be at least 1 (training takes at least one round); got 0"),
        (
            "budget.energy_j=-1",
            "budget.energy_j: must be above 0 J (without energy nothing can be computed or sent); got -1",
        ),
        ("scenario=3",
         "scenario: must be the name of a file or a preset, or a mapping with the scenario itself; got 3"),
        ("scenario=absent.yaml", "scenario: absent.yaml: no such file"),
        ("scenario.ronds=3", "scenario.ronds: unknown key; did you mean 'rounds'?"),
        (
            "scenario.clients[2].phi=-3",
            "scenario.clients[2].phi: must be at least 0 (the generalization statement bounds a norm); got -3",
        ),
        ("pruning.remember=maybe", "pruning.remember: must be true or false; got 'maybe'"),
        ("dense_first=2", "dense_first: must be true or false; got 2"),
    ],
)
def test_bad_experiments(override, message):
    with pytest.raises(InputError) as caught:
        Experiment.load("mnist", [override])
    assert str(caught.value) == f"{message} (override '{override}')"


def learner(experiment):
    return experiment.planning_scenario().learning


def test_the_learner_reaches_the_scenario_key_by_key():
    keys = ["scenario.learning.local_steps=4", "scenario.learning.server.optimiser=adam",
            "scenario.learning.server.rate=0.02"]
    learning = learner(Experiment.load("mnist", keys))
    assert (learning.local_steps, learning.server.rate, learning.rate, learning.batch_size) == (4, 0.02, 0.01, 32)
    learning = learner(Experiment.load("mnist", [*keys, "learning.local_steps=8", "learning.server.momentum=0.8"]))
    assert (learning.local_steps, learning.server.optimiser) == (8, "adam")
    assert (learning.server.rate, learning.server.momentum) == (0.02, 0.8)
    learning = learner(Experiment.load("mnist", [*keys, "learning.server.optimiser=yogi", "learning.rate=0.5"]))
    assert (learning.server.rate, learning.rate) == (0.01, 0.5)  # adam's rate is not yogi's


def test_an_unknown_key_of_the_learner_is_named_in_every_mode():
    for mode in ("repaired", "practical"):
        with pytest.raises(InputError, match=r"^(scenario\.)?learning\.rounds: "):
            Experiment.load("embedded", ["scenario.learning.rounds=fixed", f"mode={mode}"])


def test_practical_in_the_experiment_wins_over_the_scenario_but_not_over_what_is_written_here():
    plain, practical = Experiment.load("mnist"), Experiment.load("mnist", ["mode=practical"])
    assert (plain.scheme, plain.pruning.importance, learner(plain).rate) == ("proposed", "taylor", 0.01)
    assert practical.pruning.importance == "magnitude"
    assert practical.scheme == PRACTICAL_SCHEME
    assert (practical.readings["mode"], practical.readings["dense_first"]) == ("practical", True)
    assert practical.readings["evaluate_pruned"]
    assert (learner(practical).rate, learner(practical).local_steps) == (0.03, "auto")
    changed = practical.with_overrides(["scenario.learning.rate=0.02", "learning.local_steps=2", "scheme=no_pruning",
                                        "pruning.importance=random", "learning.server.optimiser=sgd"])
    assert (learner(changed).rate, learner(changed).local_steps, learner(changed).batches) == (0.02, 2, "balanced")
    assert (learner(changed).server.optimiser, changed.scheme) == ("sgd", "no_pruning")
    assert changed.pruning.importance == "random"


def test_practical_in_the_scenario_leaves_the_scenarios_keys():
    keys = ["scenario.mode=practical", "scenario.learning.local_steps=3"]
    experiment = Experiment.load("mnist", keys)
    assert (experiment.readings["mode"], experiment.pruning.importance) == ("practical", "magnitude")
    assert (learner(experiment).rate, learner(experiment).local_steps) == (0.01, 3)
    assert learner(experiment.with_overrides(["mode=repaired"])).server.optimiser == "sgd"


@pytest.mark.parametrize("keys", [
    ["mode=practical"], ["scenario.mode=practical", "scenario.learning.local_steps=3"], ["scenario=city"],
    ["learning.server.optimiser=adam", "data.validation=0.1", "stop.accuracy=0.9"], ["stop.patience=3"],
])  # fmt: skip
def test_a_learner_survives_saving(keys, tmp_path):
    experiment = Experiment.load("mnist", keys)
    again = Experiment.load(experiment.save(tmp_path / "e.yaml"))
    assert again == experiment
    assert again.planning_scenario() == experiment.planning_scenario()
    assert (again.stop, again.data, again.scheme) == (experiment.stop, experiment.data, experiment.scheme)


def test_weights_are_found_beside_the_experiment(tmp_path):
    (tmp_path / "start.safetensors").write_bytes(b"")
    (tmp_path / "e.yaml").write_text("scenario: paper-mnist\nmodel: {weights: start.safetensors}\n")
    assert Experiment.load(tmp_path / "e.yaml").model.weights == str((tmp_path / "start.safetensors").resolve())


def test_an_experiment_needs_a_scenario():
    with pytest.raises(InputError) as caught:
        Experiment.from_dict({"seed": 3})
    assert str(caught.value) == ("scenario: missing (the name of a scenario file or a preset, or a mapping with the "
                                 "scenario itself)")
    with pytest.raises(InputError, match="experiment: must be a mapping"):
        Experiment.from_dict([1])


ODD = [None, True, 0, -1, 3.5, 1e300, float("nan"), float("inf"), 10**400, "", " ", "é" * 300, "a\nb", "\x00", "\ud800"]
ODD += [[], {}, [[]], {"": {}}, ["mnist"], {"name": "mnist"}, {"kind": "iid"}, "1e5", "/", "..", "paper-mnist", "x.npz"]


@pytest.mark.parametrize("number", range(200))
def test_any_value_anywhere_gives_an_experiment_or_one_line(number):
    rng = random.Random(number)
    document = Experiment.load("mnist").to_dict()
    holder = rng.choice([document, document, *(value for value in document.values() if isinstance(value, dict))])
    holder[rng.choice([*holder, "extra"])] = rng.choice(ODD)
    try:
        experiment, message = Experiment.from_dict(document), "it was accepted"
        assert Experiment.from_dict(experiment.to_dict()) == experiment
    except InputError as error:
        message = str(error)
    assert message.isprintable()
    assert 10 < len(message) < 700


def test_a_partitions_file_beside_another_kind_is_kept_where_both_were_chosen():
    both = {"scenario": "paper-mnist", "partition": {"kind": "iid", "file": "who.json"}}
    assert Experiment.from_dict(both).partition.kind == "iid"
    assert Experiment.load("mnist", ["partition.file=who.json", "partition.kind=iid"]).partition.kind == "iid"
    with pytest.raises(InputError, match="is used only with partition"):
        Experiment.from_dict({"scenario": "paper-mnist", "partition": {"file": "who.json"}})


def test_other_clients_take_the_place_of_the_scenarios():
    experiment = Experiment.load("mnist", ["seed=3"])
    devices = experiment.devices()
    assert [device["name"] for device in devices[:2]] == ["client 0", "client 1"]
    assert not {"phi", "label_counts", "target_counts"} & set(devices[0])
    smaller = experiment.with_clients(devices[:2])
    assert (smaller.size, smaller.seed, experiment.size) == (2, 3, 10)
    scenario = smaller.planning_scenario(COUNTS[:2], TARGET)
    assert [client.uplink_gain for client in scenario.clients] == [device["uplink_gain"] for device in devices[:2]]
