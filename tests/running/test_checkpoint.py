"""A checkpoint counts from the rename of latest.json on."""

import pytest
import torch

from fedgap.errors import InputError
from fedgap.running import checkpoint
from fedgap.running.checkpoint import Checkpoints


def test_a_checkpoint_comes_back_bit_for_bit_and_the_old_one_goes(tmp_path):
    kept = Checkpoints(tmp_path / "checkpoint")
    assert kept.load() is None
    weights = torch.randn(1000)
    state = {"round": 3, "joules": 0.1 + 0.2, "tiny": 5e-324}
    kept.save(2, {"weights": torch.zeros(5)}, {"round": 2})
    kept.save(3, {"weights": weights, "ranks": torch.arange(5, dtype=torch.int32)}, state)
    tensors, got = kept.load()
    assert torch.equal(tensors["weights"], weights)
    assert tensors["ranks"].dtype is torch.int32
    assert got == state
    assert sorted(p.name for p in kept.folder.iterdir()) == ["latest.json", "round-000003.safetensors"]


def test_a_crash_between_the_two_files_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path / "checkpoint")
    kept.save(1, {"weights": torch.ones(3)}, {"round": 1})
    monkeypatch.setattr(checkpoint, "write_json", lambda *a: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        kept.save(2, {"weights": torch.zeros(3)}, {"round": 2})
    tensors, state = kept.load()
    assert state == {"round": 1}
    assert torch.equal(tensors["weights"], torch.ones(3))


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "not json"])
def test_a_damaged_checkpoint_is_named_in_one_line(tmp_path, damage):
    kept = Checkpoints(tmp_path / "checkpoint")
    kept.save(1, {"weights": torch.ones(3)}, {"round": 1})
    path = kept.folder / "round-000001.safetensors"
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "gone":
        path.unlink()
    else:
        (kept.folder / "latest.json").write_text("{")
    with pytest.raises(InputError, match="train again into another") as caught:
        kept.load()
    assert "\n" not in str(caught.value)
