"""Accuracies against hand-worked numbers and scipy's interval."""

import numpy as np
import pytest
from scipy.stats import binomtest

from fedgap.learning.accuracy import Accuracy, class_accuracies, client_accuracies


@pytest.mark.parametrize(("right", "samples"), [(8, 10), (0, 10), (10, 10), (1, 1), (927, 1000), (9_850, 10_000)])
def test_the_interval_is_wilsons(right, samples):
    oracle = binomtest(right, samples).proportion_ci(0.95, method="wilson")
    assert Accuracy(right, samples).interval == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_an_accuracy_reads_well():
    assert str(Accuracy(8, 10)) == "80.00% (95 % interval 49.02% to 94.33%, 10 samples)"


def test_classes_and_clients_by_hand():
    labels = np.array([0, 0, 0, 0, 1, 1])
    predicted = np.array([0, 0, 0, 1, 1, 0])
    by_class = class_accuracies(predicted, labels, 3)
    assert by_class == (Accuracy(3, 4), Accuracy(1, 2), None)
    counts = np.array([[10, 0, 0], [10, 30, 0], [1, 0, 99], [0, 0, 5]])
    # 0.75; (0.75 + 3·0.5)/4; the untested class left out; nothing tested.
    assert client_accuracies(by_class, counts) == [0.75, 0.5625, 0.75, None]


def test_clients_that_hold_the_test_sets_labels_have_its_accuracy():
    draw = np.random.default_rng(0)
    labels, predicted = draw.integers(5, size=300), draw.integers(5, size=300)
    by_class = class_accuracies(predicted, labels, 5)
    same = client_accuracies(by_class, np.bincount(labels, minlength=5)[None])
    assert same == [pytest.approx((labels == predicted).mean())]
