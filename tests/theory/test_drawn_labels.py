"""The labels that clients draw: how few samples a client has for them, by hand and sample by sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgap.theory.drawn_labels import DrawnLabels, balanced_probabilities

TARGET = np.array([10, 10])


def test_an_average_client_has_a_scarcity_of_one_and_one_with_half_the_samples_two():
    # A mean client has 20 samples. Two draws of a client with D samples are the same one with probability 1/D.
    alike = DrawnLabels.of([[10, 10], [10, 10]], TARGET)
    np.testing.assert_allclose(alike.scarcity, [1.0, 1.0], rtol=1e-12)
    half = DrawnLabels.of([[7, 3], [10, 20]], TARGET)
    np.testing.assert_allclose(half.scarcity, [2.0, 2.0 / 3.0], rtol=1e-12)
    matched = DrawnLabels.of([[7, 3], [10, 20]], TARGET, batches="target")
    np.testing.assert_allclose(matched.scarcity, half.scarcity, rtol=1e-12)


def test_balanced_batches_repeat_the_samples_of_a_rare_label():
    """(5, 15) samples, each label drawn half of the time: 20·(0.5²/5 + 0.5²/15) = 4/3. Of (4, 16) only the second label
    is drawn, because the first has fewer than five samples: 20·1²/16 = 5/4. (10, 10) has 20·(0.5²/10)·2 = 1."""
    labels = DrawnLabels.of([[5, 15], [4, 16], [10, 10]], TARGET, batches="balanced")
    np.testing.assert_allclose(labels.scarcity, [4 / 3, 5 / 4, 1.0], rtol=1e-12)


@given(arrays(np.int64, (4, 3), elements=st.integers(0, 30)), st.sampled_from(["as_is", "balanced"]))
def test_scarcity_is_the_probability_that_two_draws_are_the_same_sample(counts, batches):
    counts[:, 0] += 1  # everybody has a sample
    labels = DrawnLabels.of(counts, np.ones(3), batches=batches)
    shares = balanced_probabilities(counts) if batches == "balanced" else counts / counts.sum(axis=-1, keepdims=True)
    for client in range(4):
        samples = [shares[client, label] / number for label, number in enumerate(counts[client]) for _ in range(number)]
        assert sum(samples) == pytest.approx(1.0)
        same = sum(p * p for p in samples)
        assert labels.scarcity[client] == pytest.approx(counts.sum() / 4 * same, rel=1e-9)


def test_the_mean_of_clients_with_unequal_weights_counts_samples():
    """30 samples of label 0 and 10 of label 1: together three quarters and one quarter; equal weights give halves."""
    counts, both = np.array([[30, 0], [0, 10]]), np.array([True, True])
    for by_samples, expected in ((True, [0.75, 0.25]), (False, [0.5, 0.5])):
        labels = DrawnLabels.of(counts, TARGET, by_samples=by_samples)
        np.testing.assert_allclose(labels.mean(both.astype(float) @ labels.table, 2), expected, rtol=1e-12)
        np.testing.assert_allclose(labels.drawn(both)[0], expected, rtol=1e-12)
