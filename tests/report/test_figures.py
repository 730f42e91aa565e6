"""Points that would cover each other stand side by side, and no others move."""

from hypothesis import given
from hypothesis import strategies as st

from fedgap.report.figures import side_by_side

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (float(p[0]), float(p[0] + p[1]))),
                     max_size=9)


def overlap(one, other):
    return one[0] <= other[1] and other[0] <= one[1]


@given(INTERVALS)
def test_what_overlaps_is_shifted_apart_and_what_stands_alone_stays(intervals):
    shifts = side_by_side(intervals)
    for n, one in enumerate(intervals):
        others = [m for m, other in enumerate(intervals) if m != n and overlap(one, other)]
        assert all(shifts[m] != shifts[n] for m in others)
        assert others or shifts[n] == 0.0
    assert max(map(abs, shifts), default=0.0) <= (len(intervals) - 1) / 2 if intervals else True


def test_a_chain_shares_its_lanes_and_is_centred():
    # The first and the third of the chain do not touch, so two lanes are enough; the fourth interval is alone.
    assert side_by_side([(0, 2), (1, 4), (3, 5), (9, 9)]) == [-0.5, 0.5, -0.5, 0.0]
