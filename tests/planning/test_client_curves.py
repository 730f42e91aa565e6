"""A client's energy–time curve against numeric minimisation, identities and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from fedgap.planning.client_curves import ClientCurves, log_snr
from fedgap.system import Fleet, computation_energy, upload_delay, upload_energy
from tests.oracle.scenarios import pencil_problem

seeds = st.integers(0, 10_000)
KINDS = {"free": {}, "fixed_power": {"free_power": False}, "fixed_frequency": {"free_frequency": False}}


def extreme_fleet(seed: int, clients: int = 12) -> Fleet:
    """Radios between whispering (SNR 1e-3) and shouting (1e12), processors over nine orders of energy."""
    rng = np.random.default_rng(seed)

    def spread(low: float, high: float) -> np.ndarray:
        return 10.0 ** rng.uniform(np.log10(low), np.log10(high), clients)

    bandwidth, power = spread(1e4, 1e8), spread(1e-3, 10.0)
    gain = spread(1e-3, 1e12) * bandwidth * 4e-21 / power
    return Fleet(
        uplink_gain=gain,
        downlink_gain=np.full(clients, 1e-5),
        bandwidth_hz=bandwidth,
        max_power_w=power,
        max_frequency_hz=spread(1e7, 1e10),
        flops_per_cycle=spread(1.0, 64.0),
        pue=np.ones(clients),
        capacitance=spread(1e-31, 1e-22),
        gradient_bits=(bits := spread(1e4, 1e9)),
        uplink_bits=bits,
        flops_per_sample=spread(1e4, 1e10),
        batch_size=np.full(clients, 32.0),
        local_steps=np.ones(clients),
        max_ratio=rng.uniform(0.0, 0.95, clients),
        downlink_noise_psd_w_hz=np.full(clients, 4e-21),
        server_power_w=np.array(0.5),
        server_bandwidth_hz=np.array(1e7),
        uplink_noise_psd_w_hz=np.array(4e-21),
    )


def literal(fleet: Fleet, n: int, frequency: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, joules) of client n's unpruned model by the formulas of ``fedgap.system``."""
    one = fleet.take(np.array([n]))
    frequency, power = np.atleast_1d(frequency)[:, None], np.atleast_1d(power)[:, None]
    none = np.zeros_like(frequency)
    seconds = one.cycles / frequency + upload_delay(one, none, power)
    joules = computation_energy(one, none, frequency) + upload_energy(one, none, power)
    return seconds[:, 0], joules[:, 0]


# --- s(π) ---------------------------------------------------------------------------------------------------------


@given(st.floats(-12.0, 18.0).map(lambda power: 10.0**power))
@settings(deadline=None)
def test_log_snr_solves_its_equation(r):
    """(s − 1)·eˢ + 1 = r; for small s by its series s²/2 + s³/3 + s⁴/8 + s⁵/30 + …, free of cancellation."""
    s = float(log_snr(np.array([r]))[0])
    powers = np.arange(2, 30)
    factorial = np.cumprod(np.arange(1.0, 30.0))[1:]
    exact = (s**powers * (powers - 1) / factorial).sum() if s < 1.0 else (s - 1.0) * np.exp(s) + 1.0
    assert exact == pytest.approx(r, rel=1e-10)


def test_log_snr_is_lambert_s():
    r = np.geomspace(1e-3, 1e15, 400)
    assert log_snr(r) == pytest.approx(1.0 + lambertw((r - 1.0) / np.e).real, rel=1e-12)


def test_log_snr_by_hand():
    """(1 − 1)e + 1 = 1; (2 − 1)e² + 1; and 0 where time is free."""
    assert log_snr(np.array([0.0, 1.0, np.e**2 + 1.0])) == pytest.approx([0.0, 1.0, 2.0], abs=1e-14)


