import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.config import yaml_files
from fedgap.config.yaml_files import parse, read_file
from fedgap.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5),
        ("1e-5", 1e-5),
        ("-2.5E+3", -2500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("42", 42),
        ("010", 10),
        ("1_000_000", 1_000_000),
        ("1_000.5", 1000.5),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("~", None),
        ("", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("'1e5'", "1e5"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!float 12", 12),
        ("[1, [2, {a: b}], {}]", [1, [2, {"a": "b"}], {}]),
        ("{1: a, ~: b, x: }", {"1": "a", "": "b", "x": None}),
        ("a: &d {p: 1, q: 2}\nb: {<<: *d, q: 3}", {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}),
        ("a: &x [1]\nb: [*x, *x]", {"a": [1], "b": [[1], [1]]}),
    ],
)
def test_yaml_values(text, value):
    found = parse(text, "text")
    assert found == value
    assert type(found) is type(value)


def test_nan_is_read_as_nan_and_left_to_the_check():
    assert math.isnan(parse(".nan", "text"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back_exactly(number):
    assert parse(repr(number), "text") == number


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_json_by_both_readers(value):
    """JSON is YAML, but for surrogate pairs (YAML has none) and the merge key: both readers give the same value."""
    text = json.dumps(value)
    assert parse(text, "text", as_json=True) == value
    if "\\ud" not in text and '"<<"' not in text:
        assert parse(text, "text") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "file: line 3: the key 'a' is written twice"),
        ("{a: 1, a: 1}", "file: line 1: the key 'a' is written twice"),
        ("!!python/object/apply:os.system ['true']", "is not allowed; write a plain value"),
        ("a: !mine 3", "file: line 1: the tag '!mine' is not allowed; write a plain value"),
        ("a: *b", "file: line 1: the alias 'b' is not defined; write its anchor (&) first"),
        ("&a [*a]", "file: line 1: the alias 'a' is not defined; write its anchor (&) first"),
        ("[1, 2", "file: line 1: is not YAML ("),
        ("a:\n\t- b", "file: line 2: is not YAML (it is indented with a tab; use spaces)"),
        ("a:\n  b: 1\n\tc: 2", "file: line 3: is not YAML (it is indented with a tab; use spaces)"),
        ("a:\n  - {b: 0,1, c: 2}", "file: line 2: the key '1' is empty; write a decimal point: 1.5, not 1,5"),
        ("{b: 1,5e6}", "file: line 1: the key '5000000.0' is empty; write a decimal point: 1.5, not 1,5"),
        ("a: 1\n---\nb: 2", "file: line 2: a second YAML document begins; a file must have only one"),
        ("? [1, 2]\n: 3", "file: line 1: a key must be a word"),
        ("{<<: 3}", "file: line 1: '<<' must refer to a mapping or a list of mappings"),
        ("[" * 100_000, "file: line 1: lists and mappings are nested more than 60 levels deep"),
        ("- " * 100_000, "file: line 1: lists and mappings are nested more than 60 levels deep"),
        ("{a: " * 200 + "1" + "}" * 200, "file: line 1: lists and mappings are nested more than 60 levels deep"),
        ("a: \x00", "is not YAML"),
        ("\ud800", "file: is not YAML (it contains an invalid Unicode character)"),
    ],
)
def test_yaml_errors_are_one_line(text, message):
    with pytest.raises(InputError) as caught:
        parse(text, "file")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_alias_bomb_is_refused_and_a_small_one_is_not():
    assert parse(bomb(3), "file")["a2"][9][9] == ["x"] * 10
    with pytest.raises(InputError, match="has more than 5,000,000 values"):
        parse(bomb(30), "file")


def test_merge_bomb_stays_small():
    lines = ["m0: &m0 {k: 1}"] + [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 6)]
    assert parse("\n".join(lines), "file")["m5"] == {"k": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "file: the key 'a' is written twice"),
        ('{"a": 1,}', "file: line 1: is not JSON"),
        ("[" * 100_000, "file: is nested too deeply"),
        ("", "file: line 1: is not JSON (Expecting value)"),
    ],
)
def test_json_errors_are_one_line(text, message):
    with pytest.raises(InputError) as caught:
        parse(text, "file", as_json=True)
    assert message in str(caught.value)


def test_an_endless_integer_is_too_large_rather_than_a_crash():
    assert parse("9" * 5000, "text") == math.inf
    assert parse("9" * 5000, "text", as_json=True) == math.inf


def test_files_that_cannot_be_read(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"format: 1\nname: caf\xe9")
    with pytest.raises(InputError, match=r"latin.yaml: line 2: is not UTF-8 text; save it as UTF-8"):
        read_file(latin)
    with pytest.raises(InputError, match="is a folder; name a file"):
        read_file(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_file(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_file(tmp_path / ("x" * 1000))
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        read_file(tmp_path / "a\0b")
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(yaml_files.MAX_BYTES + 1)
    with pytest.raises(InputError, match=r"big.yaml: is too large; at most 50 MB are read"):
        read_file(big)
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbfa: 1")
    assert parse(read_file(marked), "marked") == {"a": 1}
