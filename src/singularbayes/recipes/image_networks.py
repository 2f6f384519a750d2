"""The networks of the image recipes: a small CNN for FashionMNIST, a BatchNorm ResNet for CIFAR-10.

Both are sized for one core: a single network takes about half a minute, or a minute and a half. The low-rank
ones keep first layer and head.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ..nn import factorize

__all__ = ["Block", "cnn", "cnn_dropped", "cnn_low", "resnet", "resnet_dropped", "resnet_low"]


def cnn(dropout: float = 0.0) -> nn.Sequential:
    """Two strided convolutions and one hidden layer, with dropout before both linear layers if asked."""
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(1, 16, 3, stride=2, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
        relu2=nn.ReLU(),
        flat=nn.Flatten(),
        drop1=nn.Dropout(dropout),
        hidden=nn.Linear(32 * 7 * 7, 32),
        relu3=nn.ReLU(),
        drop2=nn.Dropout(dropout),
        head=nn.Linear(32, 10),
    )
    return nn.Sequential(
        layers if dropout else OrderedDict((k, v) for k, v in layers.items() if k[:4] != "drop")
    )


def cnn_dropped() -> nn.Module:
    """The same with dropout .25."""
    return cnn(0.25)


def cnn_low(rank: int = 8) -> nn.Module:
    """The second convolution and the hidden layer at one rank."""
    return factorize(cnn(), rank={"conv2": rank, "hidden": rank})


class Block(nn.Module):
    """``relu(conv-norm-relu-conv-norm(x) + x)``, with a projection where the shape changes.

    Args:
        channels_in: of x.
        channels: of the result.
        stride: of the first convolution and of the projection.
        dropout: share of channels dropped from the result; no module where 0.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        same = channels_in == channels and stride == 1
        self.project = None if same else nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
        self.norm3 = None if same else nn.BatchNorm2d(channels)
        self.drop = nn.Dropout2d(dropout) if dropout else None

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(B, channels, height / stride, width / stride)``."""
        h = torch.relu(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(h))
        if self.project is not None and self.norm3 is not None:
            x = self.norm3(self.project(x))
        h = torch.relu(h + x)
        return h if self.drop is None else self.drop(h)


def resnet(dropout: float = 0.0) -> nn.Sequential:
    """A ResNet-8 of width 16 whose first convolution has stride 2, eight classes."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            norm=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            block1=Block(16, 16, 1, dropout),
            block2=Block(16, 32, 2, dropout),
            block3=Block(32, 64, 2, dropout),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(64, 8),
        )
    )


def resnet_dropped() -> nn.Module:
    """The same with a tenth of the channels dropped after every block."""
    return resnet(0.1)


def resnet_low(rank: int = 16) -> nn.Module:
    """Every 3 by 3 convolution of a block at one rank (half of it in the first block)."""
    return factorize(resnet(), rank={"block1.conv*": rank // 2, "block[23].conv*": rank})