def test_log_snr_does_not_depend_on_its_neighbours():
    """Loud clients alone take a shorter path through the code than loud and silent ones together."""
    r = np.geomspace(2.1, 1e12, 50)
    together = log_snr(np.concatenate([r, [1e-9, 0.3]]))[:-2]
    assert log_snr(r) == pytest.approx(together, rel=1e-14)


# --- the curve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_no_split_of_the_time_takes_less_energy(seed):
    """ψ(u): for a given u, all splits into computing and uploading, by the literal formulas, cost at least ε(π)."""
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet)
    for n in range(fleet.size):
        own = units.take(np.array([n]))
        for u in own.u_min[0] * np.array([1.001, 1.3, 4.0, 50.0]):
            point = own.at(own.price_of_time(np.array([u])))
            assert float(point.time[0]) == pytest.approx(u, rel=1e-12)

            def joules(share, u=u, n=n, own=own):
                # ``share`` of what can be shared goes to computing on top of its least.
                x = own.x_min[0] + share * (u - own.u_min[0])
                s = own.nats[0] / (u - x)
                frequency, power = own.cycles[0] / x, own.noise[0] * np.expm1(s)
                seconds, energy = literal(fleet, n, frequency, power)
                assert seconds[0] == pytest.approx(u, rel=1e-9)
                return float(energy[0])

            best = minimize_scalar(joules, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-10}).fun
            best = min(best, joules(0.0), joules(1.0))
            assert float(point.energy[0]) <= best * (1.0 + 1e-9)
            assert float(point.energy[0]) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_price_of_time_is_the_inverse(kind, seed):
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet, **KINDS[kind])
    time = units.u_min * 10.0 ** np.random.default_rng(seed).uniform(0.0, 4.0, fleet.size)
    assert units.at(units.price_of_time(time)).time == pytest.approx(time, rel=1e-12)
    assert units.price_of_time(0.5 * units.u_min) == pytest.approx(units.full_price, rel=1e-9)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_price_of_time_is_minus_the_slope_of_energy(seed):
    """π = −dψ/du, and G′(π) = u for G = ε + πu, both by central differences inside the free range."""
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet)
    price = units.full_price * 10.0 ** np.random.default_rng(seed).uniform(-8.0, -0.5, fleet.size)
    steps = [price * (1.0 + h) for h in (-1e-3, 0.0, 1e-3)]
    before, here, after = (units.at(p) for p in steps)
    moving = (here.x > units.x_min * 1.01) | (here.s < units.s_max * 0.99)  # somebody at all maxima has no slope
    slope = (after.energy - before.energy) / np.where(moving, after.time - before.time, 1.0)
    assert slope[moving] == pytest.approx(-price[moving], rel=2e-3)
    worth = [point.energy + p * point.time for point, p in zip((before, after), (steps[0], steps[2]), strict=True)]
    assert (worth[1] - worth[0]) / (2e-3 * price) == pytest.approx(here.time, rel=2e-3)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_steepness_is_how_fast_time_shrinks(seed):
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet)
    price = units.full_price * 10.0 ** np.random.default_rng(seed).uniform(-8.0, 0.5, fleet.size)
    smooth = (np.abs(np.log(units.cubic / units.x_min**3 / price)) > 0.01) & (
        np.abs(np.log(units._sending_price(units.s_max) / price)) > 0.01
    )
    here = units.at(price)
    fall = (units.at(price * (1.0 - 1e-4)).time - units.at(price * (1.0 + 1e-4)).time) / 2e-4
    off = np.abs(units.steepness(price, here) - fall)
    assert (off <= 1e-4 * fall + 1e-11 * here.time)[smooth].all()  # the difference loses what it subtracts: ~1e-12·u


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, part=st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_energy_of_keeping_m_in_t_seconds_is_convex(kind, seed, part):
    """(m, t) ↦ m·ψ(t/m) lies below its chords."""
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet, **KINDS[kind])
    rng = np.random.default_rng(seed)
    m, u = rng.uniform(0.05, 1.0, (2, fleet.size)), units.u_min * 10.0 ** rng.uniform(0.0, 2.0, (2, fleet.size))

    def energy(m, t):
        return m * units.at(units.price_of_time(t / m)).energy

    t = m * u
    ends = energy(m, t)
    between = energy(part * m[0] + (1 - part) * m[1], part * t[0] + (1 - part) * t[1])
    assert (between <= (part * ends[0] + (1 - part) * ends[1]) * (1.0 + 1e-9)).all()


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_price_of_model_is_the_inverse_of_its_worth(seed):
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet)
    high = units.full_price
    low = high * 1e-9
    price = high * 10.0 ** np.random.default_rng(seed).uniform(-9.0, 0.0, fleet.size)
    point = units.at(price)
    found, there = units.price_of_model(point.energy + price * point.time, low, high, high, units.at(high))
    assert there.energy + found * there.time == pytest.approx(point.energy + price * point.time, rel=1e-12)


