"""``replan``: the best use of what is left of both budgets, decided anew before each round.

As long as nothing differs from what the plan assumed, the plan is followed. Afterwards a round is decided in two steps.

1. Prices of a joule and a second: a linear program shares the remaining budgets between as many rounds as are left,
   over rounds that are good in the rows of the world seen so far and in typical rows, drawn once from the random
   processes that the scenario declares (:mod:`fedgap.planning.policies.row_program`). Trying several numbers of rounds
   gives the best one by the forecast error, with the rounds that are done counted in.
2. The round: the cheapest one at these prices with the present channels, clients and labels. The row is left idle if a
   round in a later row is expected to be worth more than this one and the time that waiting takes.
"""

import hashlib
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedgap.arrays import Floats
from fedgap.config.world import typical_rows
from fedgap.planning.plan import Segment
from fedgap.planning.policies.cheapest_round import cheapest_rounds
from fedgap.planning.policies.done_rounds import DoneRounds
from fedgap.planning.policies.policy import Decision, PolicyStart, RoundView
from fedgap.planning.policies.present_round import PresentRound
from fedgap.planning.policies.row_program import RowProgram
from fedgap.planning.policy_simulation import ChangingWorld
from fedgap.planning.round_lagrangian import Columns
from fedgap.planning.task import Task
from fedgap.theory.generalization import smoothed
from fedgap.theory.label_matching import label_divergence

_ROWS = 48
"""Maximum number of rows of the world that are remembered."""
_NOMINAL_ROWS = 6
"""After this many rows have been seen, the nominal fleet is no longer used as one of them."""
_TYPICAL_ROWS = 16
"""Number of rows that are drawn from the random processes which the scenario's world declares."""
_REFINED = 2
"""How often good rounds of these rows are searched again at better prices."""
_AS_PLANNED = 1e-6
"""A relative difference from the plan up to this size is a rounding error."""
_AS_GOOD = 1e-4
"""If only labels have changed, the plan is kept unless the forecast error can be lowered by more than this share."""
_LABELS = "labels have changed"
_NO_GAIN = "no further round lowers the forecast error"
_FIRST_LEAP, _LEAP = 8, 64
"""The search for the number of remaining rounds first changes it by this fraction (1/8 or 1/64 of it), and then by
less: the first number holds before the first round, the second one later."""

_PROGRAMS = 6
"""Maximum number of times that prices are computed before a round."""
_FEW = 0.2
"""Prices are computed again if the present row is new and represents a larger share of the rounds than this."""
_MET = 1e-5
"""Prices are computed again if that may lower the error by more than this share."""
_AHEAD, _TIMES = 0.15, 3.0
"""A round may use its share of what is left and, in addition, the share ``_AHEAD`` of what the other rounds have, but
at most ``_TIMES`` its share."""


