"""LeNet-5 on unpadded images: the paper's MNIST model."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


class LeNet5(nn.Module):
    """Two 5×5 convolutions (6 and 16 channels) with ReLU and 2×2 max-pooling, then 120 – 84 – classes.

    On (1, 28, 28) and 10 classes M = 156 + 2,416 + 30,840 + 10,164 + 850 = 44,426, i.e. Table I's H = 1.42 Mbit.
    """

    def __init__(self, input_shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * _after_convolutions(height) * _after_convolutions(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (Z, classes) of images (Z, channels, height, width)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))  # type: ignore[no-any-return]


def _after_convolutions(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2