def test_a_flat_worth_of_model_is_inverted_too():
    """A fixed frequency that costs 10⁶ times the upload: G changes in its seventh digit only, π by a factor 1000."""
    fleet = pencil_problem(1, 1).fleet
    units = ClientCurves.of(replace(fleet, capacitance=1e6 * fleet.capacitance), free_frequency=False)
    price = np.array([0.01, 0.5])
    point = units.at(price)
    worth = point.energy + price * point.time
    full = units.full_price
    found, there = units.price_of_model(worth, full * 1e-6, full, full, units.at(full))
    assert found == pytest.approx(price, rel=1e-5)
    assert there.time == pytest.approx(point.time, rel=1e-5)


# --- restrictions and maxima --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_maxima_are_kept_and_restrictions_hold_exactly(kind, seed):
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet, **KINDS[kind])
    for price in (units.full_price * 10.0, units.full_price * 1e-3):
        point = units.at(price)
        power, frequency = units.power(point.s), units.frequency(point.x)
        assert (power <= fleet.max_power_w).all()
        assert (power > 0.0).all()
        assert (frequency <= fleet.max_frequency_hz).all()
        loud, fast = kind == "fixed_power", kind == "fixed_frequency"
        assert not loud or (power == fleet.max_power_w).all()
        assert not fast or (frequency == fleet.max_frequency_hz).all()
    point = units.at(units.full_price * (1.0 + 1e-9))
    assert (units.power(point.s) == fleet.max_power_w).all()
    assert (units.frequency(point.x) == fleet.max_frequency_hz).all()
    assert point.time == pytest.approx(units.u_min, rel=1e-12)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_curve_is_what_the_literal_formulas_say(seed):
    fleet = extreme_fleet(seed)
    units = ClientCurves.of(fleet)
    point = units.at(units.full_price * 10.0 ** np.random.default_rng(seed).uniform(-6.0, 1.0, fleet.size))
    for n in range(fleet.size):
        seconds, joules = literal(fleet, n, units.frequency(point.x)[n], units.power(point.s)[n])
        assert seconds[0] == pytest.approx(point.time[n], rel=1e-12)
        assert joules[0] == pytest.approx(point.energy[n], rel=1e-12)


def test_curve_by_hand():
    """The pencil's client 0: C = 3, K = 1, b = 2·ln2, ν = 1. Computing at 1 Hz: −dε/dx = 2·27/3³ = 2 W a second.

    At π = 2: x = (54/2)^⅓ = 3 s; (s − 1)eˢ + 1 = 2 has s = 1 + W₀(1/e) = 1.2784645…, so y = 2·ln2/s.
    """
    units = ClientCurves.of(pencil_problem(1, 1).fleet).take(np.array([0]))
    point = units.at(np.array([2.0]))
    s = 1.2784645427610738  # below p^max = 3 W: s_max = ln 4 = 1.386
    assert point.x == pytest.approx([3.0])
    assert point.s == pytest.approx([s])
    assert point.energy == pytest.approx([27.0 / 9.0 + (np.exp(s) - 1.0) * 2.0 * np.log(2.0) / s])
    assert units.u_min == pytest.approx([1.5 + 1.0])
    assert units.shortest(np.array([[True]])) == pytest.approx([2.0 + 0.5 * 2.5])


