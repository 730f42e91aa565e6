"""A plan: for each round which clients take part, how much each prunes, and at which power and clock frequency."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgap.arrays import Bools, Floats
from fedgap.errors import InputError
from fedgap.files import write_json
from fedgap.planning.plan_forecast import PlanForecast
from fedgap.report.bound_terms import TERMS, theta_parts
from fedgap.report.number_format import number as text_of
from fedgap.report.number_format import rounds as rounds_text
from fedgap.report.printable import Printable
from fedgap.upload_size import UPLOAD_BITS

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["optimal", "feasible", "infeasible"]
BoundScope = Literal["all", "single"]
"""Plans for which a lower bound holds: all plans, or only those with a single selection in all rounds."""
MOST_KINDS = 6
"""How many segments ``print(plan)`` lists; the others are only counted."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A number of equal rounds. Arrays have shape (N,); ratio, power and frequency of unselected clients are 0.

    >>> segment = fedgap.plan(fedgap.Scenario.load("paper-mnist"), scheme="all_clients").segments[-1]
    >>> int(segment.selected.sum()), segment.power_w.shape
    (10, (10,))
    """

    rounds: int
    selected: Bools
    pruning_ratio: Floats
    power_w: Floats
    frequency_hz: Floats
    local_steps: int = field(default=1, kw_only=True)
    """τ: mini-batch steps that each selected client takes in a round."""
    upload_bits: int | None = field(default=None, kw_only=True)
    """Bits per uploaded value; None for the scenario's."""

    def to_dict(self) -> dict[str, Any]:
        """Return the segment as it is in a plan's JSON, with one entry per client."""
        names = ("selected", "pruning_ratio", "power_w", "frequency_hz")
        clients = zip(*(getattr(self, name).tolist() for name in names), strict=True)
        bits = {} if self.upload_bits is None else {"upload_bits": self.upload_bits}
        return {"rounds": self.rounds, "local_steps": self.local_steps, **bits,
                "clients": [dict(zip(names, client, strict=True)) for client in clients]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "segment") -> "Segment":
        """Read a segment of a plan's JSON.

        :param where: name of the segment in error messages.
        """

        def column(key: str) -> Floats:
            values = []
            for n, client in enumerate(clients):
                value = client.get(key) if isinstance(client, Mapping) else None
                if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                    raise InputError(f"{where}.clients[{n}].{key}: must be a finite number; got {value!r}")
                values.append(float(value))
            return np.array(values, dtype=np.float64)

        if not isinstance(data, Mapping):
            raise InputError(f"{where}: must be an object with rounds and clients; got {data!r}")

        def whole(key: str, value: Any) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{where}.{key}: must be a whole number of at least 1; got {value!r}")
            return value

        rounds, steps = whole("rounds", data.get("rounds")), whole("local_steps", data.get("local_steps", 1))
        bits = data.get("upload_bits")
        if bits is not None and bits not in UPLOAD_BITS:
            raise InputError(f"{where}.upload_bits: must be one of {', '.join(map(str, UPLOAD_BITS))}; got {bits!r}")
        clients = data.get("clients", [])
        if not isinstance(clients, list) or not clients:
            raise InputError(f"{where}.clients: must be a list with one entry per client; got {clients!r:.60}")
        for n, client in enumerate(clients):
            if not isinstance(client, Mapping) or not isinstance(client.get("selected"), bool):
                raise InputError(f"{where}.clients[{n}].selected: must be true or false")
        selected = np.array([client["selected"] for client in clients], dtype=np.bool_)
        if not selected.any():
            raise InputError(f"{where}.clients: must have at least one selected client")
        ratio, power, frequency = column("pruning_ratio"), column("power_w"), column("frequency_hz")
        for key, values, good, what in (
            ("pruning_ratio", ratio, (ratio >= 0.0) & (ratio < 1.0), "at least 0 and below 1"),
            ("power_w", power, power > 0.0, "above 0 W"),
            ("frequency_hz", frequency, frequency > 0.0, "above 0 Hz"),
        ):
            for n in map(int, np.flatnonzero(selected & ~good)):
                raise InputError(f"{where}.clients[{n}].{key}: must be {what} for a selected client; got {values[n]:g}")
        return cls(rounds, selected, ratio, power, frequency, local_steps=steps, upload_bits=bits)


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Printable):
    """The result of planning, which is immutable. ``to_dict`` returns the JSON object of ``fedgap plan --json``.

    >>> plan = fedgap.plan(fedgap.Scenario.load("paper-mnist"))
    >>> plan.feasible, plan.rounds, len(plan.segments), plan.to_dict()["scheme"]
    (True, 400, 2, 'proposed')

    ``print(plan)`` shows a summary; ``fedgap.analysis.plan_report(scenario, plan)`` shows who does what.
    """

    status: Status
    scheme: str
    solver: str
    rounds: int
    """R: the number of rounds of all segments (0 if infeasible)."""
    segments: tuple[Segment, ...]
    theta: float
    """The bound θ for the requested rounds; infinite if they do not fit the budgets."""
    terms: Mapping[str, float]
    """The terms of θ by name: alpha, clients, generalization and pruning."""
    energy_j: float
    """Joules of all rounds together."""
    delay_s: float
    """Seconds of all rounds together."""
    reason: str = ""
    """Why the plan is infeasible, or a remark; empty for most plans."""
    lower_bound: float | None = None
    """Proven lower bound on θ of all plans with these rounds; None if nothing is proven."""
    bound_scope: BoundScope = "all"
    solve_s: float = 0.0
    """Seconds that planning took."""
    least_budget: Mapping[str, float | None] | None = None
    """For an infeasible plan, the least ``energy_j`` and ``delay_s`` that suffice if the other budget stays; None for a
    budget if no amount suffices."""
    prices: Mapping[str, float | None] | None = None
    """How θ changes with the budgets: ``energy`` is ∂θ/∂E₀ in 1/J, ``delay`` is ∂θ/∂T₀ in 1/s."""
    scenario_hash: str = ""
    """The hash of the scenario that the plan was made for."""
    objective: str = "theta"
    """The name of the objective that the plan minimises. The field ``theta`` has the value of θ in any case."""
    forecast: PlanForecast | None = None
    """The forecast accuracy of the trained model; None if nothing was forecast."""
    trace: tuple[float, ...] = field(default=())
    """The objective after each iteration of the solver ``alternating``; empty for ``exact``."""

    @property
    def feasible(self) -> bool:
        """Whether the plan has rounds that can be trained."""
        return bool(self.segments)

    @property
    def gap(self) -> float | None:
        """How far the plan may be from the best, (θ − lower_bound)/(θ − α); None if no bound is known.

        For a plan that minimises the forecast error it is (error − least possible error)/error.
        """
        if self.objective == "forecast":
            return None if self.forecast is None else self.forecast.gap
        if self.lower_bound is None or not np.isfinite(self.theta):
            return None
        cost = self.theta - self.terms.get("alpha", 0.0)
        return (self.theta - self.lower_bound) / cost if cost > 0.0 else 0.0

    @property
    def local_steps(self) -> int:
        """τ, the local steps per round; 1 for a plan without rounds."""
        return max((segment.local_steps for segment in self.segments), default=1)

    @property
    def upload_bits(self) -> int | None:
        """Bits per uploaded value, the same in all rounds; None for the scenario's."""
        return self.segments[0].upload_bits if self.segments else None

    @property
    def headline(self) -> str:
        """One line with scheme, status, number of rounds and θ."""
        solved = f" ({self.solver}, {self.solve_s:.2f} s)" if self.solve_s else ""  # a plan written by hand has none
        return f"{self.scheme}: {self.status}, {rounds_text(self.rounds)}, θ = {text_of(self.theta, 6)}{solved}"

    @property
    def minimised(self) -> str:
        """What the plan minimises, in words: ``θ``, or another objective."""
        return self.objective.replace("theta", "θ").replace("_", " ")

    @property
    def certificate(self) -> str:
        """One sentence that says what is proven about better plans."""
        if self.objective == "forecast" and self.forecast is not None and self.forecast.least_error is not None:
            steps = f"{self.local_steps} local step{'' if self.local_steps == 1 else 's'}"
            same = "" if self.bound_scope == "all" else " with the same clients in all rounds"
            return self.forecast.certificate(f"{rounds_text(self.rounds)} with {steps} and {self.upload_bits}-bit "
                                             f"uploads by {self.scheme}{same}")
        if self.objective not in ("theta", "forecast") and self.status == "optimal":
            return (f"Certified: no plan of {rounds_text(self.rounds)} by {self.scheme} has a lower value of what it "
                    f"minimises ({self.minimised}). Others may have a lower θ.")
        if self.gap is None or self.lower_bound is None:
            return "There is no certificate: better plans may exist."
        scope = "" if self.scheme == "proposed" else f" by {self.scheme}"  # others may decide what it fixes
        scope += "" if self.bound_scope == "all" else " with one selection in all rounds"
        gap = "0.0001" if self.gap < 1e-6 else f"{100.0 * self.gap:.2g}"
        return (f"Certified: no plan of {rounds_text(self.rounds)}{scope} has θ below {text_of(self.lower_bound, 6)}, "
                f"so this one is within {gap} % of the best cost θ − α.")

    @property
    def forecast_lines(self) -> list[str]:
        """A list with the forecast in a sentence and, if needed, a warning; it is empty without a forecast."""
        if self.forecast is None:
            return []
        return [self.forecast.sentence, *([self.forecast.warning] if self.forecast.outside else [])]

    def parts(self) -> "list[RenderableType]":
        """Return what ``print`` shows: headline, segments, terms of θ, certificate and, if there is one, the reason."""
        parts: list[RenderableType] = [*self.forecast_lines, self.headline]
        if self.reason:
            parts.append(self.reason)
        if self.feasible:
            sizes = [int(segment.selected.sum()) for segment in self.segments]
            kinds = [f"{rounds_text(segment.rounds)} of {size} client{'' if size == 1 else 's'}"
                     for segment, size in zip(self.segments, sizes, strict=True)]
            more = f" and {len(kinds) - MOST_KINDS} more kinds" if len(kinds) > MOST_KINDS else ""
            spent = f"{self.energy_j:.6g} J and {self.delay_s:.6g} s in all"
            parts.append(f"{', '.join(kinds[:MOST_KINDS])}{more}; {spent}.")
        if self.feasible and TERMS.keys() <= self.terms.keys():
            parts += theta_parts(self.terms, self.theta, self.local_steps)
        return [*parts, self.certificate] if self.feasible else parts

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``fedgap plan --json``. Infinite numbers become null, because JSON has none."""

        def number(value: float | None) -> float | None:
            return float(value) if value is not None and np.isfinite(value) else None

        def numbers(values: Mapping[str, float | None] | None) -> dict[str, float | None] | None:
            return None if values is None else {key: number(value) for key, value in values.items()}

        forecast = {} if self.forecast is None else {"forecast": self.forecast.to_dict()}
        return {
            "format": 1, "status": self.status, "reason": self.reason,
            "theta": number(self.theta), "lower_bound": number(self.lower_bound), "gap": number(self.gap),
            "bound_scope": self.bound_scope, "terms": numbers(self.terms),
            "energy_j": number(self.energy_j), "delay_s": number(self.delay_s), "solve_s": self.solve_s,
            "scheme": self.scheme, "solver": self.solver, "objective": self.objective, "rounds": self.rounds,
            "least_budget": numbers(self.least_budget), "prices": numbers(self.prices),
            "scenario_hash": self.scenario_hash, "trace": [number(value) for value in self.trace], **forecast,
            "segments": [segment.to_dict() for segment in self.segments],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Read the JSON object of ``fedgap plan --json``; a one-line error names what is missing or wrong."""
        if not isinstance(data, Mapping) or not isinstance(data.get("segments"), list):
            raise InputError("plan: must be a JSON object with a list of segments")
        segments = tuple(Segment.from_dict(s, f"segments[{i}]") for i, s in enumerate(data["segments"]))
        if len({segment.selected.size for segment in segments}) > 1:
            raise InputError("segments: must all have the same number of clients")
        total = sum(segment.rounds for segment in segments)
        if data.get("rounds", total) != total:
            raise InputError(f"rounds: must be the sum of the segments' rounds, {total}; got {data['rounds']!r}")
        infinite = float("inf")

        def checked(key: str, value: Any, missing: float) -> float:
            if value is None:
                return missing
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise InputError(f"{key}: must be a finite number or null; got {value!r}")
            return float(value)

        def number(key: str, missing: float) -> float:
            return checked(key, data.get(key), missing)

        def numbers(key: str) -> dict[str, float | None] | None:
            values = data.get(key)
            if values is None:
                return None
            if not isinstance(values, Mapping):
                raise InputError(f"{key}: must be an object of numbers; got {values!r}")
            return {k: None if v is None else checked(f"{key}.{k}", v, infinite) for k, v in values.items()}

        status = data.get("status", "feasible" if segments else "infeasible")
        if status not in ("optimal", "feasible", "infeasible"):
            raise InputError(f"status: must be optimal, feasible or infeasible; got {status!r}")
        bound, trace = data.get("lower_bound"), data.get("trace") or []
        if not isinstance(trace, list):
            raise InputError(f"trace: must be a list of numbers; got {trace!r}")
        texts = {"scheme": "proposed", "solver": "", "reason": "", "scenario_hash": "", "objective": "theta"}
        return cls(
            **{key: str(data.get(key, missing)) for key, missing in texts.items()},
            status=status, rounds=total, segments=segments, theta=number("theta", infinite),
            terms={k: infinite if v is None else v for k, v in (numbers("terms") or {}).items()},
            energy_j=number("energy_j", 0.0), delay_s=number("delay_s", 0.0), solve_s=number("solve_s", 0.0),
            lower_bound=None if bound is None else number("lower_bound", infinite),
            bound_scope="single" if data.get("bound_scope") == "single" else "all",
            least_budget=numbers("least_budget"), prices=numbers("prices"),
            trace=tuple(checked(f"trace[{i}]", value, infinite) for i, value in enumerate(trace)),
            forecast=None if data.get("forecast") is None else PlanForecast.from_dict(data["forecast"]),
        )

    def save(self, path: str | Path) -> None:
        """Write the JSON object to a file."""
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan from a JSON file."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise InputError(f"{path}: is not JSON ({error})") from None
        except RecursionError:
            raise InputError(f"{path}: has too many nested lists and objects to be a plan") from None
        return cls.from_dict(data)
