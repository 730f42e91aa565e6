"""Mini-batches: what they depend on, the samples and labels that they draw, and that every device draws the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.learning.data import (
    batch_indices,
    batch_keys,
    count_labels,
    cumulative_probabilities,
    draw_batches,
    draw_weighted_batches,
)
from fedgap.theory.drawn_labels import balanced_probabilities

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"))])


def hashed(key: int, number: int, step: int, counter: int) -> int:
    """The hash in whole numbers modulo 2^64, one at a time."""
    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    start = mixed((key + 0x9E3779B97F4A7C15 * (number + 1) + 0xA0761D6478BD642F * step) % 2**64)
    return mixed((start + 0xD1B54A32D192ED03 * (counter + 1)) % 2**64)


def floyd(key: int, number: int, step: int, size: int, batch: int) -> list[int]:
    """One mini-batch by Floyd's algorithm as it stands in the books."""
    chosen: list[int] = []
    for i in range(batch):
        last = size - batch + i if size >= batch else size - 1
        drawn = int((hashed(key, number, step, i) >> 11) * 2.0**-53 * (last + 1))
        chosen.append(last if size >= batch and drawn in chosen else drawn)
    return chosen


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 80), batch=st.integers(1, 40), start=st.integers(0, 10**6))
def test_batches_depend_on_seed_client_and_round_only(seed, size, batch, start):
    keys = batch_keys(seed, 3)
    sizes = np.array([size, size + 5, 200])
    block = batch_indices(keys, np.arange(start, start + 3), sizes, batch)
    assert block.shape == (3, 3, batch)
    assert ((block >= 0) & (block < sizes[None, :, None])).all()
    alone = batch_indices(batch_keys(seed, [1]), np.array([start + 2]), sizes[1:2], batch)
    assert np.array_equal(alone[0, 0], block[2, 1])
    for n in range(3):
        if sizes[n] >= batch:  # without replacement
            assert len(set(block[0, n].tolist())) == batch


def test_batches_are_uniform_and_differ_between_clients_and_rounds():
    draws = batch_indices(batch_keys(0, 4), np.arange(5000), np.full(4, 20), 8)
    counts = np.stack([np.bincount(draws[:, n].ravel(), minlength=20) for n in range(4)])
    expected = 5000 * 8 / 20
    chi2 = ((counts - expected) ** 2 / (expected * (1 - 8 / 20))).sum(1)  # 19 degrees of freedom each
    assert (chi2 < 50).all()
    assert (chi2 > 3).all()
    single = batch_indices(batch_keys(0, 2), np.arange(5000), np.full(2, 20), 1)[..., 0]
    together = np.bincount(single[:, 0] * 20 + single[:, 1], minlength=400)  # two clients' draws: independent
    assert ((together - 5000 / 400) ** 2 / (5000 / 400)).sum() < 520
    in_time = np.bincount(single[:-1, 0] * 20 + single[1:, 0], minlength=400)
    assert ((in_time - 4999 / 400) ** 2 / (4999 / 400)).sum() < 520


@DEVICES
def test_batches_drawn_on_the_device_are_the_same(device):
    """Clients of many and few samples, of several batch sizes, in rounds of any number, in one call."""
    sizes, batches, rounds = np.array([1500, 40, 9, 8, 7, 1]), np.array([32, 32, 8, 8, 8, 3]), np.array([0, 7, 2**40])
    keys = batch_keys(5, len(sizes))
    pairs = [np.tile(keys.view(np.int64), 3), np.repeat(rounds, len(sizes)), np.tile(sizes, 3), np.tile(batches, 3)]
    drawn = draw_batches(*(torch.from_numpy(each).to(device) for each in pairs), 32).cpu().numpy().reshape(3, -1, 32)
    for n, batch in enumerate(batches):
        expected = batch_indices(keys[n:n + 1], rounds, sizes[n:n + 1], int(batch))[:, 0]
        assert np.array_equal(drawn[:, n, :batch], expected)
    assert (drawn < sizes[:, None]).all()
    assert (drawn >= 0).all()


def test_the_first_batches_of_seed_5_never_change():
    """Runs of version 0.1 drew these; they must be resumable."""
    assert batch_indices(batch_keys(5, 2), np.array([0, 3]), np.array([1500, 7]), 8).tolist() == [
        [[91, 772, 1460, 607, 800, 860, 961, 270], [2, 0, 1, 4, 4, 6, 1, 1]],
        [[397, 24, 52, 1147, 1133, 979, 1361, 495], [4, 1, 1, 6, 0, 0, 5, 4]]]


