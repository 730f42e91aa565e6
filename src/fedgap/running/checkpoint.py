"""Checkpoints from which a run can be resumed: safetensors and JSON, never pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedgap.errors import InputError
from fedgap.files import write_bytes, write_json


class Checkpoints:
    """A run's ``checkpoint/`` folder: ``round-N.safetensors``, and ``latest.json`` with the name and SHA-256 of that
    file.

    A new checkpoint becomes valid when ``latest.json`` is replaced; until then the previous one is valid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, rounds: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Save the state after ``rounds`` rounds, and remove the previous checkpoint."""
        self.folder.mkdir(exist_ok=True)
        data = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        name = f"round-{rounds:06d}.safetensors"
        write_bytes(self.folder / name, data)
        write_json(self.folder / "latest.json", {"format": 1, "rounds": rounds, "file": name,
                                                 "sha256": hashlib.sha256(data).hexdigest(), "state": state})
        for other in self.folder.iterdir():
            if other.name not in (name, "latest.json"):
                other.unlink()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state of the latest checkpoint, or None if there is none yet."""
        path = self.folder / "latest.json"
        if not path.is_file():
            return None
        try:
            latest = json.loads(path.read_bytes())
            data = (self.folder / latest["file"]).read_bytes()
            whole = hashlib.sha256(data).hexdigest() == latest["sha256"]
            tensors, state = (load_tensors(data), latest["state"]) if whole else ({}, {})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); train again into another folder") from None
        if not whole:
            raise InputError(f"{self.folder / latest['file']}: was changed after it was written; train again into "
                             "another folder")
        return tensors, state
