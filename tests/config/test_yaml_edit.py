"""A YAML text is changed key by key; everything else in it, comments above all, stays as its author wrote it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.config import PRESETS, preset_text
from fedgap.config.yaml_edit import comment_above, edit_yaml
from fedgap.config.yaml_files import parse

TEXT = """\
# My fleet at home
format: 1
rounds: 100       # a day

bound:            # from a guess
  initial_gap: 3.5   # at the start
  smoothness: 170
  # the moments
  gradient_moment: 1500.0
server: {power_w: 0.5}   # the router
clients: fleet.csv       # six of them
# labels: none
fleet_note:
  - a
  - b   # two
# The end.
"""


def changed(**keys):
    return {key: value for key, value in (parse(TEXT, "text") | keys).items() if value is not None}


def test_a_number_in_a_section_is_replaced_in_place():
    bound = {"initial_gap": 2.25, "smoothness": 1e-5, "gradient_moment": 1500.0}
    expected = TEXT.replace("initial_gap: 3.5 ", "initial_gap: 2.25 ").replace("smoothness: 170", "smoothness: 1.0e-05")
    assert edit_yaml(TEXT, changed(bound=bound)) == expected


def test_new_keys_follow_the_last_of_their_section():
    bound = parse(TEXT, "text")["bound"] | {"pruning_sensitivity": 10.0}
    expected = TEXT.replace("1500.0\n", "1500.0\n  pruning_sensitivity: 10.0\n")
    assert edit_yaml(TEXT, changed(bound=bound)) == expected


def test_a_file_becomes_a_list_and_its_comment_stays():
    clients = [{"name": "a", "phi": 1.0}, {"name": "b", "phi": 2.0}]
    expected = TEXT.replace("clients: fleet.csv       # six of them\n",
                            "clients:        # six of them\n  - {name: \"a\", phi: 1.0}\n  - {name: \"b\", phi: 2.0}\n")
    assert edit_yaml(TEXT, changed(clients=clients)) == expected


def test_keys_are_removed_and_added_with_all_comments_kept():
    edited = edit_yaml(TEXT, changed(fleet_note=None, rounds=7, mode="repaired", server={"power_w": 1.5}))
    assert parse(edited, "text") == changed(fleet_note=None, rounds=7, mode="repaired", server={"power_w": 1.5})
    for comment in ("# My fleet at home", "# a day", "# from a guess", "# the moments", "# the router", "# The end."):
        assert comment in edited
    assert "fleet_note" not in edited


def test_what_cannot_be_followed_is_written_afresh():
    assert edit_yaml("{a: 1, b: 2}", {"a": 3}) == "a: 3\n"
    merged = "x: &x {p: 1}\ny: {<<: *x, q: 2}\n"
    assert parse(edit_yaml(merged, {"y": {"p": 1, "q": 3}}), "text") == {"y": {"p": 1, "q": 3}}


values = st.one_of(
    st.integers(-5, 10**6), st.floats(allow_nan=False, allow_infinity=False), st.text("ab: #-é\n", max_size=5),
    st.lists(st.integers(), max_size=3), st.lists(st.dictionaries(st.sampled_from("pq"), st.integers()), max_size=2),
    st.dictionaries(st.sampled_from("pqr"), st.integers() | st.lists(st.integers(), max_size=2), max_size=3),
)  # fmt: skip


@pytest.mark.parametrize("name", [*PRESETS["scenario"], "TEXT"])
@given(data=st.data())
def test_the_edited_text_means_the_document(name, data):
    """Whatever changes are asked for, the text says just that."""
    text = TEXT if name == "TEXT" else preset_text(name)
    document = parse(text, "text")
    for key in data.draw(st.lists(st.sampled_from([*document, "new", "other"]), max_size=4)):
        if isinstance(document.get(key), dict) and data.draw(st.booleans()):
            inner = data.draw(st.dictionaries(st.sampled_from([*document[key], "p"]), values, max_size=3))
            document[key] = document[key] | inner
        elif data.draw(st.booleans()):
            document[key] = data.draw(values)
        else:
            document.pop(key, None)
    assert parse(edit_yaml(text, document), "edited") == (document or None)


def test_comments_above_a_key_replace_those_of_the_last_time():
    once = comment_above(TEXT, "bound", ["Measured by this program: 3 pilots.", "smoothness: 170"])
    assert "\n# Measured by this program: 3 pilots.\n# smoothness: 170\nbound:" in once
    twice = comment_above(once, "bound", ["Measured by this program: 5 pilots.", "smoothness: 180"])
    assert twice == once.replace("3 pilots", "5 pilots").replace("# smoothness: 170", "# smoothness: 180")
