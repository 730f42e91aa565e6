"""A client's curve of energy against time, in closed form.

To keep the fraction m = 1 − λ of the model at frequency f and power p costs a client m·ε joules and m·u seconds. ε and
u are *per unit of model*, that is, for the whole model. With x = C/f the seconds of computing, y = b/s the seconds of
uploading, and s = ln(1 + p·h/(c·U₀)) they are

    u = x + y,        ε = K·C³/x² + ν·(eˢ − 1)·y,        C = τ·Z·e/q, K = κϖ, b = H⁺·ln2/c, ν = c·U₀/h.

Let ψ(u) be the least ε for a given u. It is convex and falling. The least energy to keep m within t seconds is
m·ψ(t/m), which is jointly convex in m and t (a perspective), so that no successive approximation is needed. ψ has no
closed form as a function of u, but everything has one as a function of the *price of time* π = −ψ′(u), in watt, which
is how many joules one more second would save:

    x(π) = (2KC³/π)^⅓,      s(π) = 1 + W₀((π/ν − 1)/e),      G(π) = ψ − uψ′ = ε + πu,      G′(π) = u,

each clipped at f^max and p^max. G is what one more unit of model costs in joules if its seconds are paid at π.
Powers span ten orders of magnitude (SNRs of 10⁸ and more), so that everything is computed with s and never with p.

A minimum clock and a minimum power clip x and s at the other end. If a client has both, u is at most u_max: with more
time it waits, ψ is flat, and π = 0. G is then linear in π below the price at which clock or power leaves its minimum.

With a cost curve s(λ) (:mod:`fedgap.system.cost_curve`), m is the share of the *cost* that remains, m = s(λ), and all
of the above holds for it. The share of the model that remains is then w(m) = 1 − s⁻¹(m) instead of m, which is concave,
rising, and linear on *pieces*. On a piece with slope w′ the best π solves G(π) = w′·(worth of w); between two pieces
the best m is at the knot where they meet.
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
    """How fast clients compute and upload, and what that costs per unit of model; see the module docstring."""

    x: Floats
    """Seconds of computing."""
    s: Floats
    """ln(1 + SNR) of the upload, which stands for the power."""
    y: Floats
    """Seconds of uploading."""
    time: Floats
    """u = x + y, in seconds."""
    energy: Floats
    """ε, in joules."""


class Balance(NamedTuple):
    """The operating point with price π* at which a unit of model costs as much as it is worth, G(π*) = worth."""

    time: Floats
    """u(π*), seconds per unit of model."""
    energy: Floats
    """ε(π*), joules per unit of model."""
    rate: Floats
    """What one more second is worth, in the same unit as the worth of the model."""


class Piece(NamedTuple):
    """A range of m on which w(m) is linear. It is empty (low = high) for a client that may not prune so much."""

    low: Floats
    high: Floats
    slope: float
    """w′ = −1/s′(λ)."""
    intercept: Floats
    """1 − w(high) + w′·high."""


_SILENT = (0, 1, -1 / 3, 11 / 72, -43 / 540, 769 / 17280, -221 / 8505, 680863 / 43545600, -1963 / 204120, 0.00601454325)
"""Coefficients of 1 + W₀ around its branch point, in powers of √(2r)."""
_WHISPER = tuple((k - 1) / factorial(k) if k else 0.0 for k in range(13))
"""Coefficients of s·eˢ − (eˢ − 1) in powers of s."""


def log_snr(r: Floats) -> Floats:
    """Return the s ≥ 0 that solves (s − 1)·eˢ + 1 = r, for r = π/ν ≥ 0; it is 1 + W₀((r − 1)/e).

    scipy's lambertw is complex-valued, 20 times slower, and loses half of the digits for small r, where (r − 1)/e is
    close to −1/e. This function therefore starts from a closed approximation and takes Halley steps.
    """
    least = r.min(initial=np.inf)
    if least > 2.0:  # the usual case: all clients send with a power far above the noise
        return _halley(_loud_guess(r), r, 2)
    q = np.sqrt(2.0 * r)
    guess = q * (1.0 + q * (-1.0 / 3.0 + q * (11.0 / 72.0 + q * (-43.0 / 540.0 + q * (769.0 / 17280.0)))))
    quiet_guess = np.minimum(np.maximum(guess, 1e-8), 1.6)
    s = _halley(np.where(r > 2.0, _loud_guess(np.maximum(r, 2.0)), quiet_guess), r, 3)
    return s if least >= 1e-3 else _series_where(r < 1e-3, q, _SILENT, s)


def _series_where(mask: Bools, x: Floats, coefficients: tuple[float, ...], otherwise: Floats) -> Floats:
    """Return the power series at ``x`` where ``mask`` is true, and ``otherwise`` elsewhere."""
    values = np.array(otherwise)
    values[mask] = polyval(x[mask], coefficients)
    return values


def _loud_guess(r: Floats) -> Floats:
    """Return an approximation of :func:`log_snr` for r > 2."""
    logarithm = np.log1p((r - 1.0) / np.e)
    return np.asarray(1.0 + logarithm * (1.0 - np.log1p(logarithm) / (2.0 + logarithm)))


def _halley(s: Floats, r: Floats, steps: int) -> Floats:
    """Improve an approximation ``s`` of :func:`log_snr` by Halley's method."""
    beyond = 1.0 - r
    for _ in range(steps):
        a = beyond * np.exp(-s) + (s - 1.0)
        s = s - a / (s - a * (0.5 + 0.5 / s))
    return s


