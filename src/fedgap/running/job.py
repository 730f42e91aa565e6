"""A job: everything that a run needs, as plain numbers and arrays, so that it can be saved and executed elsewhere.

A machine with torch, numpy, safetensors, PyYAML and rich can execute a saved job; it needs no solver and no
configuration."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedgap.arrays import Bools, Floats
from fedgap.errors import InputError
from fedgap.files import write_bytes, write_json
from fedgap.learning.learner import Learner
from fedgap.learning.rate_schedules import WARM_UP_SHARE
from fedgap.running.faults import Faults, Work

BY_CLIENT = ("selected", "ratio", "compute_s", "upload_s", "compute_j", "upload_j", "upload_s_bit", "upload_j_bit",
             "cost_share")
"""A job's arrays with a row for each segment and a column for each client."""
RATE_STEPS = 1000
"""Number of steps of the rate schedule if the number of rounds is not known in advance; the schedule then follows the
spent share of the budgets."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run. It has N clients, R rounds and G segments (groups of equal rounds); arrays per segment are (G, N), 0 for
    clients that are not selected."""

    # --- what is learned, on what -----------------------------------------------------------------------------------
    seed: int
    data: dict[str, Any]
    """Arguments of :func:`fedgap.learning.data.load`."""
    data_sha256: str
    """The data set's digest; a run on other data is refused."""
    model: dict[str, Any]
    """Arguments of :func:`fedgap.learning.models.build` except the data's shape and the seed."""
    learning_rate: float
    """η, the clients' learning rate."""
    evaluate_every: int
    evaluate_pruned: bool
    """Whether the pruned model ω̃ is evaluated and saved, rather than ω."""
    importance: dict[str, Any]
    """``rule``, ``current_weights`` and ``remember`` of :class:`fedgap.learning.importance.Importance`."""
    # --- what may be spent ------------------------------------------------------------------------------------------
    energy_budget_j: float
    delay_budget_s: float
    accounting: str
    """Bits charged for an upload: (1 − λ)H as in the paper (``as_printed``), or those of the codec (``measured``)."""
    faults: Faults
    # --- where it runs ----------------------------------------------------------------------------------------------
    engine: str
    """``stacked``, or ``loop``: a plain loop over clients."""
    device: str
    precision: str
    threads: int
    """CPU threads; floating-point sums depend on it, so a resumed run keeps it."""
    checkpoint_every: int
    # --- the plan, unrolled -----------------------------------------------------------------------------------------
    names: tuple[str, ...]
    scheme: str
    schedule: NDArray[np.int64]
    """The segment of each round, (R,)."""
    selected: Bools
    ratio: Floats
    """The pruning ratio λ, (G, N)."""
    compute_s: Floats
    upload_s: Floats
    """Seconds to upload (1 − λ)H bits, (G, N)."""
    compute_j: Floats
    upload_j: Floats
    upload_s_bit: Floats
    """Seconds per bit at the planned power, (G, N)."""
    upload_j_bit: Floats
    download_s: Floats
    """Seconds to download H bits, (N,)."""
    download_s_bit: Floats
    gradient_bits: Floats
    """H_n, the bits of an unpruned gradient, (N,)."""
    server_power_w: float
    statement: Floats
    """The generalization statement Φ of each segment's selected clients, (G,)."""
    # --- who has what -----------------------------------------------------------------------------------------------
    batch_size: NDArray[np.int64]
    """The batch size Z_n, (N,)."""
    indices: NDArray[np.int64]
    """Indices of all clients' training samples, client after client."""
    sizes: NDArray[np.int64]
    """The number of training samples D̂_n, (N,)."""
    label_counts: NDArray[np.int64]
    target_counts: NDArray[np.int64]
    aggregator: str = "mean"
    """Name of the function that combines the clients' updates into one direction."""
    # --- how it is learned; the defaults are FedSGD, as in runs of fedgap 0.1, which do not have these keys ---------
    local_steps: int = 1
    """τ, the number of local steps per round."""
    client: dict[str, Any] = field(default_factory=dict)
    """``momentum``, ``proximal`` and ``clip_norm`` of :class:`fedgap.learning.contract.LocalTraining`."""
    server: dict[str, Any] = field(default_factory=dict)
    """``optimiser``, ``rate`` and ``momentum`` of the server."""
    rate_schedule: str = "constant"
    """One of :data:`fedgap.learning.rate_schedules.SCHEDULES`."""
    warm_up: float = WARM_UP_SHARE
    """The share of the rounds in which the rate rises, if the schedule has a warm-up."""
    batches: str = "as_is"
    """How mini-batches are drawn: ``as_is``, ``balanced`` or ``target``."""
    label_probabilities: Floats = field(default_factory=lambda: np.empty((0, 0, 0)))
    """The probability with which a client draws each label, (G, N, C); empty if ``batches`` is ``as_is``."""
    weighting: str = "equal"
    """Weights of the clients in the mean: ``equal``, or by their numbers of ``samples`` D̂_n."""
    upload_bits: int = 32
    """Bits per uploaded value: 32, 8 or 4."""
    structure: str = "weights"
    """What is pruned: single ``weights``, or whole ``channels``."""
    weights: str | None = None
    """The safetensors file with the initial weights; None to draw them at random."""
    stop: dict[str, Any] = field(default_factory=dict)
    """When to end early: ``accuracy`` and ``patience`` on the validation split, and ``diverged`` (bool)."""
    idle_power_w: Floats = field(default_factory=lambda: np.zeros(0))
    """Idle power of each client, drawn during the whole of a round for which it is selected, W, (N,); empty if none."""
    latency_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Seconds that each client needs in every round in addition to download, computing and upload, (N,); empty if
    none."""
    cost_share: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The share of H that is sent at each λ, (G, N), if the scenario has a cost curve; empty if it is 1 − λ."""
    policy: dict[str, Any] = field(default_factory=dict)
    """The policy: its ``name``, and the ``scheme``, ``objective``, ``selection`` and ``interleave`` of its plan. Empty
    if the plan's rounds are trained as they are."""
    targets: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """The target's label distribution in each segment, (G, C), by which accuracy is weighted; empty if it is the test
    set's."""
    trackers: list[str] = field(default_factory=list)
    """Names of the trackers that follow the run."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further values, such as those that the summary repeats (the plan's θ and others)."""

    @property
    def rounds(self) -> int:
        """R, the number of rounds."""
        return len(self.schedule)

    @property
    def kept_share(self) -> Floats:
        """The share of the full model's cost that is left at each λ, (G, N): by the scenario's cost curve, or 1 − λ."""
        return self.cost_share if self.cost_share.size else 1.0 - self.ratio

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each client's samples begin in ``indices``, (N,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    @property
    def learner(self) -> Learner:
        """The learning settings of this run."""
        names = {"momentum": "client_momentum", "proximal": "proximal", "clip_norm": "clip_norm"}
        of_server = {"optimiser": "optimiser", "rate": "server_rate", "momentum": "server_momentum"}
        rounds = RATE_STEPS if self.policy else self.rounds
        return Learner(self.learning_rate, rounds, self.local_steps, schedule=self.rate_schedule,
                       warm_up=self.warm_up, **{names[key]: value for key, value in self.client.items()},
                       **{of_server[key]: value for key, value in self.server.items()})

    def work(self, segment: int, upload_bits: Floats | None = None, download_bits: float | None = None) -> Work:
        """The planned work of a round of ``segment``. ``upload_bits`` (N,) and ``download_bits``, if given, replace the
        planned numbers of bits."""
        chosen = self.selected[segment]

        def of_chosen(values: Floats) -> Floats:
            return np.where(chosen, values, 0.0)

        upload_s, upload_j = self.upload_s[segment], self.upload_j[segment]
        if upload_bits is not None:
            upload_s, upload_j = (upload_bits * per_bit[segment] for per_bit in (self.upload_s_bit, self.upload_j_bit))
        download_s = self.download_s if download_bits is None else download_bits * self.download_s_bit
        if self.latency_s.size:
            download_s = download_s + self.latency_s
        return Work(chosen, self.compute_s[segment], of_chosen(upload_s), of_chosen(download_s),
                    self.compute_j[segment], of_chosen(upload_j),
                    of_chosen(self.idle_power_w) if self.idle_power_w.size else 0.0)

    def broadcast_j(self, download_bits: float | None = None) -> float:
        """The broadcast's energy in J: p̂·max over ALL clients of the seconds of the download."""
        seconds = self.download_s if download_bits is None else download_bits * self.download_s_bit
        return self.server_power_w * float(seconds.max())

    @property
    def kind(self) -> str:
        """A text that is equal for jobs that can be trained together.

        Such jobs have the same model, data set, device, number format, accounting, aggregator, pruned structure and
        learner. Rates and their schedules, label probabilities, initial weights and stopping rules may differ."""
        learner = replace(self.learner, rate=0.0, server_rate=0.0, rounds=1, schedule="constant", warm_up=0.0)
        return json.dumps([self.model, self.data_sha256, self.engine, self.device, self.precision, self.threads,
                           self.accounting, self.checkpoint_every, self.aggregator, self.structure, asdict(learner),
                           self.batches == "as_is", self.weighting, self.upload_bits], sort_keys=True)

    def save(self, folder: Path) -> None:
        """Write ``arrays.npz``, then ``job.json``; a folder without the latter has no complete job."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
        np.savez_compressed(buffer, **arrays)
        write_bytes(folder / "arrays.npz", buffer.getvalue())
        plain = {k: v for k, v in values.items() if not isinstance(v, np.ndarray)}
        plain["faults"] = self.faults.to_dict()
        write_json(folder / "job.json", {"format": 1, **plain})

    @staticmethod
    def load(folder: Path) -> Job:
        """Read a saved job."""
        try:
            plain = json.loads((folder / "job.json").read_bytes())
            with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
                values = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise InputError(f"{folder}: does not hold a run ({error}); start one with `fedgap train`") from None
        if not isinstance(plain, dict) or plain.pop("format", None) != 1:
            raise InputError(f"{folder / 'job.json'}: was written by another version of fedgap; use that version, or "
                             "train again into another folder")
        try:
            plain["faults"], plain["names"] = Faults(**plain["faults"]), tuple(plain["names"])
            return Job(**plain, **values)
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder / 'job.json'}: is incomplete ({error}); start a new run with `fedgap "
                             "train`") from None

