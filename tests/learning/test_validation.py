"""The validation split: stratified, disjoint, decided by the seed, and absent unless asked for."""

import hashlib

import numpy as np
import pytest
import torch

from fedgap.errors import InputError
from fedgap.learning.data import Dataset, from_arrays, load
from fedgap.learning.data.validation import validation_indices
from fedgap.learning.partition import partition


def numbered(counts=(50, 30, 20)):
    """Samples whose single feature is their number, shuffled classes, not standardised."""
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return from_arrays(x, labels, x[:10], labels[:10], classes=len(counts), standardise=False)


def test_each_class_gives_its_share():
    data = numbered()
    split = data.with_validation(0.1, seed=0)
    assert np.bincount(split.validation_y.numpy()).tolist() == [5, 3, 2]
    assert np.bincount(split.train_y.numpy()).tolist() == [45, 27, 18]
    assert torch.equal(split.test_x, data.test_x)


def test_the_split_divides_the_training_samples_and_keeps_their_order():
    data = numbered()
    split = data.with_validation(17, seed=4)
    kept, aside = split.train_x[:, 0].long(), split.validation_x[:, 0].long()
    assert len(aside) == 17
    assert sorted([*kept.tolist(), *aside.tolist()]) == list(range(100))
    assert kept.tolist() == sorted(kept.tolist())
    assert torch.equal(split.train_y, data.train_y[kept])
    assert torch.equal(split.validation_y, data.train_y[aside])


def test_fractions_go_to_the_largest_remainders_by_hand():
    # Exact shares of 7 from (50, 30, 20): 3.5, 2.1, 1.4; the whole parts are 3, 2, 1 and class 0 gets the rest.
    chosen = validation_indices(numbered().train_y.numpy(), 7, seed=0)
    assert np.bincount(numbered().train_y.numpy()[chosen]).tolist() == [4, 2, 1]


def test_every_class_keeps_a_training_sample():
    labels = numbered((1, 2, 97)).train_y.numpy()
    chosen = validation_indices(labels, 97, seed=0)
    assert np.bincount(labels[chosen], minlength=3).tolist() == [0, 1, 96]


def test_the_seed_decides():
    data = numbered()
    first, again, other = (data.with_validation(0.2, seed).validation_x for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_none_is_the_same_data_set():
    data = numbered()
    assert data.with_validation(0, seed=0) is data
    total = hashlib.sha256()  # as fedgap 0.1 computed it, so that its runs can be resumed
    for tensor in (data.train_x, data.train_y, data.test_x, data.test_y):
        total.update(str(tuple(tensor.shape)).encode())
        total.update(tensor.numpy().tobytes())
    assert data.digest() == total.hexdigest()


def test_a_split_is_kept_in_files_and_seen_in_the_digest(tmp_path):
    split = numbered().with_validation(0.2, seed=0)
    split.save(tmp_path / "data.npz")
    back = Dataset.open(tmp_path / "data.npz")
    assert torch.equal(back.validation_x, split.validation_x)
    assert torch.equal(back.validation_y, split.validation_y)
    assert back.digest() == split.digest() != numbered().digest()
    numbered().save(tmp_path / "none.npz")
    assert Dataset.open(tmp_path / "none.npz").validation_x is None


def test_loading_splits_after_thinning_and_clients_get_the_rest():
    data = load("embedded", train_samples=200, test_samples=20, validation=0.1, validation_seed=7)
    assert (len(data.train_y), len(data.validation_y)) == (180, 20)
    assert np.bincount(data.validation_y.numpy()).tolist() == [2] * 10
    parts = partition(data.train_y.numpy(), data.test_y.numpy(), 5, 10, seed=7, kind="iid")
    assert sorted(np.concatenate(parts.train).tolist()) == list(range(180))


@pytest.mark.parametrize(("wanted", "says"), [
    (1.5, "must be a share between 0 and 1, or a whole number"), (-0.1, "must be a share"),
    (float("nan"), "must be a share"), (98, "1 to 97 can be held out"), (0.001, "not 0"), (1000, "not 1000")])
def test_what_cannot_be_set_aside_is_said(wanted, says):
    with pytest.raises(InputError, match=rf"data\.validation: .*{says}"):
        numbered().with_validation(wanted, seed=0)


def test_a_second_split_is_refused():
    with pytest.raises(InputError, match="has a validation split already"):
        numbered().with_validation(0.1, seed=0).with_validation(0.1, seed=0)