@DEVICES
@pytest.mark.parametrize("steps", [None, 1, 3])
def test_batches_follow_floyds_algorithm_in_every_local_step(device, steps):
    keys, sizes, rounds = batch_keys(8, 3), np.array([300, 8, 5]), np.array([0, 12])
    pairs = np.tile(keys.view(np.int64), 2), np.repeat(rounds, 3), np.tile(sizes, 2), np.full(6, 8)
    drawn = draw_batches(*(torch.from_numpy(values).to(device) for values in pairs), 8, steps).cpu().numpy()
    expected = [[floyd(int(keys[n]), int(s), step, int(sizes[n]), 8) for step in range(steps or 1)]
                for s in rounds for n in range(3)]
    assert drawn.tolist() == (expected if steps else [rows[0] for rows in expected])
    many = batch_indices(keys, rounds, sizes, 8, steps)
    assert many.shape == ((2, 3, 8) if steps is None else (2, 3, steps, 8))
    assert np.array_equal(many.reshape(drawn.shape), drawn)


def test_balanced_labels_by_hand():
    counts = [[100, 5, 4, 0], [3, 0, 4, 1], [7, 7, 7, 7]]
    third = 1 / 3
    assert balanced_probabilities(counts).tolist() == [[0.5, 0.5, 0, 0], [third, 0, third, third], [0.25] * 4]


def test_cumulative_probabilities_by_hand():
    # two samples of label 0 share 0.5, one of label 1 has 0.25, label 2 has no sample: 0.75 in all
    assert cumulative_probabilities([0, 1, 0], [0.5, 0.25, 0.25]).tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert cumulative_probabilities([2, 0, 2, 1], [0, 1, 0]).tolist() == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="at least one of the client's labels"):
        cumulative_probabilities([0, 0], [0, 1])


@pytest.fixture
def clients():
    """Three clients: their labels, label probabilities, and cumulative probabilities one after another."""
    labels = [np.repeat([0, 1, 2, 3], [60, 30, 5, 2]), np.array([3, 0, 3, 1, 3]), np.array([2])]
    labels[0] = np.random.default_rng(0).permutation(labels[0])
    wanted = [np.array([0.25, 0.25, 0.5, 0.0]), np.array([0.125, 0.375, 0.0, 0.5]), np.array([0.0, 0.0, 1.0, 0.0])]
    tables = [cumulative_probabilities(own, q) for own, q in zip(labels, wanted, strict=True)]
    return labels, wanted, tables


def draw(clients, rounds, width, device="cpu", steps=None):
    labels, _, tables = clients
    sizes = np.array([len(own) for own in labels])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    keys, count = batch_keys(3, len(labels)).view(np.int64), len(rounds)
    rows = np.tile(keys, count), np.repeat(rounds, len(labels)), np.tile(sizes, count), np.tile(starts, count)
    table = torch.from_numpy(np.concatenate(tables)).to(device)
    drawn = draw_weighted_batches(*(torch.from_numpy(values).to(device) for values in rows), table, width, steps)
    return drawn.cpu().numpy().reshape(count, len(labels), *drawn.shape[1:])


@DEVICES
def test_weighted_batches_invert_the_cumulative_probabilities(clients, device):
    drawn = draw(clients, np.array([0, 9, 2**40]), 16, device, steps=2)
    assert drawn.shape == (3, 3, 2, 16)
    keys = batch_keys(3, 3)
    for r, number in enumerate((0, 9, 2**40)):
        for n, table in enumerate(clients[2]):
            for step in range(2):
                uniform = [(hashed(int(keys[n]), number, step, i) >> 11) * 2.0**-53 for i in range(16)]
                assert drawn[r, n, step].tolist() == np.searchsorted(table, uniform, side="right").tolist()
    assert np.array_equal(draw(clients, np.array([9]), 5, device)[0], drawn[1, :, 0, :5])


def test_weighted_batches_have_the_wanted_labels_and_draw_all_samples_of_a_label_alike(clients):
    labels, wanted, _ = clients
    drawn = draw(clients, np.arange(4000), 8, steps=2)
    for n, (own, q) in enumerate(zip(labels, wanted, strict=True)):
        total = 4000 * 16
        counts = np.bincount(drawn[:, n].ravel(), minlength=len(own))
        expected = total * q[own] / np.bincount(own, minlength=4)[own]
        assert not counts[expected == 0].any()
        drawable = expected > 0
        chi2 = ((counts - expected)[drawable] ** 2 / expected[drawable]).sum()
        freedom = drawable.sum() - 1
        assert chi2 <= freedom + 6 * np.sqrt(2 * freedom)
        share = count_labels(torch.from_numpy(own[drawn[:, n].reshape(-1)]), 4).numpy() / total
        assert np.abs(share - q).max() < 6 * np.sqrt(0.25 / total)


def test_count_labels_by_hand():
    counts = count_labels(torch.tensor([[0, 2, 2], [1, 1, 1]]), 4)
    assert counts.tolist() == [[1, 0, 2, 0], [0, 3, 0, 0]]
