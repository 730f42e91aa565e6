"""The generalization statement φ: three histograms worked by hand, and its properties."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgap.errors import InputError
from fedgap.theory import aggregate, divergence, pooled_statement, smoothed, statement
from fedgap.theory.generalization import cross_entropy, entropy, mutual_information
from tests.system.strategies import checked
from tests.theory.strategies import histograms, pairs

# --- worked by hand, with 60 digits ---------------------------------------------------------------------------------
#
# Training (3, 1), target (1, 1). Smoothed: p̂ = (4, 2)/6, p̃ = (2, 2)/4; p′ = 1/3; D̂ = 4, D̃ = 2.
#   KL = ⅔·ln(4/3) + ⅓·ln(2/3) = 0.056 633 012 265 132 491;  √(2·KL) = 0.336 550 181 295 843 283
#   printed:     (4 + 2)·3·0.33655…/|1 − 2·0.33655…|      = 18.531 385 691 806 581
#   normalised:  (2/3 + 1/3)·3·0.33655…/(1 − 0.33655…/3)  =  1.137 228 721 334 145
# Training (7, 2, 0), target (2, 2, 2). Smoothed: (8, 3, 1)/12 and (1, 1, 1)/3; p′ = 1/12; D̂ = 9, D̃ = 6.
#   KL = ⅔·ln 2 + ¼·ln(3/4) + 1/12·ln(1/4) = 0.274 653 072 167 027 423;  √(2·KL) = 0.741 151 903 683 755 538
#   printed:     15·12·0.74115…/|1 − 6·0.74115…|          = 38.703 443 844 721 928
#   normalised:  12·0.74115…/(1 − 0.4·0.74115…)           = 12.641 544 859 434 437
# Training (8, 0, 0, 0), target (3, 3, 3, 3). Smoothed: (9, 1, 1, 1)/12 and ¼ each; p′ = 1/12; D̂ = 8, D̃ = 12.
#   KL = ¾·ln 3 + ¼·ln(1/3) = ½·ln 3 = 0.549 306 144 334 054 846;  √(2·KL) = √(ln 3) = 1.048 147 073 968 204 946
#   printed:     20·12·1.04814…/|1 − 12·1.04814…|         = 21.727 449 140 152 127
#   normalised:  12·1.04814…/(1 − 0.6·1.04814…)           = 33.892 121 974 515 803
WORKED = [
    ([3, 1], [1, 1], 0.056_633_012_265_132_491, 18.531_385_691_806_581, 1.137_228_721_334_145_4),
    ([7, 2, 0], [2, 2, 2], 0.274_653_072_167_027_423, 38.703_443_844_721_928, 12.641_544_859_434_437),
    ([8, 0, 0, 0], [3, 3, 3, 3], 0.549_306_144_334_054_846, 21.727_449_140_152_127, 33.892_121_974_515_803),
]


@pytest.mark.parametrize(("train", "target", "kl", "printed", "normalised"), WORKED)
def test_worked_by_hand(
    train: list[int], target: list[int], kl: float, printed: float, normalised: float
) -> None:
    assert divergence(smoothed(train), smoothed(target)).item() == pytest.approx(kl, rel=1e-13)
    assert statement(train, target, "as_printed").item() == pytest.approx(printed, rel=1e-13)
    assert statement(train, target, "size_normalised").item() == pytest.approx(normalised, rel=1e-13)


def test_smoothing_adds_one_to_every_class() -> None:
    np.testing.assert_allclose(smoothed([7, 2, 0]), [8 / 12, 3 / 12, 1 / 12], rtol=1e-15)
    np.testing.assert_allclose(smoothed([[0, 0], [1, 0]]), [[0.5, 0.5], [2 / 3, 1 / 3]], rtol=1e-15)


def test_entropies_of_a_coin() -> None:
    # p̂ = (½, ½), p̃ = (¼, ¾): H(p̂) = ln 2, H(p̃) = ¼·ln 4 + ¾·ln(4/3), H(p̂, p̃) = ½·ln 4 + ½·ln(4/3) = ½·ln(16/3)
    fair, bent = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert entropy(fair).item() == pytest.approx(0.693_147_180_559_945_31, rel=1e-15)
    assert entropy(bent).item() == pytest.approx(0.562_335_144_618_808_33, rel=1e-14)
    assert cross_entropy(fair, bent).item() == pytest.approx(0.836_988_216_785_835_77, rel=1e-14)
    # I = H(p̂) + H(p̃) − H(p̂, p̃)
    assert mutual_information(fair, bent).item() == pytest.approx(0.418_494_108_392_917_87, rel=1e-14)


# --- the divergence --------------------------------------------------------------------------------------------------


@checked
@given(pairs())
def test_divergence_is_entropy_minus_mutual_information(pair: tuple[np.ndarray, np.ndarray]) -> None:
    train, test = map(smoothed, pair)
    by_information = entropy(test) - mutual_information(train, test)
    assert divergence(train, test).item() == pytest.approx(by_information.item(), rel=1e-11, abs=1e-13)


@checked
@given(pairs(most=10**12))
def test_divergence_is_never_negative(pair: tuple[np.ndarray, np.ndarray]) -> None:
    train, test = map(smoothed, pair)
    assert divergence(train, test) >= 0.0
    assert divergence(train, train) == 0.0


@checked
@given(pairs())
def test_divergence_is_positive_between_different_distributions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    train, test = map(smoothed, pair)
    assume(np.abs(train - test).max() > 1e-6)
    # Pinsker: Σ|p̂ − p̃| ≤ √(2·KL), the step of Lemma 1's proof
    assert np.abs(train - test).sum() <= np.sqrt(2.0 * divergence(train, test)) * (1 + 1e-9)


# --- as printed ------------------------------------------------------------------------------------------------------


@checked
@given(pairs())
def test_as_printed_hardly_sees_the_divergence(pair: tuple[np.ndarray, np.ndarray]) -> None:
    train, target = pair
    root = np.sqrt(2.0 * divergence(smoothed(train), smoothed(target)))
    assume(target.sum() * root > 20.0)
    limit = (train.sum() / target.sum() + 1.0) / smoothed(train).min()
    # φ = limit·x/(x − 1) with x = D̃·√(2·KL)
    assert statement(train, target, "as_printed").item() == pytest.approx(limit.item(), rel=1.1 / (20.0 - 1.0))


def test_as_printed_falls_with_the_divergence_beyond_its_singularity() -> None:
    train = [500, 500, 500, 500]
    targets = [[250 + step, 250 - step, 250, 250] for step in (20, 60, 120, 200)]
    kl = [divergence(smoothed(train), smoothed(target)).item() for target in targets]
    assert kl == sorted(kl)
    printed = [statement(train, target, "as_printed").item() for target in targets]
    assert printed == sorted(printed, reverse=True)


def test_as_printed_has_no_value_at_its_singularity() -> None:
    # D̃ = 2, so the singularity is at KL = 1/8; p̂ = (x + 1)/12 on two classes gets there between 5 and 10
    low, high = 5.0, 10.0
    for _ in range(200):
        x = 0.5 * (low + high)
        low, high = (x, high) if divergence(smoothed([x, 10.0 - x]), smoothed([1, 1])) < 0.125 else (low, x)
    with pytest.raises(InputError, match=r"^kitchen: label_counts: φ has no value because D̃·√\(2·KL\) is 1;"):
        statement([[5.0, 5.0], [x, 10.0 - x]], [1, 1], "as_printed", names=["garage", "kitchen"])
    assert np.isfinite(statement([x + 0.1, 9.9 - x], [1, 1], "as_printed"))


# --- size-normalised -------------------------------------------------------------------------------------------------


@checked
@given(histograms(6), histograms(6), histograms(6), st.floats(0.0, 1.0))
def test_size_normalised_grows_with_the_divergence(
    train: np.ndarray, one: np.ndarray, other: np.ndarray, share: float
) -> None:
    # Targets of one size: D̂, D̃ and p′ stay as they are, and only KL moves.
    size = 1000.0
    targets = [values / values.sum() * size for values in (one, share * one / one.sum() + (1 - share) * other)]
    kl, phi = [], []
    for target in targets:
        kl.append(divergence(smoothed(train), smoothed(target)).item())
        try:
            phi.append(statement(train, target).item())
        except InputError:
            phi.append(np.inf)  # beyond the singularity: no client to prefer
    assume(abs(kl[0] - kl[1]) > 1e-9)
    assert (phi[0] < phi[1]) == (kl[0] < kl[1]) or np.isinf(phi).all()


@checked
@given(pairs(), st.integers(2, 50))
def test_size_normalised_is_of_the_shares_alone(pair: tuple[np.ndarray, np.ndarray], factor: int) -> None:
    # (counts + 1)·factor − 1 has the same smoothed distribution; sizes change, their shares nearly do not.
    train, target = (np.full(len(pair[0]), 1000) + values for values in pair)
    larger = [(values + 1.0) * factor - 1.0 for values in (train, target)]
    try:
        phi = statement(train, target).item()
    except InputError:
        return
    assume(phi < 1e3)
    assert statement(*larger).item() == pytest.approx(phi, rel=2e-2, abs=1e-9)


def test_size_normalised_has_no_value_at_or_beyond_its_singularity() -> None:
    # A client with one class and a target ten times its size: √(2·KL) = 1.92 ≥ (100 + 1000)/1000
    single = [100] + [0] * 9
    with pytest.raises(InputError, match=r"^client 1: label_counts: φ has no value because D̃·√\(2·KL\) is at least 1;"):
        statement([[10] * 10, single], [100] * 10)


@pytest.mark.parametrize("reading", ["as_printed", "size_normalised"])
def test_equal_distributions_have_no_gap(reading: str) -> None:
    assert statement([9, 19, 4], [19, 39, 9], reading).item() == 0.0


@checked
@given(pairs(most=10**12), st.sampled_from(["as_printed", "size_normalised"]))
def test_a_finite_statement_or_the_named_error(pair: tuple[np.ndarray, np.ndarray], reading: str) -> None:
    try:
        phi = statement(*pair, reading)
    except InputError as error:
        assert str(error).startswith("client 0: label_counts: φ has no value")  # noqa: PT017 either is right
    else:
        assert np.isfinite(phi)
        assert phi >= 0.0


def test_no_samples_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match=r"^client 1: label_counts: there are no samples"):
        statement([[1, 2], [0, 0]], [[1, 1], [0, 0]])


@checked
@given(st.integers(2, 6).flatmap(lambda n: st.tuples(st.lists(histograms(n), min_size=1, max_size=5), histograms(n))))
def test_many_clients_at_once_equal_a_loop(clients: tuple[list[np.ndarray], np.ndarray]) -> None:
    rows, target = clients
    try:
        together = statement(np.stack(rows), target)
    except InputError:
        return
    for phi, row in zip(together, rows, strict=True):
        assert phi == statement(row, target)


def test_typical_values_on_mnists_sizes() -> None:
    """6000 training and 1000 target samples a client, ten classes: medians over 2000 clients of each σ."""
    rng = np.random.default_rng(0)
    medians = {}
    for sigma in (1.0, 5.0, 10.0, 15.0):
        proportions = rng.dirichlet(np.full(10, sigma), 2000)
        train, target = rng.multinomial(6000, proportions), rng.multinomial(1000, np.full(10, 0.1), 2000)
        medians[sigma] = [float(np.median(statement(train, target, r))) for r in ("as_printed", "size_normalised")]
    # As docs/explanation/readings.md reports them; the medians of 2000 draws move by a few per cent.
    expected = {1.0: [900, 129], 5.0: [160, 10], 10.0: [121, 5.6], 15.0: [109, 4.1]}
    for sigma, values in expected.items():
        assert medians[sigma] == pytest.approx(values, rel=0.08)


# --- of a set --------------------------------------------------------------------------------------------------------


@checked
@given(st.data())
def test_aggregation_over_the_selected(data: st.DataObject) -> None:
    phi = np.array(data.draw(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=6)))
    selected = np.array(data.draw(st.lists(st.booleans(), min_size=len(phi), max_size=len(phi)).filter(any)))
    chosen = [value for value, taken in zip(phi, selected) if taken]
    assert aggregate(phi, selected, "sum").item() == pytest.approx(sum(chosen), rel=1e-12)
    assert aggregate(phi, selected, "mean").item() == pytest.approx(sum(chosen) / len(chosen), rel=1e-12)


def test_aggregation_of_many_selections_at_once() -> None:
    phi = np.array([1.0, 3.0, 8.0])
    selected = np.array([[[True, False, False], [True, True, False]], [[True, True, True], [False, False, True]]])
    np.testing.assert_allclose(aggregate(phi, selected, "sum"), [[1.0, 4.0], [12.0, 8.0]], rtol=1e-15)
    np.testing.assert_allclose(aggregate(phi, selected, "mean"), [[1.0, 2.0], [4.0, 8.0]], rtol=1e-15)


@checked
@given(st.data())
def test_the_pooled_statement_is_the_statement_of_the_sum(data: st.DataObject) -> None:
    counts = np.stack(data.draw(st.lists(histograms(4), min_size=1, max_size=5)))
    target = data.draw(histograms(4))
    selections = np.array(list(np.ndindex(*[2] * len(counts))), dtype=np.bool_)
    pooled = pooled_statement(counts.astype(np.float64), target.astype(np.float64), selections)
    for selected, phi in zip(selections, pooled, strict=True):
        if not selected.any():
            assert np.isposinf(phi)  # no set, nothing to plan for
            continue
        try:
            expected = statement(counts[selected].sum(axis=0), target).item()
        except InputError:
            expected = np.inf
        assert phi == pytest.approx(expected, rel=1e-12)


def test_the_pooled_statement_sees_that_skewed_clients_complement_each_other() -> None:
    counts, target = np.array([[90.0, 10.0], [10.0, 90.0], [80.0, 20.0]]), np.array([50.0, 50.0])
    one, complement, alike = pooled_statement(
        counts, target, np.array([[True, False, False], [True, True, False], [True, False, True]])
    )
    assert complement == 0.0
    assert 0.0 < alike < one
    # The mean over the set does not: it prefers the third client to the complement.
    phi = statement(counts, target)
    assert aggregate(phi, np.array([True, False, True]), "mean") < aggregate(phi, np.array([True, True, False]), "mean")