@dataclass(frozen=True, eq=False)
class ClientCurves:
    """The curves of a fleet's clients; every array has shape (..., N). See the module docstring for the symbols."""

    cubic: Floats
    """2·K·C³, J·s²."""
    nats: Floats
    """b = H⁺·ln2/c, s: the upload's seconds at s = 1."""
    noise: Floats
    """ν = c·U₀/h, W: the transmit power at which the SNR is 1."""
    x_min: Floats
    """Seconds of computing the whole model at f^max."""
    s_max: Floats
    """s at p^max."""
    overhead: Floats
    """Seconds of download and latency, which are added to computing and uploading."""
    keep_min: Floats
    """The least m: s(λ^max), which is 1 − λ^max without a cost curve; 1 if the scheme does not prune."""
    cycles: Floats
    """C, the clock cycles of computing the whole model."""
    max_power: Floats
    max_frequency: Floats
    min_power: Floats
    min_frequency: Floats
    x_max: Floats
    """C/f^min, s. It is infinite without a minimum clock, and x_min if the scheme fixes the clock."""
    s_min: Floats
    """ln(1 + p^min/ν). It is 0 without a minimum power, and s_max if the scheme fixes the power."""
    idle: Floats
    """P, W: idle power, drawn throughout the round."""
    free_power: bool
    """Whether powers are decided; otherwise they are p^max."""
    free_frequency: bool
    """Whether clocks are decided; otherwise they are f^max."""
    cost_curve: CostCurve | None = None

    @classmethod
    def of(
        cls, fleet: Fleet, *, prune: bool = True, free_power: bool = True, free_frequency: bool = True
    ) -> "ClientCurves":
        """Return the curves of a fleet under a scheme's restrictions."""
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
        """Combine the curves of several fleets under the same restrictions into one, with a new leading dimension."""
        names = [f.name for f in fields(cls) if f.type is Floats]
        stacked: dict[str, Any] = {name: np.stack([getattr(curves, name) for curves in several]) for name in names}
        return replace(several[0], **stacked)

    def flat(self) -> "ClientCurves":
        """Return the curves with all dimensions reshaped into one."""
        return self._map(lambda value: value.reshape(-1))

    def take(self, index: Ints) -> "ClientCurves":
        """Return the curves of some clients, given by an index array of any shape over the last axis."""
        return self._map(lambda value: value[..., index])

    def pick(self, rows: Ints, batch: int) -> "ClientCurves":
        """Return the curves of the problems ``rows`` of a batch; arrays that all problems share stay as they are."""
        return self._map(lambda value: value[rows] if value.ndim > 1 and len(value) == batch else value)

    def shortest(self, selected: Bools) -> Floats:
        """Return the least delay of a round of each selection: the maximum of overhead + keep_min·u_min, s, (...)."""
        need = self.overhead + self.keep_min * self.u_min
        return np.asarray(np.where(selected, need, 0.0).max(axis=-1))

    @cached_property
    def y_min(self) -> Floats:
        """Upload seconds per unit of model at p^max."""
        return self.nats / self.s_max

    @cached_property
    def u_min(self) -> Floats:
        """The least seconds per unit of model, at maximum clock and power."""
        return self.x_min + self.y_min

    @cached_property
    def least_s(self) -> Floats:
        """The least seconds of a round, at maximum clock and power with the most pruning."""
        return self.overhead + self.keep_min * self.u_min

    @cached_property
    def u_max(self) -> Floats:
        """The most seconds per unit of model that a client can be busy, at minimum clock and power."""
        with np.errstate(divide="ignore"):
            return self.x_max + self.nats / self.s_min

    @cached_property
    def limited(self) -> bool:
        """Whether any client has a minimum clock or a minimum power that restricts what can be decided."""
        clock, power = (self.x_max < np.inf).any(), (self.s_min > 0.0).any()
        return bool((self.free_frequency and clock) or (self.free_power and power))

    @cached_property
    def plain(self) -> bool:
        """Whether P1 is as in the paper: without a cost curve and without minimum clocks and powers."""
        return self.cost_curve is None and not self.limited

    @cached_property
    def idles(self) -> bool:
        """Whether clients draw idle power, so that longer rounds cost more energy."""
        return bool(self.idle.any())

    # --- what the kept share of the cost is worth -------------------------------------------------------------------

    def unpruned(self, keep: Floats) -> Floats:
        """Return w(m) = 1 − s⁻¹(m), the share of the model that remains if the share m of its cost remains."""
        return keep if self.cost_curve is None else 1.0 - self.cost_curve.ratio_at(keep)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The linear pieces of w, from the most pruning to none; a single one without a cost curve."""
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
        """Return for each piece the point with G(π*) = w′·``worth``/μ, of clients (..., N).

        :param worth: what a unit of w is worth; :param mu: μ, what a joule costs, in the same unit;
        :param floor: a lower bound on the prices of time that matter to the caller.
        """
        if len(self.pieces) == 1:
            return (self._balance(self.pieces[0].slope * worth, mu, floor),)
        slopes = np.array([piece.slope for piece in self.pieces]).reshape(-1, *[1] * np.ndim(worth))
        together = self._balance(slopes * worth, mu, floor)  # one call for all pieces is several times as fast
        return tuple(Balance(*parts) for parts in zip(*together, strict=True))

    def _balance(self, worth: Floats, mu: Floats | float, floor: Floats | float) -> Balance:
        """Return u(π*), ε(π*) and μπ* for the π* with G(π*) = ``worth``/μ.

        If the model is worth more than it costs at full speed, π* follows from G = ε + π·u_min, and μπ* is finite even
        at μ = 0. If it is worth less than it costs at the lowest speed, π* follows from G = ε + π·u_max; if it is worth
        less than ε there, nothing is kept.
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
        start = np.minimum(np.maximum(full * target / (at_full.energy + full * at_full.time), low), full)
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
        """Return the best m of each client that has ``time`` seconds for computing and uploading."""
        keep = np.minimum(np.maximum(time / balances[0].time, self.pieces[0].low), self.pieces[0].high)
        for piece, balance in zip(self.pieces[1:], balances[1:], strict=True):
            more = np.clip(time / balance.time, piece.low, piece.high)
            keep = np.where(time > piece.low * balance.time, more, keep)
        return keep

    def knots(self, time: Floats) -> Floats:
        """Return G at the low end of each piece for clients that have ``time`` seconds, J, (pieces, ..., N).

        It is infinite if the time does not suffice for that much of the model.
        """
        low = np.stack([np.broadcast_to(piece.low, time.shape) for piece in self.pieces])
        price = self.price_of_time(np.maximum(time / low, self.u_min))
        point = self.at(price)
        return np.where(time > low * self.u_min, point.energy + price * point.time, np.inf)

    def kept_between(self, knots: Floats, time: Floats, worth: Floats, mu: Floats, floor: Floats) -> Floats:
        """Return the same as :meth:`kept`, but faster, because the result of :meth:`knots` is given.

        The knots tell on which piece a client is, so that only one balance is computed for each client. G rises with m
        and w′ falls, so that all pieces below are worth keeping.
        """
        slopes = np.array([piece.slope for piece in self.pieces])
        wanted = slopes.reshape(-1, *[1] * time.ndim) * worth > mu * knots
        place = np.maximum(wanted.sum(axis=0) - 1, 0)
        low, high = (np.take_along_axis(np.stack([np.broadcast_to(end, time.shape) for end in ends]), place[None], 0)[0]
                     for ends in ([piece.low for piece in self.pieces], [piece.high for piece in self.pieces]))
        balance = self._balance(slopes[place] * worth, mu, floor)
        return np.where(wanted[0], np.clip(time / balance.time, low, high), self.keep_min)

    def rate(self, keep: Floats, at_knot: Floats, balances: tuple[Balance, ...]) -> Floats:
        """Return what one more second is worth to each client with this m.

        :param at_knot: the worth of a second at the ends of pieces; inside a piece it is that of its balance.
        """
        rate = at_knot
        for piece, balance in zip(self.pieces[::-1], balances[::-1], strict=True):
            # With one more second, a client that barely meets its deadline at full speed could keep more of the model.
            inside = np.where(keep <= piece.low, np.maximum(at_knot, balance.rate), balance.rate)
            # Where ψ has a corner, for example at u_max, the price of time may be above the worth of the last second.
            beyond = np.minimum(rate, balance.rate) if self.limited else rate
            rate = np.where(keep < piece.high, inside, beyond)
        return rate

    def dense(self) -> "ClientCurves":
        """Return the curves of the same clients in a round in which nothing may be pruned."""
        return replace(self, keep_min=np.ones_like(self.keep_min))

    # --- the curve, by the price of time --------------------------------------------------------------------------

    def at(self, price: Floats) -> OperatingPoint:
        """Return x(π), s(π), y(π), u(π) and ε(π), clipped at the client's maxima and minima."""
        if self.limited:
            with np.errstate(divide="ignore", invalid="ignore"):  # at price 0 a client without minima takes forever
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
        """Return −π·u′(π) ≥ 0, in s: how fast the time shrinks as the logarithm of its price grows."""
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
        """The price up to which the client uses its minimum clock and its minimum power; 0 unless it has both."""
        free = np.full_like(self.x_min, np.inf)
        computing = self.cubic / self.x_max**3 if self.free_frequency else free
        sending = self._sending_price(self.s_min) if self.free_power else free
        return np.minimum(np.minimum(computing, sending), self.full_price)

    def _sending_price(self, s: Floats) -> Floats:
        """Return the price of time π at which a client sends with this s."""
        price = s * np.exp(s) - np.expm1(s)
        if s.min(initial=np.inf) < 0.1:  # the difference of almost equal numbers would lose digits
            price = _series_where(s < 0.1, s, _WHISPER, price)
        return np.asarray(self.noise * price)

    def price_below(self, time: Floats) -> Floats:
        """Return a lower estimate of :meth:`price_of_time` for ``time`` ≥ u_min.

        It assumes that either computing or uploading takes its least time and the other one all the rest.
        """
        sending, computing = np.maximum(time - self.x_min, self.y_min), np.maximum(time - self.y_min, self.x_min)
        low = self.cubic / computing**3 if self.free_frequency else np.zeros(np.shape(time))
        return np.maximum(low, self._sending_price(self.nats / sending)) if self.free_power else low

    def price_of_time(self, time: Floats) -> Floats:
        """Return the π with u(π) = ``time``, in W; ``full_price`` for times up to u_min, and 0 for times above u_max.

        At the solution at least half of the time goes to computing or at least half to uploading, which brackets π.
        A few safeguarded Newton steps in the logarithms then find it.
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
            if self.limited:  # for a client at its minimum power this is no bound on the price
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
            close = np.abs(error) <= 1e-9  # the next step squares the error, to below rounding
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
        """Return the π in [low, high] with G(π) = ``worth``, and the operating point there.

        ln G rises with ln π with a slope πu/G in (0, 1], so that Newton steps in the logarithms converge safely.

        :param price: a first guess of π, and :param point: its operating point.
        """
        for _ in range(60):
            model = point.energy + price * point.time
            ratio = np.log(worth / model)
            # If almost all energy is spent at a fixed frequency or power, G is almost flat: a small ratio may need a
            # long step, but a ratio that is only a rounding error must not cause one.
            step = np.where(np.abs(ratio) < 4e-16, 0.0, ratio) * model / (price * point.time)
            new = np.minimum(np.maximum(price * np.exp(np.minimum(np.maximum(step, -40.0), 40.0)), low), high)
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
        """Return the energy of a round of each selection that uses all of its deadline, J, and what one more second
        would save, W.

        Idle power is drawn for the whole deadline, so that one more second may also cost energy; the saving is then
        negative.
        """
        price, point = self.until(deadline)
        energy = np.where(selected, self.keep_min * point.energy, 0.0).sum(axis=-1)
        saved = np.where(selected, price, 0.0).sum(axis=-1)
        if not self.idles:
            return energy, saved
        awake = self.awake(selected)
        return energy + awake * deadline, saved - awake

    def awake(self, selected: Bools) -> Floats:
        """Return the idle power of all clients of each selection together, W."""
        return np.asarray(np.where(selected, self.idle, 0.0).sum(axis=-1))

    def until(self, deadline: Floats) -> tuple[Floats, OperatingPoint]:
        """Return the price of time and the operating point of every client that uses all of the deadline."""
        time = (deadline[..., None] - self.overhead) / self.keep_min
        price = self.price_of_time(np.maximum(time, self.u_min))
        return price, self.at(price)

    def deadline_at(self, selected: Bools, price: Floats) -> Floats:
        """Return for each selection the deadline at which one more second would save ``price`` joules, (...).

        One more second saves energy at all clients: the saving is the sum of their prices of time, minus their idle
        power. If it is below ``price`` even at the shortest deadline, that one is returned; if it is above ``price``
        for all deadlines that keep clients busy, the longest of these. The deadline is found by Newton steps in the
        logarithm of the price. It is between the one at which a single client alone has this price and the one at which
        all clients have equal parts of it.
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
            with np.errstate(divide="ignore"):  # if all clients are at their minima, the saving is 0
                error = np.log(total / price)
            low, high = np.where(error >= 0.0, deadline, low), np.where(error >= 0.0, high, deadline)
            with np.errstate(divide="ignore", invalid="ignore"):  # the steepness of a client at its maxima may be 0
                fall = each / (self.keep_min * self.steepness(each, point))
                trial = deadline + error * total / np.where(selected, fall, 0.0).sum(axis=-1)
            close = (np.abs(error) <= 1e-7) | (high - low <= 1e-15 * high)  # the next step squares the error
            inside = (trial > low) & (trial < high)
            deadline = np.where(inside, trial, np.where(close, deadline, 0.5 * (low + high)))
            if close.all():
                break
        return deadline

    def share(self, selected: Bools, rounds: Floats, budget: float, *, of_energy: bool) -> tuple[float, Floats] | None:
        """Divide one budget among J kinds of rounds so that they need least of the other; return price and deadlines.

        At the optimum one more second saves equally much in all rounds. This common price of time, in W, is the root of
        a function of one variable, and is returned with the deadlines (J,).

        :param selected: the selection of each kind, (J, N); :param rounds: how many rounds of it there are, (J,);
        :param budget: joules (``of_energy``) or seconds of all rounds. The result is None if it does not suffice.
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
            while need(found) > budget:  # rounding may exceed the budget: move to the side that keeps it
                found = min(max(found + step, low), high)
                step *= 8.0
        return float(np.exp(found)), deadlines(found)

    def power(self, s: Floats) -> Floats:
        """Return the power p = ν·(eˢ − 1), in W; exactly p^max or p^min if s is at its limit."""
        power = np.where(s >= self.s_max, self.max_power, np.minimum(self.noise * np.expm1(s), self.max_power))
        return np.maximum(power, self.min_power)

    def frequency(self, x: Floats) -> Floats:
        """Return the frequency f = C/x, in Hz; exactly f^max or f^min if x is at its limit."""
        frequency = np.where(x <= self.x_min, self.max_frequency, np.minimum(self.cycles / x, self.max_frequency))
        return np.maximum(frequency, self.min_frequency)


def _like(value: Floats, other: Floats) -> Floats:
    return np.broadcast_to(value, np.broadcast_shapes(value.shape, other.shape))
