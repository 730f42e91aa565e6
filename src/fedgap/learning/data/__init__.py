"""Data sets: four that are known by name, and anyone's own arrays, ``.npz`` file or torch data set."""

from fedgap.learning.data.batches import batch_indices, batch_keys, draw_batches
from fedgap.learning.data.dataset import Dataset, Preprocessing, from_arrays, from_torch
from fedgap.learning.data.input_format import InputFormat
from fedgap.learning.data.load import NAMES, load

__all__ = ["NAMES", "Dataset", "InputFormat", "Preprocessing", "batch_indices", "batch_keys", "draw_batches",
           "from_arrays", "from_torch", "load"]
