"""``python -m fedgap.web.solver_worker [NICE]``: a process that solves one job after another, and can be told to stop.

Jobs arrive on stdin and events are written to stdout, one JSON object per line. ``{"cancel": ID}`` ends a job at once,
so that the next position of a slider need not wait for the answer to the last one. The process ends when its stdin
ends, that is with the server."""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from fedgap.analysis import BudgetGrid, budget_factors, frontier_points
from fedgap.analysis.accuracy_budget import least_budgets, target_frontier
from fedgap.config import Scenario
from fedgap.errors import FedgapError
from fedgap.planning import PAPER_SCHEMES, Plan, Scheme, plan
from fedgap.planning.budget_search import BudgetSearch
from fedgap.planning.diagnosis import feasible
from fedgap.planning.problem import Problem
from fedgap.planning.settings import SolverSettings
from fedgap.planning.single_selection import best_single_selection
from fedgap.planning.solve import infeasible, scheme_of
from fedgap.planning.task import Task
from fedgap.web.documents import open_scenario
from fedgap.web.plan_view import drawn, point_view, scheme_view, target_view

FACTORS = budget_factors(7, least=0.5)
"""The grid of the frontier, as multiples of the budgets in the document; it does not change when sliders move."""
LIMIT_S = 120.0
"""A job that takes longer than this many seconds is cancelled."""
Event = dict[str, Any]


class Cancelled(BaseException):
    """The job was cancelled. This is not an Exception, so that no solver mistakes it for a numerical failure."""


@lru_cache(maxsize=512)  # about nine times as many plans as a page asks for
def solved(scenario: Scenario, scheme: Scheme) -> Plan:
    """The plan of a scenario with a scheme; it is cached."""
    return plan(scenario, scheme=scheme)


def _scheme(job: Event, scenario: Scenario) -> Scheme:
    return scheme_of(job["scheme"] or scenario.usual_scheme, job["objective"], job["selection"])


def quick(job: Event) -> Iterator[Event]:
    """Yield the plan: first a draft, then the certified one."""
    scenario = open_scenario(job["document"], job["overrides"])
    problem, scheme = Problem.of(scenario), _scheme(job, scenario)
    task = Task.of(problem, scheme)
    first = best_single_selection(task)
    if first is None and not feasible(task):
        first = infeasible(task, SolverSettings())  # says at once which budgets would be enough
    yield {"stage": "draft", "plan": None if first is None else drawn(first, problem)}
    yield {"stage": "plan", "plan": drawn(plan(scenario, scheme=scheme), problem)}


def slow(job: Event) -> Iterator[Event]:
    """Yield the plans of all six schemes, then the frontier: θ on a grid of budgets, from the middle outwards."""
    scenario = open_scenario(job["document"], job["overrides"])
    grid = BudgetGrid.around(open_scenario(job["document"], []).budget, FACTORS)
    yield {"stage": "grid", "energy_j": grid.energy_j, "delay_s": grid.delay_s}
    problem = Problem.of(scenario)
    for scheme in PAPER_SCHEMES.values():
        yield {"stage": "scheme", "plan": scheme_view(solved(scenario, scheme), problem)}
    chosen = _scheme(job, scenario)
    for point in frontier_points(scenario, grid, lambda changed: solved(changed, chosen)):
        row = point.to_dict()
        yield {"stage": "frontier", "energy_j": point.budget_energy_j, "delay_s": point.budget_delay_s,
               "theta": row["theta"], "accuracy": point.accuracy, "status": row["status"]}


def budgets(job: Event) -> Iterator[Event]:
    """Yield the smallest budgets for a target accuracy, then the points of the frontier."""
    search = BudgetSearch(open_scenario(job["document"], job["overrides"]), job["accuracy"], job["confidence"])
    yield {"stage": "budget", **target_view(least_budgets(search))}
    for point in target_frontier(search):
        yield {"stage": "budget_point", **point_view(point)}


KINDS: dict[str, Callable[[Event], Iterator[Event]]] = {"quick": quick, "slow": slow, "budget": budgets}


class SolverWorker:
    """Solves the jobs that arrive on stdin until it ends."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Event] = queue.Queue()
        self.cancelled: set[int] = set()
        self.current = -1
        self.solving = False

    def listen(self) -> None:
        """Read stdin in a separate thread, so that a cancellation is noticed while a job is being solved."""
        for line in sys.stdin:
            message = json.loads(line)
            if "cancel" not in message:
                self.jobs.put(message)
                continue
            self._cancel(message["cancel"])
        os._exit(0)

    def _cancel(self, job: int) -> None:
        self.cancelled.add(job)
        if self.current == job:
            _thread.interrupt_main()

    def interrupt(self, number: int, frame: Any) -> None:
        """Signal handler in the main thread, called between two steps of the solver: end the job if it was cancelled.

        Ctrl-C in the terminal is handled by the server."""
        if self.solving and self.current in self.cancelled:
            self.solving = False
            raise Cancelled

    def run(self) -> None:
        """Solve jobs until stdin ends."""
        signal.signal(signal.SIGINT, self.interrupt)
        threading.Thread(target=self.listen, daemon=True).start()
        self.say({"ready": True})
        while True:
            job = self.jobs.get()
            self.current = job["id"]
            limit = threading.Timer(LIMIT_S, self._cancel, (job["id"],))
            limit.daemon = True
            limit.start()
            self.work(job)
            limit.cancel()
            self.cancelled.discard(job["id"])

    def work(self, job: Event) -> None:
        """Write all events of one job, then its end."""
        ending: Event = {"end": True}
        try:
            events = KINDS[job["kind"]](job)
            while True:
                self.solving = True
                if job["id"] in self.cancelled:
                    raise Cancelled
                event = next(events, None)
                self.solving = False
                if event is None:
                    break
                self.say({"id": job["id"], **event})
        except Cancelled:
            ending["cancelled"] = f"no answer within {LIMIT_S:g} s"
        except FedgapError as error:
            ending["error"] = str(error)
        except Exception as error:  # the process must survive any error of a solver, for the next job
            ending["error"] = f"the solver failed ({type(error).__name__}: {error})"
        finally:
            self.solving = False
        self.say({"id": job["id"], **ending})

    @staticmethod
    def say(event: Event) -> None:
        """Write an event as one line on stdout."""
        sys.stdout.write(json.dumps(event, allow_nan=False) + "\n")
        sys.stdout.flush()


def main(nice: int) -> None:
    """Solve until stdin ends; ``nice`` above 0 lowers the priority."""
    if hasattr(os, "nice"):
        os.nice(nice)
    SolverWorker().run()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
