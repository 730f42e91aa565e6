"""A node's data and profile: a share of an experiment's data, or its own data.

A node's file (YAML or JSON) has either ``experiment`` and ``client`` (which share of the experiment's data this node
plays; for trying things out), or ``name``, ``data`` (an ``.npz`` file with ``train_x`` and ``train_y``), ``classes``
and ``device`` (the figures of a scenario's client). Both may have ``epsilon`` (noise on the label histogram) and
``threads`` and ``allow`` (code that the server may choose); :mod:`fedgap.config.node_file` has all keys.
"""

from __future__ import annotations

import secrets
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgap.config import Client, Experiment
from fedgap.config.node_file import NOT_A_DEVICE, OwnNode, ShareNode, read_node
from fedgap.config.yaml_files import parse, read_file
from fedgap.deploy.privacy import noised_counts
from fedgap.errors import InputError
from fedgap.registry import allow
from fedgap.running.prepare import divide

FILES = ("node.yaml", "node.yml", "node.json")
"""What a node's file may be called in its folder."""


@dataclass(frozen=True)
class NodeSettings:
    """A node's file, checked; paths in it are relative to its folder."""

    path: Path
    node: ShareNode | OwnNode

    @staticmethod
    def load(path: str | Path) -> NodeSettings:
        """Read a node's file; errors are one line."""
        written = parse(read_file(Path(path)), str(path), as_json=Path(path).suffix.lower() == ".json")
        return NodeSettings(Path(path).resolve(), read_node(written, str(path)))

    @staticmethod
    def of(folder: Path) -> NodeSettings:
        """The file in a node's folder."""
        there = (folder / name for name in FILES if (folder / name).is_file())
        return NodeSettings.load(next(there, folder / FILES[0]))


class LocalNodeData:
    """The samples and the profile of the node that its file describes."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        allow(*(name for name in settings.node.allow if ":" in name))

    @cached_property
    def _share(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Samples and exact profile."""
        node = self.settings.node
        return self._of_experiment(node) if isinstance(node, ShareNode) else self._own(node)

    @cached_property
    def _experiment(self) -> Experiment | None:
        """The experiment that the node plays a client of."""
        node = self.settings.node
        if not isinstance(node, ShareNode):
            return None
        beside = self.settings.path.parent / node.experiment
        return Experiment.load(beside if beside.is_file() else node.experiment)

    def _of_experiment(self, node: ShareNode) -> tuple[Tensor, Tensor, dict[str, Any]]:
        experiment, client = self._experiment, node.client
        assert experiment is not None
        if client >= experiment.size:
            raise InputError(f"client: the experiment has clients 0 to {experiment.size - 1}; there is no {client}")
        dataset, parts, scenario = divide(experiment)
        index = torch.from_numpy(parts.train[client])
        return dataset.train_x[index], dataset.train_y[index], {
            "name": scenario.names[client], "client": client, "label_counts": parts.label_counts[client].tolist(),
            "target_counts": parts.target_counts[client].tolist(), "device": _figures(scenario.clients[client])}

    def _own(self, node: OwnNode) -> tuple[Tensor, Tensor, dict[str, Any]]:
        path = self.settings.path.parent / node.data
        try:
            with np.load(path, allow_pickle=False) as arrays:
                inputs, labels = arrays["train_x"].astype(np.float32), np.asarray(arrays["train_y"])
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(f"data: {path} cannot be read as .npz with train_x and train_y ({error})") from None
        if inputs.ndim == 3:
            inputs = inputs[:, None]
        if inputs.ndim < 2 or inputs.size == 0 or not np.isfinite(inputs).all():
            raise InputError(f"data: {path} needs samples of finite numbers, (samples, channels, height, width) or "
                             f"(samples, height, width); train_x has shape {inputs.shape}")
        if labels.shape != inputs.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or not (
                0 <= labels.min() <= labels.max() < node.classes):
            raise InputError(f"data: {path} needs a label for each sample, whole numbers from 0 to {node.classes - 1}")
        x, y = torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))
        shape = (1, -1) + (1,) * (x.dim() - 2)
        for key in ("mean", "std"):
            if len(getattr(node, key)) not in (1, x.shape[1]):
                raise InputError(f"{key}: has {len(getattr(node, key))} numbers; one, or {x.shape[1]} for the channels")
        mean, std = (torch.tensor(values, dtype=torch.float32).reshape(shape) for values in (node.mean, node.std))
        counts = np.bincount(y.numpy(), minlength=node.classes)
        return (x - mean) / std, y, {"name": node.name, "label_counts": counts.tolist(),
                                     "device": _figures(node.device)}

    @property
    def name(self) -> str:
        """What the node is called."""
        return str(self._share[2]["name"])

    def profile(self) -> dict[str, Any]:
        """Name, device figures and histograms; where ``epsilon`` says so the training histogram alone, noised."""
        profile = dict(self._share[2])
        epsilon = self.settings.node.epsilon
        if epsilon is not None:
            profile["label_counts"] = noised_counts(profile["label_counts"], epsilon, self._secret()).tolist()
            profile["epsilon"] = epsilon
            profile.pop("target_counts", None)
        return profile

    def samples(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels; they never leave the node."""
        return self._share[:2]

    def allowed(self) -> set[str]:
        """The names that the node's file allows, and those in the experiment of which the node is a part."""
        names = set(self.settings.node.allow)
        if self._experiment is not None:
            names |= {self._experiment.model.name, self._experiment.pruning.importance}
        return names

    def _secret(self) -> bytes:
        """The secret of the noise, which is made once and kept beside the node's file, so that it never changes."""
        path = self.settings.path.with_name(self.settings.path.stem + ".secret")
        if not path.is_file():
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        return path.read_bytes()


def _figures(client: Client) -> dict[str, Any]:
    """A client's radio and processor, without its name and its data."""
    return client.model_dump(exclude_none=True, exclude=set(NOT_A_DEVICE))
