"""Bad scenarios, one a line: what is wrong, and the exact words a person reads."""

import copy
import json
from typing import Any

import pytest
import yaml

from fedgap.config import Scenario
from fedgap.errors import InputError

CLIENT = {
    "phi": 10.0,
    "uplink_gain": 8.0e-6,
    "downlink_gain": 8.0e-6,
    "bandwidth_hz": 1.0e5,
    "max_power_w": 0.5,
    "max_frequency_hz": 5.0e8,
    "flops_per_cycle": 4,
    "pue": 1.0,
    "capacitance": 8.8e-28,
}
GOOD: dict[str, Any] = {
    "format": 1,
    "rounds": 180,
    "budget": {"energy_j": 250.0, "delay_s": 150.0},
    "learning": {"rate": 0.01, "batch_size": 32},
    "model": {"gradient_bits": 1421632, "flops_per_sample": 1.8e6},
    "pruning": {"max_ratio": 0.5, "dense_first": False},
    "bound": {
        "initial_gap": 3.5,
        "smoothness": 0.4,
        "gradient_moment": 1000.0,
        "parameter_moment": 470.0,
        "aggregation": "mean",
        "constants": "printed",
    },
    "server": {"power_w": 0.5, "bandwidth_hz": 1.0e5},
    "noise_psd_w_hz": 3.98e-21,
    "clients": [dict(CLIENT), dict(CLIENT), dict(CLIENT), dict(CLIENT)],
}
GONE = object()
FLEET = {
    "kind": "rayleigh",
    "count": 3,
    "mean_gain": 1e-5,
    "bandwidth_hz": 1e5,
    "max_power_w": 0.5,
    "max_frequency_hz": 5e8,
    "flops_per_cycle": 4,
    "capacitance": 1e-27,
}
LABELS = {"classes": 10, "concentration": 5, "train_samples": 600, "target_samples": 100}


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The good scenario with the value at each dotted path replaced, or taken out."""
    document: dict[str, Any] = copy.deepcopy(GOOD)
    for path, value in changes:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        here: Any = document
        for part in parents:
            here = here[part]
        if value is GONE:
            del here[last]
        else:
            here[last] = value
    return document


# (what is changed, the message)
VALUES: list[tuple[list[tuple[str, Any]], str]] = [
    ([("rounds", 0)], "rounds: must be at least 1 (training takes at least one round); got 0"),
    ([("rounds", 2.5)], "rounds: must be a whole number; got 2.5"),
    ([("rounds", True)], "rounds: must be a number; got true"),
    ([("rounds", "many")], "rounds: must be a number; got 'many'"),
    ([("rounds", GONE)], "rounds: missing (R = S + 1: the number of rounds)"),
    ([("rounds", 1e12)], "rounds: must be at most 1e+09; got 1000000000000.0"),
    ([("format", 2)], "format: must be 1 (the only version of the format); got 2"),
    (
        [("budget.energy_j", -5)],
        "budget.energy_j: must be above 0 J (without energy nothing can be computed or sent); got -5",
    ),
    ([("budget.energy_j", float("nan"))], "budget.energy_j: must be a finite number; got nan"),
    ([("budget.delay_s", 0)], "budget.delay_s: must be above 0 s (without time no round can end); got 0"),
    ([("budget.delay_s", float("inf"))], "budget.delay_s: must be a finite number; got inf"),
    ([("budget.delay_s", "2 min")], "budget.delay_s: must be a number (in s, without the unit); got '2 min'"),
    ([("budget", 250)], "budget: must be a mapping with keys such as energy_j, delay_s; got 250"),
    ([("budget", GONE)], "budget: missing (what all rounds together may spend)"),
    ([("learning.rate", 0)], "learning.rate: must be above 0 (with a learning rate of 0 the model never moves); got 0"),
    ([("learning.rate", "fast")], "learning.rate: must be a number; got 'fast'"),
    (
        [("learning.batch_size", 0)],
        "learning.batch_size: must be at least 1 (a gradient needs at least one sample); got 0",
    ),
    ([("learning.batch_size", 32.5)], "learning.batch_size: must be a whole number; got 32.5"),
    ([("delay_s", 3)], "delay_s: unknown key; did you mean 'budget.delay_s'?"),
    ([("roundz", None)], "roundz: unknown key; did you mean 'rounds'?"),
    ([("clients.1.lable_counts", None)], "clients[1].lable_counts: unknown key; did you mean 'label_counts'?"),
    ([("clients", GONE), ("Clients", [])], "Clients: unknown key; did you mean 'clients'?"),
    ([("budget.energy_j", "40,5")], "budget.energy_j: must be a number (write a decimal point: 1.5, not 1,5);"
     " got '40,5'"),
    ([("learning.batchsize", 32)], "learning.batchsize: unknown key; did you mean 'batch_size'?"),
    (
        [("model.gradient_bits", 0)],
        "model.gradient_bits: must be above 0 bit (a gradient of no bits carries nothing); got 0",
    ),
    (
        [("model.flops_per_sample", -1.8e6)],
        "model.flops_per_sample: must be above 0 FLOP (a gradient takes some operations); got -1800000.0",
    ),
    ([("model.parameters", 44426)],
     "model.parameters: unknown key; known here: gradient_bits, flops_per_sample, cost_curve"),
    (
        [("pruning.max_ratio", 1)],
        "pruning.max_ratio: must be at least 0 and below 1 (a ratio of 1 would remove the whole model); got 1",
    ),
    (
        [("pruning.max_ratio", -0.1)],
        "pruning.max_ratio: must be at least 0 and below 1 (a ratio of 1 would remove the whole model); got"
        " -0.1",
    ),
    ([("pruning.dense_first", "maybe")], "pruning.dense_first: must be true or false; got 'maybe'"),
    (
        [("bound.initial_gap", -1)],
        "bound.initial_gap: must be at least 0 (the loss cannot start below its minimum); got -1",
    ),
    (
        [("bound.smoothness", -0.4)],
        "bound.smoothness: must be at least 0 (a Lipschitz constant is not negative); got -0.4",
    ),
    ([("bound.gradient_moment", float("nan"))], "bound.gradient_moment: must be a finite number; got nan"),
    ([("bound.parameter_moment", [470])], "bound.parameter_moment: must be a number; got a list of 1"),
    (
        [("bound.pruning_sensitivity", -1)],
        "bound.pruning_sensitivity: must be at least 0 (it is a squared distance divided by a ratio); got -1",
    ),
    ([("bound.sensitivity", "secant")], "bound.sensitivity: secant needs bound.pruning_sensitivity, the measured γ₂·R; "
     "give it, or use theorem"),
    ([("bound.aggregation", "avg")], "bound.aggregation: must be one of sum, mean, mixture; got 'avg'"),
    (
        [("bound.aggregation", "means")],
        "bound.aggregation: must be one of sum, mean, mixture; got 'means'; did you mean 'mean'?",
    ),
    ([("bound.constants", "repaired")], "bound.constants: must be one of printed, corrected; got 'repaired'"),
    ([("bound.statement", 3)], "bound.statement: must be one of as_printed, size_normalised; got 3"),
    (
        [("bound.aggregation", "mixture")],
        "target_counts: missing; aggregation mixture needs the target's label histogram; give it, or use mean",
    ),
    (
        [("bound.aggregation", "mixture"), ("target_counts", [5, 5])],
        "clients[0].label_counts: missing; aggregation mixture needs every client's histogram; give it, or use mean",
    ),
    ([("server.power_w", 0)], "server.power_w: must be above 0 W (a silent server cannot broadcast); got 0"),
    ([("server.bandwith_hz", 1e5)], "server.bandwith_hz: unknown key; did you mean 'bandwidth_hz'?"),
    (
        [("noise_psd_w_hz", 0)],
        "noise_psd_w_hz: must be above 0 W/Hz (no receiver is free of noise; -174 dBm/Hz is 3.98e-21); got 0",
    ),
    (
        [("noise_psd_w_hz", -174)],
        "noise_psd_w_hz: must be above 0 W/Hz (no receiver is free of noise; -174 dBm/Hz is 3.98e-21); got"
        " -174",
    ),
    ([("noise_psd_dbm", -174)], "noise_psd_dbm: unknown key; did you mean 'noise_psd_w_hz'?"),
    ([("clients", [])], "clients: must have at least one client; got none"),
    ([("clients", 10)], "clients: must be a list of clients, or the name of a CSV file; got 10"),
    ([("clients", GONE)], "clients: missing; list them, name a CSV file, or give a recipe under fleet"),
    ([("clients", "fleet.csv")], "clients: 'fleet.csv' does not exist; name a CSV file with one row per client"),
    (
        [("clients.1", "phone")],
        "clients[1]: must be a mapping with keys such as name, phi, label_counts, target_counts; got 'phone'",
    ),
    (
        [("clients.3.bandwidth_hz", 0)],
        "clients[3].bandwidth_hz: must be above 0 Hz (a client without bandwidth never finishes its upload);"
        " got 0",
    ),
    ([("clients.2.uplink_gain", float("nan"))], "clients[2].uplink_gain: must be a finite number; got nan"),
    (
        [("clients.2.uplink_gain", -8e-6)],
        "clients[2].uplink_gain: must be above 0 (without a channel nothing arrives; -110 dB is 1e-11); got -8e-06",
    ),
    (
        [("clients.0.phi", -1)],
        "clients[0].phi: must be at least 0 (the generalization statement bounds a norm); got -1",
    ),
    ([("clients.0.phi", GONE)],
     "clients[0].phi: missing; give phi, or label_counts and target_counts, or a recipe under labels"),
    (
        [("clients.0.phi", GONE), ("clients.0.label_counts", [5, 5])],
        "clients[0].phi: missing; to compute it from label_counts, give target_counts as well",
    ),
    (
        [("clients.0.max_power_w", "0.5 W")],
        "clients[0].max_power_w: must be a number (in W, without the unit); got '0.5 W'",
    ),
    ([("clients.0.max_power_mw", 500)], "clients[0].max_power_mw: unknown key; did you mean 'max_power_w'?"),
    (
        [("clients.0.max_frequency_hz", 0)],
        "clients[0].max_frequency_hz: must be above 0 Hz (a stopped clock never finishes a gradient); got 0",
    ),
    (
        [("clients.0.max_frequency_hz", 1500)],
        "clients[0].max_frequency_hz: must be at least 1e+06 Hz (if MHz was meant, write 1500e6; if GHz, 1500e9);"
        " got 1500",
    ),
    (
        [("clients.0.max_frequency_hz", 2.4)],
        "clients[0].max_frequency_hz: must be at least 1e+06 Hz (if MHz was meant, write 2.4e6; if GHz, 2.4e9);"
        " got 2.4",
    ),
    (
        [("clients.0.flops_per_cycle", -4)],
        "clients[0].flops_per_cycle: must be above 0 FLOP (a processor does some work in a cycle); got -4",
    ),
    ([("clients.0.pue", 0)], "clients[0].pue: must be above 0 (computing takes energy); got 0"),
    ([("clients.0.capacitance", 0)], "clients[0].capacitance: must be above 0 F (computing takes energy); got 0"),
    (
        [("clients.0.capacitance", 1e-300)],
        "clients[0].capacitance: must be at least 1e-40 (is the unit right?); got 1e-300",
    ),
    ([("clients.0.capacitance", 1e300)], "clients[0].capacitance: must be at most 1e+30; got 1e+300"),
    (
        [("clients.0.capacitance", GONE)],
        "clients[0].capacitance: missing (ϖ_n: effective switched capacitance, in farad)",
    ),
    (
        [("clients.0.max_ratio", 1.0)],
        "clients[0].max_ratio: must be at least 0 and below 1 (a ratio of 1 would remove the whole model);"
        " got 1.0",
    ),
    (
        [("clients.0.batch_size", 0)],
        "clients[0].batch_size: must be at least 1 (a gradient needs at least one sample); got 0",
    ),
    ([("clients.0.name", "")], "clients[0].name: must be a printable text of 1 to 200 characters; got ''"),
    ([("clients.0.name", "a"), ("clients.3.name", "a")],
     "clients[3].name: must be unique; clients[0] already has the name 'a'"),
    (
        [("clients.0.label_counts", [5, -1])],
        "clients[0].label_counts: must be whole numbers of at least 0; got -1 for class 1",
    ),
    (
        [("clients.0.label_counts", [5])],
        "clients[0].label_counts: must have at least 2 classes (with one class there is nothing to learn);"
        " got 1",
    ),
    ([("clients.0.label_counts", [0, 0])], "clients[0].label_counts: must have at least one sample; got only zeros"),
    ([("clients.0.label_counts", 7)], "clients[0].label_counts: must be a list of sample counts, one per class; got 7"),
    (
        [("clients.0.label_counts", [5, 5]), ("clients.2.label_counts", [5, 5, 5])],
        "clients[2].label_counts: must have 2 classes, as the other histograms have; got 3",
    ),
    ([("target_counts", [5, 0.5])], "target_counts: must be whole numbers of at least 0; got 0.5 for class 1"),
    ([("mode", "as_is")], "mode: must be one of as_printed, repaired, practical; got 'as_is'"),
    ([("seed", -1)], "seed: must be at least 0 (a seed is not negative); got -1"),
    ([("fleet", FLEET)], "fleet: must be left out if clients is given; a scenario has only one of them"),
    (
        [("clients", GONE), ("fleet", FLEET)],
        "clients[0].phi: missing; give phi, or label_counts and target_counts, or a recipe under labels",
    ),
    ([("clients", GONE), ("fleet", FLEET | {"cuont": 3})], "fleet.cuont: unknown key; did you mean 'count'?"),
    (
        [("labels", LABELS | {"concentration": 0})],
        "labels.concentration: must be above 0 (a Dirichlet distribution needs a positive parameter); got 0",
    ),
    (
        [("labels", LABELS | {"classes": 1})],
        "labels.classes: must be at least 2 (with one class there is nothing to learn); got 1",
    ),
    # the first error in the document's order, whatever the order of the checks
    (
        [("budget.delay_s", -1), ("clients.0.phi", -1), ("server.power_w", -1)],
        "budget.delay_s: must be above 0 s (without time no round can end); got -1",
    ),
]


TEXTS: list[tuple[str, str]] = [
    ("", "FILE: must be a mapping of keys such as rounds and clients; got nothing"),
    ("[1, 2]", "FILE: must be a mapping of keys such as rounds and clients; got a list of 2"),
    ("rounds", "FILE: must be a mapping of keys such as rounds and clients; got 'rounds'"),
    ("rounds: 1\nrounds: 2\n", "FILE: line 2: the key 'rounds' is written twice; remove one of them"),
    ("rounds: !!python/name:os.system\n", "FILE: line 1: the tag 'tag:yaml.org,2002:python/name:os.system' is not "
     "allowed; write a plain value"),
    ("rounds: 3\nbudget: {energy_j: 40,5, delay_s: 3}\n", "FILE: line 2: the key '5' is empty;"
     " write a decimal point: 1.5, not 1,5"),
    ("rounds: 3\nbudget:\n\tenergy_j: 4\n", "FILE: line 3: is not YAML (it is indented with a tab; use spaces)"),
    ("rounds: *many\n", "FILE: line 1: the alias 'many' is not defined; write its anchor (&) first"),
    ("a: 1\n---\nb: 2\n", "FILE: line 2: a second YAML document begins; a file must have only one"),
    ("scenario: paper-mnist\ndata: {name: embedded}\n", "FILE: is an experiment file; name a scenario file"),
    ("{segments: [], theta: null}", "FILE: is a plan file; name a scenario file"),
    ("[" * 1000, "FILE: line 1: lists and mappings are nested more than 60 levels deep"),
]


def message_of(source: Any) -> str:
    with pytest.raises(InputError) as caught:
        Scenario.load(source)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_good_scenario_is_good(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(GOOD, sort_keys=False))
    assert Scenario.load(path).size == 4


def test_there_are_at_least_forty_distinct_messages():
    assert len({message for _, message in VALUES}) >= 40


@pytest.mark.parametrize(("changes", "message"), VALUES, ids=range(len(VALUES)))
def test_a_bad_value(tmp_path, changes, message):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(changed(*changes), sort_keys=False))
    assert message_of(path) == message
    as_json = tmp_path / "scenario.json"
    as_json.write_text(json.dumps(changed(*changes)))
    assert message_of(as_json) == message


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
def test_a_bad_text(tmp_path, text, message):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    assert message_of(path) == message.replace("FILE", str(path))


def test_a_bad_file(tmp_path):
    assert message_of(tmp_path / "absent.yaml") == f"{tmp_path / 'absent.yaml'}: no such file"
    assert message_of(tmp_path) == f"{tmp_path}: is a folder; name a file"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"# caf\xe9")
    assert message_of(latin) == f"{latin}: line 1: is not UTF-8 text; save it as UTF-8"
    table = tmp_path / "fleet.csv"
    table.write_text("name,phi\na,3\n")
    assert message_of(table) == (
        f"{table}: is a CSV file, which only lists clients; name a scenario file, which has the line "
        "'clients: fleet.csv'"
    )
    assert message_of("paper-mnits") == (
        "'paper-mnits': is neither a file nor a scenario preset; did you mean 'paper-mnist'?"
    )
    assert message_of("mnist") == (
        "'mnist': is an experiment preset; the scenario presets are paper-mnist, paper-cifar10, city"
    )