def test_dense_and_stacked():
    """Unpruned rounds keep everything; stacking keeps the rows apart; flattening restores them in order."""
    units = ClientCurves.of(extreme_fleet(0))
    assert (units.dense().keep_min == 1.0).all()
    assert (ClientCurves.of(extreme_fleet(0), prune=False).keep_min == 1.0).all()
    stacked = ClientCurves.stack([units, units.dense()])
    assert stacked.keep_min.shape == (2, 12)
    assert (stacked.flat().keep_min == np.concatenate([units.keep_min, np.ones(12)])).all()


# --- rounds of selections -----------------------------------------------------------------------------------------


def some_rounds(seed: int, kind: str) -> tuple[ClientCurves, np.ndarray, np.ndarray]:
    """Curves (3, N), selections and numbers of rounds of three kinds of rounds, the second one dense."""
    rng = np.random.default_rng(seed)
    units = ClientCurves.of(extreme_fleet(seed), **KINDS[kind])
    selected = rng.random((3, 12)) < rng.choice([0.1, 0.5, 1.0])
    selected[:, rng.integers(12)] = True
    return ClientCurves.stack([units, units.dense(), units]), selected, rng.integers(1, 100, 3).astype(float)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_the_clients_prices_add_up_to_the_deadline_s(kind, seed):
    """A second more saves the price in all, and a second less would cost it: but at the shortest deadline, more."""
    units, selected, _ = some_rounds(seed, kind)
    dearest = np.where(selected, units.full_price, 0.0).sum(axis=-1)
    price = dearest.max() * 10.0 ** np.random.default_rng(seed).uniform(-12.0, 0.1, 3)
    deadline, floor = units.deadline_at(selected, price), units.shortest(selected)
    assert (deadline >= floor * (1.0 - 1e-15)).all()
    shorter, longer = np.maximum(deadline * (1.0 - 1e-9), floor), deadline * (1.0 + 1e-9)
    at_floor = deadline <= floor * (1.0 + 1e-12)
    assert ((units.within(selected, shorter)[1] >= price * (1.0 - 1e-6)) | at_floor).all()
    assert (units.within(selected, longer)[1] <= price * (1.0 + 1e-6)).all()


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_no_other_deadlines_take_less_energy(kind, seed):
    """Within the same delay, and the other way round: that energy cannot be kept in less time."""
    units, selected, rounds = some_rounds(seed, kind)
    rng = np.random.default_rng(seed)
    floor = units.shortest(selected)
    budget = float(rounds @ floor) * (1.0 + 10.0 ** rng.uniform(-6.0, 4.0))
    price, deadline = units.share(selected, rounds, budget, of_energy=False)
    assert rounds @ deadline <= budget
    assert price > 0.0
    energy = float(rounds @ units.within(selected, deadline)[0])
    spare = budget - float(rounds @ floor)
    parts = np.concatenate([rng.dirichlet(np.full(3, 0.3), 50), np.eye(3)])
    near = np.maximum(rounds * (deadline - floor) * np.exp(0.01 * rng.normal(size=(50, 3))), 1e-300)
    parts = np.concatenate([parts, near / near.sum(axis=-1, keepdims=True)])
    others = units.within(selected, floor + spare * parts / rounds)[0] @ rounds
    assert (others >= energy * (1.0 - 1e-9)).all()
    back = units.share(selected, rounds, energy * (1.0 + 1e-12), of_energy=True)[1]
    assert rounds @ back <= budget * (1.0 + 1e-6)
    assert units.share(selected, rounds, 0.999 * float(rounds @ floor), of_energy=False) is None
