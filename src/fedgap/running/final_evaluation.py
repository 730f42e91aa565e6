"""The final accuracy on the test set for each class and each client, for the summary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgap.learning.accuracy import Accuracy, class_accuracies, client_accuracies
from fedgap.running.job import Job


def accuracy_figures(job: Job, predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> dict[str, Any]:
    """The keys ``test_samples``, ``test_accuracy_interval``, ``class_accuracy`` and ``client_accuracy`` of
    ``summary.json``.

    :param predicted: the classes that the finished model predicts for the test samples, (n,);
    :param labels: the true classes, (n,)."""
    names = job.extra["summary"]["preprocessing"]["class_names"]
    by_class = class_accuracies(predicted, labels, job.extra["classes"])
    total = Accuracy(int((predicted == labels).sum()), len(labels))
    return {
        "test_samples": len(labels), "test_accuracy_interval": list(total.interval),
        "class_accuracy": [{"class": name, "samples": accuracy.samples if accuracy else 0,
                            "accuracy": accuracy.share if accuracy else None}
                           for name, accuracy in zip(names, by_class, strict=True)],
        "client_accuracy": [{"client": name, "accuracy": accuracy} for name, accuracy
                            in zip(job.names, client_accuracies(by_class, job.label_counts), strict=True)]}
