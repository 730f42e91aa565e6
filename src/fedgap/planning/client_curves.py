"""A client's energy–time curve, in closed form.

Keeping the fraction m = 1 − λ of the model at frequency f and power p costs a client m·ε joules and m·u seconds, with
x = C/f the seconds of computing and y = b/s the seconds of uploading *per unit of model*, s = ln(1 + p·h/(c·U₀)):

    u = x + y,        ε = K·C³/x² + ν·(eˢ − 1)·y,        C = τ·Z·e/q, K = κϖ, b = H⁺·ln2/c, ν = c·U₀/h.

Let ψ(u) be the least ε for a given u. It is convex and falling, so (m, t) ↦ m·ψ(t/m), the least energy to keep m
within t seconds, is jointly convex (a perspective): no successive approximation is needed. ψ has no closed form in u,
but all is closed in the *price of time* π = −ψ′(u), in watt:

    x(π) = (2KC³/π)^⅓,      s(π) = 1 + W₀((π/ν − 1)/e),      G(π) = ψ − uψ′ = ε + πu,      G′(π) = u,

each clipped at f^max and p^max. G is what one more unit of model costs in joules when time must be bought at π.
Powers span ten orders of magnitude (an SNR of 10⁸ and more), so everything is in s, never in p.

A least clock and a least power clip x and s at the other end. Where both are given u ends at u_max: with more time the
client waits, ψ is flat and π = 0. G is then linear in π below the price at which either begins to move.

With a cost curve s(λ) (:mod:`fedgap.system.cost_curve`) m is the share of the *cost* that is left, m = s(λ), and all of
the above holds for it. What m is worth is then w(m) = 1 − s⁻¹(m) instead of m: concave, rising and linear on
*pieces*. On a piece of slope w′ a client wants G(π) = w′·(worth of w); between two pieces it stays at their knot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.polynomial import polyval

from fedgap.arrays import Bools, Floats, Ints
from fedgap.planning.roots import root
from fedgap.planning.tolerances import CHEAPEST_PRICE
from fedgap.system import CostCurve, Fleet, fixed_delay


class OperatingPoint(NamedTuple):
    """A client's operating point: per unit of model x, y and u = x + y in seconds and ε in joules, and s = ln(1 +
    SNR)."""

    x: Floats
    s: Floats
    y: Floats
    time: Floats
    energy: Floats


class Balance(NamedTuple):
    """The point where G(π*) equals the worth of a unit of model: seconds per unit, joules per unit, worth of a
    second."""

    time: Floats
    energy: Floats
    rate: Floats


class Piece(NamedTuple):
    """A range of m on which its worth w is linear; it is empty (low = high) for a client that may not prune that
    much."""

    low: Floats
    high: Floats
    slope: float
    """w′ = −1/s′(λ)."""
    intercept: Floats
    """1 − w(high) + w′·high."""


_SILENT = (0, 1, -1 / 3, 11 / 72, -43 / 540, 769 / 17280, -221 / 8505, 680863 / 43545600, -1963 / 204120, 0.00601454325)
"""1 + W₀ around its branch point, in powers of √(2r)."""
_WHISPER = tuple((k - 1) / factorial(k) if k else 0.0 for k in range(13))
"""s·eˢ − (eˢ − 1) in powers of s."""


def log_snr(r: Floats) -> Floats:
    """The s ≥ 0 with (s − 1)·eˢ + 1 = r, for r = π/ν ≥ 0; equals 1 + W₀((r − 1)/e).

    scipy's lambertw is complex-valued, 20 times slower, and loses half the digits where (r − 1)/e nears −1/e (an almost
    silent client), so this uses a closed guess and Halley steps on the real equation.
    """
    least = r.min(initial=np.inf)
    if least > 2.0:  # the usual case: everybody is loud
        return _halley(_loud_guess(r), r, 2)
    q = np.sqrt(2.0 * r)
    guess = q * (1.0 + q * (-1.0 / 3.0 + q * (11.0 / 72.0 + q * (-43.0 / 540.0 + q * (769.0 / 17280.0)))))
    s = _halley(np.where(r > 2.0, _loud_guess(np.maximum(r, 2.0)), np.clip(guess, 1e-8, 1.6)), r, 3)
    return s if least >= 1e-3 else np.where(r < 1e-3, polyval(q, _SILENT), s)


def _loud_guess(r: Floats) -> Floats:
    logarithm = np.log1p((r - 1.0) / np.e)
    return np.asarray(1.0 + logarithm * (1.0 - np.log1p(logarithm) / (2.0 + logarithm)))


def _halley(s: Floats, r: Floats, steps: int) -> Floats:
    beyond = 1.0 - r
    for _ in range(steps):
        a = beyond * np.exp(-s) + (s - 1.0)
        s = s - a / (s - a * (0.5 + 0.5 / s))
    return s


@dataclass(frozen=True, eq=False)
class ClientCurves:
    """The curves of a fleet's clients; every field has shape (..., N)."""

    cubic: Floats
    """2·K·C³, J·s²."""
    nats: Floats
    """b = H⁺·ln2/c, s: the upload's seconds at s = 1."""
    noise: Floats
    """ν = c·U₀/h, W: noise power referred to the transmitter."""
    x_min: Floats
    s_max: Floats
    overhead: Floats
    """Seconds of download and latency, which come on top of everything else."""
    keep_min: Floats
    """s(λ^max) (1 − λ^max without a cost curve), or 1 where the scheme does not prune."""
    cycles: Floats
    max_power: Floats
    max_frequency: Floats
    min_power: Floats
    min_frequency: Floats
    x_max: Floats
    """C/f^min, s: infinite without a least clock, x_min where the scheme fixes the clock."""
    s_min: Floats
    """ln(1 + p^min/ν): 0 without a least power, s_max where the scheme fixes the power."""
    idle: Floats
    """P, W: drawn throughout the round."""
    free_power: bool
    free_frequency: bool
    cost_curve: CostCurve | None = None

    @classmethod
    def of(
        cls, fleet: Fleet, *, prune: bool = True, free_power: bool = True, free_frequency: bool = True
    ) -> "ClientCurves":
        """The curves of a fleet under a scheme's restrictions."""
        noise = fleet.bandwidth_hz * fleet.uplink_noise_psd_w_hz[..., None] / fleet.uplink_gain
        cycles = fleet.cycles
        x_min, s_max = cycles / fleet.max_frequency_hz, np.log1p(fleet.max_power_w / noise)
        with np.errstate(divide="ignore"):
            x_max = cycles / fleet.min_frequency_hz if free_frequency else x_min
        return cls(
            cubic=2.0 * fleet.pue * fleet.capacitance * cycles**3,
            nats=fleet.uplink_bits * np.log(2.0) / fleet.bandwidth_hz,
            noise=noise,
            x_min=x_min,
            s_max=s_max,
            overhead=fixed_delay(fleet),
            keep_min=fleet.cost_share(fleet.max_ratio) if prune else np.ones_like(noise),
            cycles=cycles,
            max_power=fleet.max_power_w,
            max_frequency=fleet.max_frequency_hz,
            min_power=fleet.min_power_w,
            min_frequency=fleet.min_frequency_hz,
            x_max=np.maximum(x_max, x_min),
            s_min=np.minimum(np.log1p(fleet.min_power_w / noise), s_max) if free_power else s_max,
            idle=fleet.idle_power_w,
            free_power=free_power,
            free_frequency=free_frequency,
            cost_curve=fleet.cost_curve,
        )

    def _map(self, change: Callable[[Floats], Floats]) -> "ClientCurves":
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.type is Floats}
        changed: dict[str, Any] = {name: change(value) for name, value in arrays.items()}
        return replace(self, **changed)

    @classmethod
    def stack(cls, several: Sequence["ClientCurves"]) -> "ClientCurves":
        """Several fleets' curves as one, with a new leading dimension; all under the same restrictions."""
        names = [f.name for f in fields(cls) if f.type is Floats]
        stacked: dict[str, Any] = {name: np.stack([getattr(curves, name) for curves in several]) for name in names}
        return replace(several[0], **stacked)

    def flat(self) -> "ClientCurves":
        """All leading dimensions folded into the clients'."""
        return self._map(lambda value: value.reshape(-1))

    def take(self, index: Ints) -> "ClientCurves":
        """The curves of some clients (an index array of any shape over the last axis)."""
        return self._map(lambda value: value[..., index])

    def pick(self, rows: Ints, batch: int) -> "ClientCurves":
        """The curves of some problems of a batch; what the whole batch shares stays shared."""
        return self._map(lambda value: value[rows] if value.ndim > 1 and len(value) == batch else value)

    def shortest(self, selected: Bools) -> Floats:
        """The least delay of a round of each selection: max over its clients of download + keep_min·u_min, (...)."""
        need = self.overhead + self.keep_min * self.u_min
        return np.asarray(np.where(selected, need, 0.0).max(axis=-1))

    @cached_property
    def y_min(self) -> Floats:
        """Upload seconds per unit of model at p^max."""
        return self.nats / self.s_max

    @cached_property
    def u_min(self) -> Floats:
        """The least seconds per unit of model: everything at its maximum."""
        return self.x_min + self.y_min

    @cached_property
    def least_s(self) -> Floats:
        """The least seconds of a round: everything at its maximum, with the most pruning."""
        return self.overhead + self.keep_min * self.u_min

    @cached_property
    def u_max(self) -> Floats:
        """The most seconds per unit of model that a client can be busy: everything at its minimum."""
        with np.errstate(divide="ignore"):
            return self.x_max + self.nats / self.s_min

    @cached_property
    def limited(self) -> bool:
        """Whether any client has a least clock or a least power that it may choose to work at."""
        clock, power = (self.x_max < np.inf).any(), (self.s_min > 0.0).any()
        return bool((self.free_frequency and clock) or (self.free_power and power))

    @cached_property
    def plain(self) -> bool:
        """Whether m is worth m and no client has a least clock or power: P1 as the paper has it."""
        return self.cost_curve is None and not self.limited

    @cached_property
    def idles(self) -> bool:
        """Whether clients draw idle power, so that longer rounds cost more energy."""
        return bool(self.idle.any())

    # --- what the kept share of the cost is worth -------------------------------------------------------------------

    def unpruned(self, keep: Floats) -> Floats:
        """w(m) = 1 − s⁻¹(m): the share of the model that is left where m of its cost is."""
        return keep if self.cost_curve is None else 1.0 - self.cost_curve.ratio_at(keep)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of w from the most pruning to none; a single one without a cost curve."""
        whole, one = np.ones_like(self.keep_min), np.ones(())
        if self.cost_curve is None:
            return (Piece(self.keep_min, whole, 1.0, one),)
        share, worth = self.cost_curve.share[::-1], 1.0 - self.cost_curve.ratio[::-1]
        slopes = np.diff(worth) / np.diff(share)
        ends = np.maximum(share.reshape(-1, *[1] * self.keep_min.ndim), self.keep_min)
        return tuple(
            Piece(ends[i], ends[i + 1], float(slope), one * (1.0 - worth[i + 1] + slope * share[i + 1]))
            for i, slope in enumerate(slopes)
        )

    def balances(self, worth: Floats, mu: Floats | float, floor: Floats | float) -> tuple[Balance, ...]:
        """On each piece, where G(π*) = w′·``worth``/μ, for clients (..., N).

        :param worth: what a unit of w is worth; :param mu: what a joule costs, in the same unit;
        :param floor: a price below which no client works on the deadlines of interest.
        """
        if len(self.pieces) == 1:
            return (self._balance(self.pieces[0].slope * worth, mu, floor),)
        slopes = np.array([piece.slope for piece in self.pieces]).reshape(-1, *[1] * np.ndim(worth))
        together = self._balance(slopes * worth, mu, floor)  # a call for each piece would take several times as long
        return tuple(Balance(*parts) for parts in zip(*together, strict=True))

    def _balance(self, worth: Floats, mu: Floats | float, floor: Floats | float) -> Balance:
        """u(π*), ε(π*) and μπ* with G(π*) = ``worth``/μ.

        Where the model is worth more than full speed costs, π* follows from G = ε + π·u_min; μπ* stays finite at μ = 0.
        Where it is worth less than the lowest speed costs, likewise from G = ε + π·u_max, and below ε nothing is kept.
        """
        full, at_full = self.full_price, self._at_full
        stretched = worth >= mu * (at_full.energy + full * at_full.time)
        joules = worth / np.where(np.asarray(mu) > 0.0, mu, 1.0)
        target = np.where(stretched, at_full.energy + full * at_full.time, joules)
        low = np.minimum(floor, full)
        if self.limited:
            low = np.minimum(np.maximum(low, self.slow_price), full)
        at_low = self.at(low)
        target = np.maximum(target, at_low.energy + low * at_low.time)
        start = np.clip(full * target / (at_full.energy + full * at_full.time), low, full)
        price, point = self.price_of_model(target, low, full, start, self.at(start))
        rate = np.where(stretched, (worth - mu * at_full.energy) / at_full.time, mu * price)
        if not self.limited:
            return Balance(point.time, point.energy, rate)
        can_wait = self.slow_price > 0.0
        slow_price = np.where(can_wait, self.slow_price, full)
        slow = self.at(slow_price)
        waits = can_wait & ~stretched & (joules < slow.energy + slow_price * slow.time)
        spare = (worth - mu * slow.energy) / slow.time
        time = np.where(waits, np.where(spare >= 0.0, slow.time, np.inf), point.time)
        return Balance(time, np.where(waits, slow.energy, point.energy), np.where(waits, np.maximum(spare, 0.0), rate))

    def kept(self, time: Floats, balances: tuple[Balance, ...]) -> Floats:
        """m of each client that has ``time`` seconds beside its download, at its balance."""
        keep = np.clip(time / balances[0].time, self.pieces[0].low, self.pieces[0].high)
        for piece, balance in zip(self.pieces[1:], balances[1:], strict=True):
            more = np.clip(time / balance.time, piece.low, piece.high)
            keep = np.where(time > piece.low * balance.time, more, keep)
        return keep

    def knots(self, time: Floats) -> Floats:
        """G at the low end of each piece, J, for clients that have ``time`` seconds, (pieces, ..., N); infinite where
        the time does not suffice for it."""
        low = np.stack([np.broadcast_to(piece.low, time.shape) for piece in self.pieces])
        price = self.price_of_time(np.maximum(time / low, self.u_min))
        point = self.at(price)
        return np.where(time > low * self.u_min, point.energy + price * point.time, np.inf)

    def kept_between(self, knots: Floats, time: Floats, worth: Floats, mu: Floats, floor: Floats) -> Floats:
        """As :meth:`kept`, where :meth:`knots` are known: they say which piece a client is on, and its balance alone is
        solved for. G rises with m and w′ falls, so all pieces below that one are worth keeping as well."""
        slopes = np.array([piece.slope for piece in self.pieces])
        wanted = slopes.reshape(-1, *[1] * time.ndim) * worth > mu * knots
        place = np.maximum(wanted.sum(axis=0) - 1, 0)
        low, high = (np.take_along_axis(np.stack([np.broadcast_to(end, time.shape) for end in ends]), place[None], 0)[0]
                     for ends in ([piece.low for piece in self.pieces], [piece.high for piece in self.pieces]))
        balance = self._balance(slopes[place] * worth, mu, floor)
        return np.where(wanted[0], np.clip(time / balance.time, low, high), self.keep_min)

    def rate(self, keep: Floats, at_knot: Floats, balances: tuple[Balance, ...]) -> Floats:
        """The worth of one more second for each client: the balance's on a piece, ``at_knot`` at the ends of pieces."""
        rate = at_knot
        for piece, balance in zip(self.pieces[::-1], balances[::-1], strict=True):
            # A client that only just meets the deadline at full speed values the next second as a stretched one does.
            inside = np.where(keep <= piece.low, np.maximum(at_knot, balance.rate), balance.rate)
            # Where ψ has a corner (at u_max, say) the price of its time may be above what the second before was worth.
            beyond = np.minimum(rate, balance.rate) if self.limited else rate
            rate = np.where(keep < piece.high, inside, beyond)
        return rate

    def dense(self) -> "ClientCurves":
        """The same clients when nothing may be pruned."""
        return replace(self, keep_min=np.ones_like(self.keep_min))

    # --- the curve, by the price of time --------------------------------------------------------------------------

    def at(self, price: Floats) -> OperatingPoint:
        """x(π), s(π), y(π), u(π) and ε(π), clipped at the client's maxima and minima."""
        if self.limited:
            with np.errstate(divide="ignore", invalid="ignore"):  # at the price 0 a client without minima never ends
                x = np.clip(np.cbrt(self.cubic / price), self.x_min, self.x_max)
                s = np.clip(log_snr(price / self.noise), self.s_min, self.s_max)
                return self._point(x, s)
        x = np.maximum(self.x_min, np.cbrt(self.cubic / price)) if self.free_frequency else _like(self.x_min, price)
        s = np.minimum(self.s_max, log_snr(price / self.noise)) if self.free_power else _like(self.s_max, price)
        return self._point(x, s)

    def _point(self, x: Floats, s: Floats) -> OperatingPoint:
        y = self.nats / s
        return OperatingPoint(x, s, y, x + y, 0.5 * self.cubic / (x * x) + self.noise * np.expm1(s) * y)

    def steepness(self, price: Floats, point: OperatingPoint) -> Floats:
        """−π·u′(π) ≥ 0, s: how fast time shrinks with the logarithm of its price."""
        moves = (point.x > self.x_min) & (point.x < self.x_max)
        slower = np.where(moves, point.x / 3.0, 0.0) if self.free_frequency else 0.0
        if not self.free_power:
            return np.asarray(slower + np.zeros_like(price))
        quieter = point.y * price / (self.noise * point.s * point.s * np.exp(point.s))
        return np.asarray(slower + np.where((point.s < self.s_max) & (point.s > self.s_min), quieter, 0.0))

    @cached_property
    def full_price(self) -> Floats:
        """The lowest price of time at which the client uses its maximum clock and its maximum power."""
        computing = self.cubic / self.x_min**3 if self.free_frequency else np.zeros_like(self.x_min)
        sending = self._sending_price(self.s_max) if self.free_power else np.zeros_like(self.x_min)
        return np.maximum(computing, sending)

    @cached_property
    def _at_full(self) -> OperatingPoint:
        return self.at(self.full_price)

    @cached_property
    def slow_price(self) -> Floats:
        """The price up to which the client runs at all its minima; 0 where it has not both."""
        free = np.full_like(self.x_min, np.inf)
        computing = self.cubic / self.x_max**3 if self.free_frequency else free
        sending = self._sending_price(self.s_min) if self.free_power else free
        return np.minimum(np.minimum(computing, sending), self.full_price)

    def _sending_price(self, s: Floats) -> Floats:
        price = s * np.exp(s) - np.expm1(s)
        if s.min(initial=np.inf) < 0.1:  # there the difference would cancel
            price = np.where(s < 0.1, polyval(s, _WHISPER), price)
        return np.asarray(self.noise * price)

    def price_below(self, time: Floats) -> Floats:
        """A price near the one of ``time`` ≥ u_min, and not above it: as if the other activity took its least time."""
        sending, computing = np.maximum(time - self.x_min, self.y_min), np.maximum(time - self.y_min, self.x_min)
        low = self.cubic / computing**3 if self.free_frequency else np.zeros(np.shape(time))
        return np.maximum(low, self._sending_price(self.nats / sending)) if self.free_power else low

    def price_of_time(self, time: Floats) -> Floats:
        """π with u(π) = ``time``, in W; the full price where ``time`` ≤ u_min, and 0 where it is above u_max.

        At the root either half of the time or more goes to computing, or to sending, which brackets π; safeguarded
        Newton steps in log–log then take a handful of iterations.
        """
        sending, computing = time - self.x_min, time - self.y_min
        fast = sending <= self.y_min * (1.0 + 1e-14)
        sending = np.where(fast, self.y_min, sending)
        computing = np.where(fast, self.x_min, computing)
        low = np.zeros(np.shape(time))
        high = low
        idle = time > self.u_max * (1.0 + 1e-14)
        if self.free_power:
            low = self._sending_price(self.nats / sending)
            high = self._sending_price(np.minimum(self.nats / (0.5 * time), self.s_max))
            if self.limited:  # a client at its least power says nothing about the price
                low = np.where(self.nats / sending >= self.s_min, low, 0.0)
        if self.free_frequency:
            computing_price = self.cubic / computing**3
            if self.limited:
                computing_price = np.where(computing <= self.x_max, computing_price, 0.0)
            low = np.maximum(low, computing_price)
            high = np.maximum(high, self.cubic / np.maximum(0.5 * time, self.x_min) ** 3)
        if not (self.free_power and self.free_frequency):
            return np.where(idle, 0.0, low) if self.limited else np.asarray(low)
        if self.limited:
            low = np.where(idle, 1.0, np.maximum(low, self.slow_price))
        low, high = np.log(low), np.log(np.maximum(low, high))
        log_price = low
        for _ in range(60):
            price = np.exp(log_price)
            point = self.at(price)
            error = np.log(point.time / time)
            low, high = np.where(error >= 0.0, log_price, low), np.where(error >= 0.0, high, log_price)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = error * point.time / self.steepness(price, point)
            trial = log_price + step
            inside = (trial >= low) & (trial <= high)
            close = np.abs(error) <= 1e-9  # the step squares this: exact to rounding after it
            if self.limited:
                close |= idle
            new = np.where(inside, trial, np.where(close, log_price, 0.5 * (low + high)))
            log_price = new
            if close.all():
                break
        return np.where(idle, 0.0, np.exp(log_price)) if self.limited else np.asarray(np.exp(log_price))

    def price_of_model(
        self, worth: Floats, low: Floats, high: Floats, price: Floats, point: OperatingPoint
    ) -> tuple[Floats, OperatingPoint]:
        """π with G(π) = ``worth`` inside [low, high], and the point there, from a price and its point.

        ln G is increasing in ln π with slope πu/G in (0, 1], so Newton's steps in log–log are short and safe.
        """
        for _ in range(60):
            model = point.energy + price * point.time
            ratio = np.log(worth / model)
            # Where a fixed frequency or power costs almost everything G is all but flat: a small ratio may ask for a
            # long step, and the last digit's for none.
            step = np.clip(np.where(np.abs(ratio) < 4e-16, 0.0, ratio) * model / (price * point.time), -40.0, 40.0)
            new = np.minimum(np.maximum(price * np.exp(step), low), high)
            far = np.abs(new / price - 1.0).max(initial=0.0)
            if far < 1e-15:
                break
            price = new
            point = self.at(price)
            if far < 1e-7:  # quadratic convergence: the next error is below 1e-14
                break
        return price, point

    # --- rounds of selections, pruned as much as allowed ------------------------------------------------------------

    def within(self, selected: Bools, deadline: Floats) -> tuple[Floats, Floats]:
        """The energy of a round of each selection that uses all of its deadline, J, and what a second more saves, W.

        Idle power is charged for all of the deadline, so that a second more may cost: it then saves less than nothing.
        """
        price, point = self.until(deadline)
        energy = np.where(selected, self.keep_min * point.energy, 0.0).sum(axis=-1)
        saved = np.where(selected, price, 0.0).sum(axis=-1)
        if not self.idles:
            return energy, saved
        awake = self.awake(selected)
        return energy + awake * deadline, saved - awake

    def awake(self, selected: Bools) -> Floats:
        """Idle power of all clients of each selection, W."""
        return np.asarray(np.where(selected, self.idle, 0.0).sum(axis=-1))

    def until(self, deadline: Floats) -> tuple[Floats, OperatingPoint]:
        """Everybody's price and point when they use all of the deadline."""
        time = (deadline[..., None] - self.overhead) / self.keep_min
        price = self.price_of_time(np.maximum(time, self.u_min))
        return price, self.at(price)

    def deadline_at(self, selected: Bools, price: Floats) -> Floats:
        """The deadline of a round of each selection at which a second more saves ``price`` joules, (...).

        It saves energy at all the clients: their own prices of time add up, less their idle power. The shortest
        deadline where that saves less even there; the longest that keeps everybody busy where it saves more. Newton's
        steps in the logarithm of the price, inside the bracket that one client who pays all, and equal parts, give.
        """

        def alone(own: Floats) -> Floats:
            time = self.overhead + self.keep_min * self.at(own[..., None] + np.zeros(selected.shape)).time
            return np.asarray(np.where(selected, time, 0.0).max(axis=-1))

        if self.idles:
            price = price + self.awake(selected)
        low, high = alone(price), alone(price / selected.sum(axis=-1))
        deadline = low
        for _ in range(60):
            each, point = self.until(deadline)
            total = np.where(selected, each, 0.0).sum(axis=-1)
            with np.errstate(divide="ignore"):  # everybody at all minima: nobody can be slowed down
                error = np.log(total / price)
            low, high = np.where(error >= 0.0, deadline, low), np.where(error >= 0.0, high, deadline)
            with np.errstate(divide="ignore", invalid="ignore"):  # nobody at all maxima can be slowed down by a little
                fall = each / (self.keep_min * self.steepness(each, point))
                trial = deadline + error * total / np.where(selected, fall, 0.0).sum(axis=-1)
            close = (np.abs(error) <= 1e-7) | (high - low <= 1e-15 * high)  # the step squares the error
            inside = (trial > low) & (trial < high)
            deadline = np.where(inside, trial, np.where(close, deadline, 0.5 * (low + high)))
            if close.all():
                break
        return deadline

    def share(self, selected: Bools, rounds: Floats, budget: float, *, of_energy: bool) -> tuple[float, Floats] | None:
        """The deadlines (J,) of ``rounds`` (J,) with selections (J, N) that keep one budget and need least of the
        other.

        They are returned with the price of time, W. In the best division one more second saves the same in all rounds,
        so this price is a scalar root. None if the ``budget`` (joules or seconds of all rounds) does not suffice.
        """
        high = float(np.log(np.where(selected, self.full_price, 0.0).sum(axis=-1).max())) + 1e-12
        low = float(np.log(CHEAPEST_PRICE * np.where(selected, self.full_price, np.inf).min()))

        def deadlines(log_price: float) -> Floats:
            return self.deadline_at(selected, np.full(len(rounds), np.exp(log_price)))

        def need(log_price: float) -> float:
            deadline = deadlines(log_price)
            return float(rounds @ (self.within(selected, deadline)[0] if of_energy else deadline))

        least, found = (low, high) if of_energy else (high, low)  # joules rise with the price of time, seconds fall
        if need(least) > budget:
            return None
        if need(found) > budget:
            found = root(lambda log_price: float(np.log(need(log_price) / budget)), low, high, xtol=1e-13, rtol=1e-14)
            step = 1e-14 * max(1.0, abs(found)) * (-1.0 if of_energy else 1.0)
            while need(found) > budget:  # to the side that keeps it
                found = min(max(found + step, low), high)
                step *= 8.0
        return float(np.exp(found)), deadlines(found)

    def power(self, s: Floats) -> Floats:
        """p = ν·(eˢ − 1), exactly p^max or p^min where s is clipped."""
        power = np.where(s >= self.s_max, self.max_power, np.minimum(self.noise * np.expm1(s), self.max_power))
        return np.maximum(power, self.min_power)

    def frequency(self, x: Floats) -> Floats:
        """f = C/x, exactly f^max or f^min where x is clipped."""
        frequency = np.where(x <= self.x_min, self.max_frequency, np.minimum(self.cycles / x, self.max_frequency))
        return np.maximum(frequency, self.min_frequency)


def _like(value: Floats, other: Floats) -> Floats:
    return np.broadcast_to(value, np.broadcast_shapes(value.shape, other.shape))
