"""A node's data and profile: a share of an experiment's data, or its own data.

A node's file (YAML or JSON) has either ``experiment`` and ``client`` (the node plays this client of the experiment and
gets its share of the data; for trials), or ``name``, ``data`` (an ``.npz`` file with ``train_x`` and ``train_y``),
``classes`` and ``device`` (the figures of a scenario's client). Both may have ``epsilon`` (noise on the label
histogram), ``threads``, and ``allow`` (code that the server may choose); :mod:`fedgap.config.node_file` has all keys.
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
"""The possible names of a node's file in its folder."""


@dataclass(frozen=True)
class NodeSettings:
    """The checked content of a node's file; paths in it are relative to its folder."""

    path: Path
    node: ShareNode | OwnNode

    @staticmethod
    def load(path: str | Path) -> NodeSettings:
        """Read and check a node's file."""
        written = parse(read_file(Path(path)), str(path), as_json=Path(path).suffix.lower() == ".json")
        return NodeSettings(Path(path).resolve(), read_node(written, str(path)))

    @staticmethod
    def of(folder: Path) -> NodeSettings:
        """Read the node's file in this folder."""
        there = (folder / name for name in FILES if (folder / name).is_file())
        return NodeSettings.load(next(there, folder / FILES[0]))


class LocalNodeData:
    """The samples and the profile of the node that its file describes."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        allow(*(name for name in settings.node.allow if ":" in name))

    @cached_property
    def _share(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The node's inputs and labels, and its profile with the exact histogram."""
        node = self.settings.node
        return self._of_experiment(node) if isinstance(node, ShareNode) else self._own(node)

    @cached_property
    def _experiment(self) -> Experiment | None:
        """The experiment of which the node plays a client; None for a node with its own data."""
        node = self.settings.node
        if not isinstance(node, ShareNode):
            return None
        beside = self.settings.path.parent / node.experiment
        return Experiment.load(beside if beside.is_file() else node.experiment)

    def _of_experiment(self, node: ShareNode) -> tuple[Tensor, Tensor, dict[str, Any]]:
        experiment, client = self._experiment, node.client
        assert experiment is not None
        if client >= experiment.size:
            raise InputError(f"client: must be between 0 and {experiment.size - 1}, a client of the experiment; got "
                             f"{client}")
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
            raise InputError(f"data: train_x in {path} must have finite numbers and the shape (samples, channels, "
                             f"height, width) or (samples, height, width); its shape is {inputs.shape}")
        if labels.shape != inputs.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or not (
                0 <= labels.min() <= labels.max() < node.classes):
            raise InputError(f"data: train_y in {path} must have one label for each sample, a whole number from 0 to "
                             f"{node.classes - 1}")
        x, y = torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))
        shape = (1, -1) + (1,) * (x.dim() - 2)
        for key in ("mean", "std"):
            if len(getattr(node, key)) not in (1, x.shape[1]):
                raise InputError(f"{key}: must have one number, or {x.shape[1]} for the channels; it has "
                                 f"{len(getattr(node, key))}")
        mean, std = (torch.tensor(values, dtype=torch.float32).reshape(shape) for values in (node.mean, node.std))
        counts = np.bincount(y.numpy(), minlength=node.classes)
        return (x - mean) / std, y, {"name": node.name, "label_counts": counts.tolist(),
                                     "device": _figures(node.device)}

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self._share[2]["name"])

    def profile(self) -> dict[str, Any]:
        """The node's name, device figures and histograms. With ``epsilon`` it has only the training histogram, with
        noise."""
        profile = dict(self._share[2])
        epsilon = self.settings.node.epsilon
        if epsilon is not None:
            profile["label_counts"] = noised_counts(profile["label_counts"], epsilon, self._secret()).tolist()
            profile["epsilon"] = epsilon
            profile.pop("target_counts", None)
        return profile

    def samples(self) -> tuple[Tensor, Tensor]:
        """The node's inputs and labels, which never leave the node."""
        return self._share[:2]

    def allowed(self) -> set[str]:
        """The names that the node's file allows, and those in the experiment of which the node plays a client."""
        names = set(self.settings.node.allow)
        if self._experiment is not None:
            names |= {self._experiment.model.name, self._experiment.pruning.importance}
        return names

    def _secret(self) -> bytes:
        """The secret from which the noise is computed. It is created once and kept next to the node's file."""
        path = self.settings.path.with_name(self.settings.path.stem + ".secret")
        if not path.is_file():
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        return path.read_bytes()


def _figures(client: Client) -> dict[str, Any]:
    """The figures of a client's radio and processor, without its name and its data."""
    return client.model_dump(exclude_none=True, exclude=set(NOT_A_DEVICE))
