import pytest

from fedgap.config import Scenario
from fedgap.config.overrides import apply, parse_override, parse_overrides
from fedgap.errors import InputError


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("rounds=3", ("rounds",), 3),
        ("budget.delay_s=1e2", ("budget", "delay_s"), 100.0),
        ("clients[3].phi=4", ("clients", 3, "phi"), 4),
        ("clients.3.phi=4", ("clients", 3, "phi"), 4),
        ("a.b=[1, {c: d}]", ("a", "b"), [1, {"c": "d"}]),
        ("bound.pruning_sensitivity=", ("bound", "pruning_sensitivity"), None),
        ("name=a=b", ("name",), "a=b"),
        (" rounds = 3 ", ("rounds",), 3),
    ],
)
def test_parse(text, path, value):
    override = parse_override(text)
    assert (override.path, override.value, override.text) == (path, value, text)


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3", "a[x]=3", "a[=3", ".a=3", "a.=3", "a b=3", "[3]x=4"])
def test_what_is_no_override(text):
    with pytest.raises(InputError) as caught:
        parse_override(text)
    assert str(caught.value).startswith(f"override '{text}'")


def test_a_value_that_is_not_yaml():
    with pytest.raises(InputError, match=r"override 'rounds=\[1': line 1: is not YAML"):
        parse_override("rounds=[1")


def test_apply_copies_only_what_it_changes():
    shared = {"x": 1}
    document = {"a": shared, "b": shared, "c": [shared, shared]}
    changed = apply(document, parse_overrides(["a.x=2", "c[1].x=3", "d.e.f=4"]))
    assert changed == {"a": {"x": 2}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 3}], "d": {"e": {"f": 4}}}
    assert document == {"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 1}]}
    assert changed["b"] is shared


def test_nothing_after_the_equals_sign_removes_the_key():
    assert apply({"a": {"x": 1, "y": 2}}, parse_overrides(["a.x="])) == {"a": {"y": 2}}


def test_the_last_override_wins(document):
    assert Scenario.from_dict(document, ["rounds=3", "rounds=4"]).rounds == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget.delay=3", "budget.delay: unknown key; did you mean 'delay_s'? (override 'budget.delay=3')"),
        ("clients[1].ph=3", "clients[1].ph: unknown key; did you mean 'phi'? (override 'clients[1].ph=3')"),
        ("mdoe=repaired", "mdoe: unknown key; did you mean 'mode'? (override 'mdoe=repaired')"),
        ("clients[2].phi=3", "override 'clients[2].phi=3': clients has 2 entries; use [0] to [1]"),
        ("clients.phi=3", "override 'clients.phi=3': clients is a list; write the entry's number, such as clients[0]"),
        ("rounds.x=3", "override 'rounds.x=3': rounds is 180, which has no keys of its own; write rounds=value"),
        ("budget[0]=3", "override 'budget[0]=3': budget is not a list; write a key instead of [0]"),
        (
            "rounds=0",
            "rounds: must be at least 1 (training takes at least one round); got 0 (override 'rounds=0')",
        ),
        (
            "clients[0]={phi: 1}",
            "clients[0].uplink_gain: missing (h_n: channel power gain from the client to the server)"
            " (override 'clients[0]={phi: 1}')",
        ),
    ],
)
def test_errors_name_the_override(document, override, message):
    with pytest.raises(InputError) as caught:
        Scenario.from_dict(document, [override])
    assert str(caught.value) == message


def test_an_error_elsewhere_does_not_blame_the_override(document):
    document["budget"]["energy_j"] = -1
    with pytest.raises(InputError) as caught:
        Scenario.from_dict(document, ["rounds=3"])
    assert "override" not in str(caught.value)


def test_one_text_instead_of_a_sequence_is_a_programming_error(document):
    with pytest.raises(TypeError):
        Scenario.from_dict(document, "rounds=3")
