"""A node's data and what it tells about itself: a share of an experiment's data, or data of its own.

A node's file (YAML or JSON) has either ``experiment`` and ``client`` (which share of the experiment's data this node
plays; for trying things out), or ``name``, ``data`` (an ``.npz`` file with ``train_x`` and ``train_y``), ``classes``
and ``device`` (the figures of a scenario's client). Both may have ``epsilon`` (noise on the label histogram) and
``threads``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgap.config import Experiment
from fedgap.config.reading import parse, read_file
from fedgap.deploy.privacy import noised_counts
from fedgap.errors import InputError
from fedgap.running.prepare import divide

KEYS = {"experiment", "client", "name", "data", "classes", "device", "epsilon", "threads", "mean", "std"}


@dataclass(frozen=True)
class NodeFile:
    """A node's file, checked, with paths that hold from anywhere."""

    path: Path
    values: dict[str, Any]

    @staticmethod
    def load(path: str | Path) -> NodeFile:
        """Reads a node's file; what is wrong with it is said in one line."""
        values = parse(read_file(Path(path)), str(path), as_json=Path(path).suffix.lower() == ".json")
        if not isinstance(values, dict):
            raise InputError(f"{path}: must be a mapping of keys such as name, data and device")
        if unknown := sorted(set(values) - KEYS):
            raise InputError(f"{path}: {unknown[0]} is no key of a node; one of {', '.join(sorted(KEYS))}")
        share = "experiment" in values
        for key in ("experiment", "client") if share else ("name", "data", "classes", "device"):
            if key not in values:
                raise InputError(f"{path}: {key} is missing; a node has experiment and client, or name, data, classes "
                                 "and device")
        epsilon = values.get("epsilon")
        if epsilon is not None and not (isinstance(epsilon, int | float) and epsilon > 0):
            raise InputError(f"{path}: epsilon must be a positive number; smaller is more private")
        return NodeFile(Path(path).resolve(), values)

    @property
    def threads(self) -> int:
        """CPU threads of the node's computing."""
        return int(self.values.get("threads", 1))


class FileSource:
    """What a node's file describes."""

    def __init__(self, file: NodeFile) -> None:
        self.file = file

    @cached_property
    def _share(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Samples and exact profile."""
        values = self.file.values
        return self._of_experiment(values) if "experiment" in values else self._own(values)

    def _of_experiment(self, values: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        reference = str(values["experiment"])
        beside = self.file.path.parent / reference
        experiment = Experiment.load(beside if beside.is_file() else reference)
        client = int(values["client"])
        if not 0 <= client < experiment.size:
            raise InputError(f"client: the experiment has clients 0 to {experiment.size - 1}; there is no {client}")
        dataset, parts, scenario = divide(experiment)
        index = torch.from_numpy(parts.train[client])
        device = scenario.clients[client].model_dump(exclude_none=True, exclude={"label_counts", "target_counts", "phi",
                                                                                 "name"})
        return dataset.train_x[index], dataset.train_y[index], {
            "name": scenario.names[client], "client": client, "label_counts": parts.label_counts[client].tolist(),
            "target_counts": parts.target_counts[client].tolist(), "device": device}

    def _own(self, values: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        path = self.file.path.parent / str(values["data"])
        try:
            with np.load(path, allow_pickle=False) as arrays:
                inputs, labels = arrays["train_x"], arrays["train_y"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"data: {path} cannot be read as .npz with train_x and train_y ({error})") from None
        x = torch.from_numpy(np.asarray(inputs, dtype=np.float32))
        if x.dim() == 3:
            x = x[:, None]
        y = torch.from_numpy(np.asarray(labels, dtype=np.int64))
        classes = int(values["classes"])
        if len(x) != len(y) or len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= classes:
            raise InputError(f"data: {path} needs as many labels as samples, at least one, all in 0..{classes - 1}")
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean, std = (torch.tensor(values.get(key, default), dtype=torch.float32).reshape(shape)
                     for key, default in (("mean", [0.0]), ("std", [1.0])))
        counts = np.bincount(y.numpy(), minlength=classes)
        return (x - mean) / std, y, {"name": str(values["name"]), "label_counts": counts.tolist(),
                                     "device": dict(values["device"])}

    def profile(self) -> dict[str, Any]:
        """Name, device figures and histograms; where ``epsilon`` says so the training histogram alone, noised."""
        profile = dict(self._share[2])
        epsilon = self.file.values.get("epsilon")
        if epsilon is not None:
            profile["label_counts"] = noised_counts(profile["label_counts"], float(epsilon), self._secret()).tolist()
            profile["epsilon"] = float(epsilon)
            profile.pop("target_counts", None)
        return profile

    def samples(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels; they never leave the node."""
        return self._share[:2]

    def _secret(self) -> bytes:
        """What the noise is drawn from, made once and kept beside the node's file, so that it never changes."""
        path = self.file.path.with_name(self.file.path.stem + ".secret")
        if not path.is_file():
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        return path.read_bytes()