class Replan:
    """Follows the plan until the world differs from it, and plans again in every round from then on."""

    def __init__(self, start: PolicyStart) -> None:
        self.start = start
        costs = [start.problem.cost(segment) for segment in start.plan.segments]
        self._planned = [(float(cost.energy_j), float(cost.delay_s)) for cost in costs]
        self.state: dict[str, Any] = {"as_planned": True, "done": asdict(DoneRounds()), "left": start.plan.rounds,
                                      "seen": 0, "labels": None, "kept": None, "empty": [], "row": None,
                                      "nominal": False, "typical": 0, "drawn": [], "paid": [0.0, 0.0]}
        self.program = RowProgram(start, self.state)

    def decide(self, view: RoundView) -> Decision:
        """Return the plan's next round while everything is as planned, otherwise the best round now."""
        present = PresentRound.of(self.start, view)
        reason = self._news(view)
        self.program.judge_by(None if view.target_counts is None else smoothed(view.target_counts))
        if self.state["as_planned"]:
            difference = self._difference(view)
            only_labels = difference.endswith(_LABELS)
            kept = only_labels and self.state["kept"] == self.state["labels"]
            if present is not None and (kept or not difference):
                return self._follow(present)
            if present is None or not only_labels:
                self.state["as_planned"] = False
                reason = _planned_again(difference)
        return Decision(None, reason=reason) if present is None else self._plan_again(present, reason)

    # --- while the plan holds ---------------------------------------------------------------------------------------

    def _difference(self, view: RoundView) -> str:
        """Return in words what differs from the plan: clients, budgets, channels or labels; "" if nothing does."""
        start, nominal = self.start, self.start.problem
        number = len(view.done)
        if not view.available.all():
            away = nominal.names[int(np.flatnonzero(~view.available)[0])] if nominal.names else "a client"
            return f"{away} is not available"
        left, budgets = np.array([view.energy_j, view.delay_s]), np.array([nominal.energy_j, nominal.delay_s])
        spent = np.sum([self._planned[segment] for segment in start.order[:number]], axis=0) if number else 0.0
        if number != view.number or np.any(np.abs(budgets - spent - left) > _AS_PLANNED * budgets):
            return "more or less was spent"

        def same(seen: Floats, planned: Floats) -> bool:
            return np.allclose(seen, planned, rtol=_AS_PLANNED, atol=0.0)

        for what, keys in (("channels", ("uplink_gain", "downlink_gain")), ("processors", ("max_frequency_hz",))):
            if not all(same(getattr(view.fleet, key), getattr(nominal.fleet, key)) for key in keys):
                return f"{what} have changed"
        for what, seen, planned in (("the clients'", view.label_counts, nominal.label_counts),
                                    ("the target's", view.target_counts, nominal.target_counts)):
            if seen is not None and planned is not None and not same(seen / seen.sum(), planned / planned.sum()):
                return f"{what} {_LABELS}"
        return ""

    def _news(self, view: RoundView) -> str:
        """Return in words which labels have changed and which batteries have become empty since the last round."""
        labels = [_digest(counts) for counts in (view.label_counts, view.target_counts)]
        empty = np.flatnonzero(~view.available & (view.battery_j < self.start.problem.fleet.battery_j))
        before, known = self.state["labels"], self.state["empty"]
        news = [f"{whose} {_LABELS}" for whose, was, now in zip(("the clients'", "the target's"), before or labels,
                                                              labels, strict=True) if was != now]
        names = self.start.problem.names
        news += [f"the battery of {names[n] if names else f'client {n}'} cannot pay a round"
                 for n in empty.tolist() if n not in known]
        self.state |= {"labels": labels, "empty": sorted({*known, *empty.tolist()})}
        if before is not None and before[1] != labels[1] and view.done:
            self._judge_again(view)
        return "; ".join(news)

    def _judge_again(self, view: RoundView) -> None:
        """Compute the divergence of the labels drawn so far from the present target, for which the model will be used.

        With the divergence from the old target, more rounds would wrongly seem to make the model worse.
        """
        assert view.target_counts is not None
        done = self._done
        divergence = float(label_divergence(np.array(self.state["drawn"]), smoothed(view.target_counts)))
        self.state["done"] = asdict(replace(done, divergence=done.rounds * divergence))

    def _follow(self, present: PresentRound) -> Decision:
        done, order, plan = self._done, self.start.order, self.start.plan
        if done.rounds >= len(order):
            return Decision(None, ends=True)
        segment = plan.segments[order[done.rounds]]
        self.state["left"] = len(order) - done.rounds - 1
        self._count(present, segment, len(order))
        return Decision(replace(segment, rounds=1),
                        forecast_error=None if plan.forecast is None else plan.forecast.error)

    def _error_as_planned(self, present: PresentRound) -> float:
        """Return the forecast error if the rest of the plan is followed with the present labels."""
        plan, done = self.start.plan, self._done
        objective = present.objective(plan.rounds, 0.0)
        for place, rounds in zip(*np.unique(self.start.order[done.rounds:], return_counts=True), strict=True):
            segment = plan.segments[place]
            divergence = float(objective.divergence(segment.selected[present.clients]))
            for _ in range(rounds):
                done = done.with_round(segment, divergence)
        return done.error(objective.fixed)

    # --- planning again ---------------------------------------------------------------------------------------------

    def _plan_again(self, present: PresentRound, reason: str) -> Decision:
        state, done, problem = self.state, self._done, present.problem
        most = self.start.problem.rounds - done.rounds
        finished = done.error(self.program.tangent(done.rounds, 0.0).fixed) if done.rounds else np.inf
        if most <= 0 or min(problem.energy_j, problem.delay_s) <= 0.0:
            return Decision(None, ends=True, forecast_error=finished)
        guess = min(max(int(state["left"]), 1), most)
        leap = max(1, guess // (_LEAP if state["seen"] else _FIRST_LEAP))
        if state["prices"] is None:
            self._begin(present, guess)
        as_planned = self._error_as_planned(present) if state["as_planned"] else np.inf
        usual, remembered = present.as_usual(self.start), self._as_before(present)
        if not state["rows"]:
            task = usual.task(done.rounds + guess, state["slowed"])
            remembered = self.program.good_rounds(task, guess) is not None
        for _ in range(_PROGRAMS):
            left, best = self.program.best_left(guess, most, problem.energy_j, problem.delay_s, done, leap=leap)
            if np.isfinite(best.error):
                state["prices"], state["slowed"] = best.prices, best.slowed
            if done.rounds and finished <= min(best.error, as_planned) < np.inf:
                return Decision(None, ends=True, reason=_NO_GAIN, forecast_error=finished)
            total = done.rounds + left
            task = usual.task(total, state["slowed"])
            if remembered:
                columns, gain = self.program.better_rounds(task, left)
            else:
                columns, gain = self.program.good_rounds(task, left), np.inf
                remembered = columns is not None
            if columns is None:
                state["row"] = None
                break
            share = _largest_share(left)
            fits = columns.energy[0] <= share * problem.energy_j and columns.deadline[0] <= share * problem.delay_s
            weight = self.program.shares[-1]
            known = weight <= _FEW if np.isinf(gain) else weight * gain <= _MET * abs(best.error)
            if known and fits and 2 * left >= guess:
                break  # otherwise too few different rounds were known for good prices, and now more are known
        if present.dense:
            task = present.task(total, state["slowed"])
            columns = cheapest_rounds(task, *self.program.least_prices(task, left))
        elif left == 1 and done.rounds and columns is not None:
            # The last round could spend all that is left on less pruning, which the forecast likes. But models that
            # were pruned for many rounds and then trained once without pruning lost up to four points of accuracy.
            usual_prices = np.array(state["paid"]) / done.rounds
            state["prices"] = tuple(np.maximum(state["prices"], usual_prices).tolist())
            columns = cheapest_rounds(task, *state["prices"])
        self._forget()
        if state["as_planned"]:
            # Only labels have changed. The plan is kept as long as no other rounds are better for the present labels.
            if as_planned <= best.error * (1.0 + _AS_GOOD):
                state["kept"] = state["labels"]
                return self._follow(present)
            state["as_planned"] = False
            reason = _planned_again(reason or _LABELS)
        energy_price, delay_price = state["prices"]
        notes = {"energy_price": energy_price, "delay_price": delay_price, "rounds_left": float(left)}
        segment = None if columns is None else self._segment(present, columns, task, left)
        if segment is None:
            return Decision(None, reason=reason, notes=notes)
        if left == 1 and done.rounds and self._error_with(present, segment) >= finished:
            return Decision(None, ends=True, reason=_NO_GAIN, forecast_error=finished)
        state["left"] = left - 1
        state["paid"] = (np.array(state["paid"]) + state["prices"]).tolist()
        self._count(present, segment, total)
        if not reason and left != guess:
            reason = f"the number of rounds left is {left} now; {guess} were expected"
        return Decision(segment, reason=reason, notes=notes,
                        forecast_error=best.error if np.isfinite(best.error) else None)

    def _error_with(self, present: PresentRound, segment: Segment) -> float:
        """Return the forecast error if training ends after this round."""
        total = self._done.rounds + 1
        done = self._done.with_round(segment, present.divergence(segment.selected, total))
        return done.error(self.program.tangent(total, 0.0).fixed)

    def _begin(self, present: PresentRound, left: int) -> None:
        """Compute the first prices, from the nominal fleet and the present one."""
        start, total = self.start, self._done.rounds + left
        everybody = np.ones(start.problem.size, dtype=np.bool_)
        nominal = PresentRound.row(
            start, start.problem.fleet, everybody, (start.problem.label_counts, start.problem.target_counts),
            budgets=(present.problem.energy_j, present.problem.delay_s), first=False)
        assert nominal is not None
        state = self.state
        if _row_digest(nominal) == _row_digest(present):
            self.program.first_prices([present.as_usual(start)], total, left)
            return
        self.program.first_prices([nominal, present.as_usual(start)], total, left)
        self._expect_typical_rows(present, left)
        if not state["typical"]:
            state["nominal"] = self.program.good_rounds(nominal.task(total, state["slowed"]), left) is not None

    def _expect_typical_rows(self, present: PresentRound, left: int) -> None:
        """Remember good rounds of rows that are drawn from the random processes of the scenario's world."""
        state, start, problem = self.state, self.start, present.problem
        scenario = start.problem.scenario
        trace = None if scenario is None else typical_rows(scenario.world, scenario.names, _TYPICAL_ROWS)
        if trace is None:
            return
        world = ChangingWorld(start, trace)
        rows = [world.present(number, (problem.energy_j, problem.delay_s), first=False)
                for number in range(trace.rounds)]
        total, kept = self._done.rounds + left, []
        for row in rows:
            if row is not None and self.program.good_rounds(row.task(total, state["slowed"]), left) is not None:
                kept.append(row)
        state["typical"] = len(kept)
        for _ in range(_REFINED if kept else 0):
            expected = self.program.expected(left, problem.energy_j, problem.delay_s, self._done)
            if np.isfinite(expected.error):
                state["prices"], state["slowed"] = expected.prices, expected.slowed
            for place, row in enumerate(kept):
                self.program.better_rounds(row.task(total, state["slowed"]), left, place)

    def _as_before(self, present: PresentRound) -> bool:
        """Return whether the present row equals the last one that is remembered, in channels, clients and labels.

        If so, that row counts once more. If only the labels differ, it is forgotten, because its rounds were chosen for
        other labels.
        """
        state, now = self.state, [_row_digest(present), *self.state["labels"]]
        before, state["row"] = state["row"], now
        if before is None or before[0] != now[0]:
            return False
        if before == now:
            state["counts"][-1] = min(state["counts"][-1] + 1, _ROWS)
            return True
        del state["rows"][-1], state["counts"][-1]
        return False

    def _forget(self) -> None:
        """Forget the oldest rows, and the nominal fleet once enough rows have been seen."""
        state = self.state
        state["seen"] += 1
        first = state["typical"]
        last = max(first, len(state["rows"]) - _ROWS)
        if state["nominal"] and state["seen"] >= _NOMINAL_ROWS:
            last, state["nominal"] = 1, False
        del state["rows"][first:last], state["counts"][first:last]

    def _segment(self, present: PresentRound, columns: Columns, task: Task, left: int) -> Segment | None:
        """Return the best of these rounds that leaves enough of the budgets; None if it is better to wait for a better
        row."""
        energy_j, delay_s = present.problem.energy_j, present.problem.delay_s
        if left > 1 and not present.dense and self.program.worth_waiting(task, left):
            return None
        for share in (_largest_share(left), 1.0):
            for selected, energy, deadline in zip(columns.selected, columns.energy, columns.deadline, strict=True):
                segment = present.within(selected, min(float(energy), share * energy_j),
                                         min(float(deadline), share * delay_s))
                if segment is not None:
                    return segment
        return None

    @property
    def _done(self) -> DoneRounds:
        return DoneRounds(**self.state["done"])

    def _count(self, present: PresentRound, segment: Segment, total: int) -> None:
        done, (labels, divergence) = self._done, present.drawn(segment.selected, total)
        self.state["done"] = asdict(done.with_round(segment, divergence))
        self.state["drawn"] = (labels + (np.array(self.state["drawn"]) if done.rounds else 0.0)).tolist()


def _planned_again(difference: str) -> str:
    return f"the world differs from what was planned ({difference}); planned again from here on"


def _largest_share(left: int) -> float:
    """Return the largest share of what is left of a budget that the next of ``left`` remaining rounds may use."""
    return min((1.0 + _AHEAD * (left - 1)) / left, _TIMES / left)


def _row_digest(present: PresentRound) -> str:
    """Return a short text that identifies the available clients, their channels and their clocks."""
    fleet = present.problem.fleet
    return _digest(present.clients, fleet.uplink_gain, fleet.downlink_gain, fleet.max_frequency_hz)


def _digest(*arrays: np.ndarray | None) -> str:
    """Return a short text that identifies the content of the arrays; empty if all are None."""
    known = [np.ascontiguousarray(array).tobytes() for array in arrays if array is not None]
    return hashlib.sha256(b"".join(known)).hexdigest()[:16] if known else ""
