"""The CIFAR residual networks of He et al. (2016), depth 6n + 2, with parameter-free (option A) shortcuts."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))), where x' is x, subsampled and zero-padded if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, (outside - inside) // 2
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)

    def forward(self, x: Tensor) -> Tensor:
        """Map an activation (Z, inside, h, w) to (Z, outside, h/stride, w/stride)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.padding:
            x = functional.pad(x, (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(y + x)


class ResNet(nn.Module):
    """ResNet-(6n+2) for small images: 3×3 convolutions without bias, stages of 16, 32 and 64 channels, n blocks each.

    On 3 channels and 10 classes: ResNet-44 has M = 658,586 (Table I's 21.07 Mbit), ResNet-110 M = 1,727,962 (55.3
    Mbit).
    """

    def __init__(self, depth: int, input_shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"the depth of a CIFAR residual network must be 6n + 2 (8, 14, 20, ...); got {depth}")
        n = (depth - 2) // 6
        self.conv = nn.Conv2d(input_shape[0], 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [(16, 16, 1)] * n + [(16, 32, 2)] + [(32, 32, 1)] * (n - 1) + [(32, 64, 2)] + [(64, 64, 1)] * (n - 1)
        self.blocks = nn.ModuleList(Block(*width) for width in widths)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (Z, classes) of images (Z, channels, height, width)."""
        x = functional.relu(self.bn(self.conv(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


resnet20, resnet32, resnet44, resnet56, resnet110 = (partial(ResNet, depth) for depth in (20, 32, 44, 56, 110))
