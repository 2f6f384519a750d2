"""``images``: FashionMNIST with digits and letters as OOD, a small CNN; ``images-cifar``: a BatchNorm ResNet.

``images``: two strided convolutions (16 and 32 channels) and a hidden layer of 32, 55,338 parameters; 18,000
images. ``images-cifar``: three residual blocks (16, 32, 64 channels) after a strided first convolution,
77,912 parameters; 8,000 images of eight classes, ships and trucks held out (near), letters of notMNIST (far).
No augmentation, in training or evaluation. Both are sized for one core: a single network takes about half a
minute, or a minute and a half.

The low-rank networks keep first layer and head; the ResNet's normalisations are point estimates, as anywhere
in the library. The data lie in a folder of the user's (``--data``). ``benchmarks/images.py`` makes the
tables.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..likelihoods import Categorical
from ..methods import MAP, DeepEnsemble, MCDropout, MeanField
from ..methods.training import Schedule
from ..nn import factorize
from ..priors import Normal
from .data import images
from .data.splits import Splits
from .recipe import Plan, Recipe

__all__ = ["CIFAR", "FASHION", "Block"]


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


def load_from(read: Callable[[str | Path], Splits], folder: Path | None, _seed: int) -> Splits:
    """The splits from the folder that ``--data`` names."""
    if folder is None:
        raise ValueError(
            "the images recipes read their data from a folder of yours: add --data FOLDER; to get them: "
            f"{images.HOW_TO_GET}"
        )
    return read(folder)


def load_fashion(folder: Path | None, seed: int) -> Splits:
    """FashionMNIST with MNIST and notMNIST."""
    return load_from(images.fashion, folder, seed)


def load_cifar(folder: Path | None, seed: int) -> Splits:
    """CIFAR-10 with two classes held out, and notMNIST."""
    return load_from(images.cifar, folder, seed)


def plans(
    full: Callable[[], nn.Module],
    dropped: Callable[[], nn.Module],
    low: Callable[[], nn.Module],
    point: MAP,
    dropout: MCDropout,
    field: MeanField,
) -> Mapping[str, Plan]:
    """The methods for one kind of network; one more method is one more line."""
    narrow = Normal(1.0)
    return {
        "MAP": Plan(network=full, prior=narrow, method=point),
        "DeepEnsemble": Plan(network=full, prior=narrow, method=DeepEnsemble(members=5, member=point)),
        "MCDropout": Plan(network=dropped, prior=narrow, method=dropout),
        "MeanField, full rank": Plan(network=full, prior=narrow, method=field),
        "MeanField, low rank": Plan(network=low, prior=narrow, method=field),
    }


FASHION = Recipe(
    name="images",
    title="FashionMNIST: does a small CNN know clothes from digits and letters?",
    what="FashionMNIST (18,000 images), a small CNN; MNIST and notMNIST are OOD",
    load=load_fashion,
    likelihood=Categorical(),
    plans=plans(
        cnn,
        cnn_dropped,
        cnn_low,
        point=MAP(epochs=12),
        dropout=MCDropout(epochs=20),
        field=MeanField(epochs=25, learning_rate=2e-3, temperature=0.1),
    ),
    draws=32,
    needs_data=True,
)

CIFAR = Recipe(
    name="images-cifar",
    title="CIFAR-10: does a small ResNet know what was held out?",
    what="eight classes of CIFAR-10 (8,000 images), a small ResNet; ships and trucks (near), letters (far)",
    load=load_cifar,
    likelihood=Categorical(),
    plans=plans(
        resnet,
        resnet_dropped,
        resnet_low,
        point=MAP(epochs=20, learning_rate=3e-3, schedule=Schedule.COSINE),
        dropout=MCDropout(epochs=20, learning_rate=3e-3, schedule=Schedule.COSINE),
        field=MeanField(epochs=20, learning_rate=3e-3, schedule=Schedule.COSINE, temperature=0.1),
    ),
    draws=16,
    needs_data=True,
)
