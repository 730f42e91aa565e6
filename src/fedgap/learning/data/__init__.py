"""Data sets: four that are known by name, and those of a user (arrays, an ``.npz`` file or torch data sets)."""

from fedgap.learning.data.batches import batch_indices, batch_keys, draw_batches, draw_weighted_batches
from fedgap.learning.data.dataset import Dataset, Preprocessing, from_arrays, from_torch
from fedgap.learning.data.input_format import InputFormat
from fedgap.learning.data.label_sampling import count_labels, cumulative_probabilities
from fedgap.learning.data.load import load

__all__ = ["Dataset", "InputFormat", "Preprocessing", "batch_indices", "batch_keys",
           "count_labels", "cumulative_probabilities", "draw_batches", "draw_weighted_batches", "from_arrays",
           "from_torch", "load"]
