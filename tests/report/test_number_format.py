import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.report.number_format import alike, number, remainder, rounds, share, si, split, three


@pytest.mark.parametrize(("value", "text"), [
    (0.2073, "207 mW"), (5e8, "500 MW"), (1.0, "1.00 W"), (999.6, "1.00 kW"), (0.0, "0 W"), (1e-3, "1.00 mW"),
    (0.99999, "1.00 W"), (48.5e-6, "48.5 µW"), (12.34, "12.3 W"),
])
def test_three_digits_with_a_prefix(value, text):
    assert si(value, "W") == text


@given(st.floats(1e-14, 1e14))
def test_a_prefix_loses_less_than_a_half_per_cent(value):
    text, prefix = si(value, "W").split(" ")
    scale = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    assert float(text) * scale[prefix[:-1]] == pytest.approx(value, rel=5.1e-3)
    assert len(text) <= 5


def test_numbers():
    assert [number(x) for x in (None, float("inf"), 16.9204, 61609.6, 1e12)] == ["–", "∞", "16.92", "61,610", "1e+12"]
    assert [three(x) for x in (0.0, 12.345, 1e-9, 0.0123)] == ["0", "12.3", "1.00e-09", "0.0123"]


def test_shares():
    assert [share(part, 200.0) for part in (200.0, 0.0, 0.01, 3.0, 50.0, float("inf"))] == [
        "100 %", "0 %", "< 0.1 %", "1.5 %", "25 %", "–"]
    assert share(1.0, 0.0) == "–"


def test_rounds_and_split():
    assert (rounds(1), rounds(1200)) == ("1 round", "1,200 rounds")
    assert split(0.048, 0.0195, 0.307) == "48+20+307 ms"
    assert split(1.2, 30.0) == "1+30 s"
    assert split(1e-5, 2e-4) == "10+200 µs"


def test_terms_and_their_sum_are_read_alike():
    """895,800 above its own sum of 895,760 was how four digits beside five read."""
    assert alike([2.0, 8.25, 895_751.4, 0.0, 895_761.65]) == ["2", "8", "895,751", "0", "895,762"]
    assert alike([1.75, 8.906, 438.61, 3.219, 452.485]) == ["1.75", "8.91", "438.61", "3.22", "452.49"]
    assert alike([1.0, 8e-4, float("inf"), 1234.5]) == ["1.0", "0.0008", "∞", "1,234.5"]
    assert number(61609.6, 6) == "61,609.6"


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=5))
def test_shown_terms_add_up_to_the_shown_sum(terms):
    *texts, total = (float(text.replace(",", "")) for text in alike([*terms, sum(terms)]))
    assert abs(sum(texts) - total) <= 1e-4 * total * len(terms) + 1e-300


def test_rounding_is_not_a_remainder():
    assert remainder(150.0, sum([0.375] * 399) + 0.375 - 5.684e-14) == 0.0
    assert remainder(40.0, 40.1) == 0.0
    assert remainder(40.0, 39.5) == 0.5
    assert remainder(1e-3, 0.9e-3) == pytest.approx(1e-4)
