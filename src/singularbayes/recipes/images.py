"""``images``: FashionMNIST with digits and letters as OOD, a small CNN; ``images-cifar``: a BatchNorm ResNet.

``images``: two strided convolutions (16 and 32 channels) and a hidden layer of 32, 55,338 parameters; 18,000
images. ``images-cifar``: three residual blocks (16, 32, 64 channels) after a strided first convolution,
77,912 parameters; 8,000 images of eight classes, ships and trucks held out (near), letters of notMNIST (far).
No augmentation, in training or evaluation. Both are sized for one core: a single network takes about half a
minute, or a minute and a half.

SWAG's step size had the least calibrated validation NLL of .003, .01 and .03, mean field's temperature that
of .001, .01, .03, .3 and 1 (CIFAR: .03, .1, .3, 1), on one seed. The low-rank networks keep first layer and
head; the ResNet's normalisations are point estimates, as anywhere in the library. The data lie in a folder of
the user's (``--data``); ``benchmarks/images.py`` makes the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..curvature import FullCurvature, LastLayer, MarginalLikelihood
from ..likelihoods import Categorical
from ..methods import (
    MAP,
    PCA,
    SNGP,
    SWAG,
    DeepEnsemble,
    LaplaceApproximation,
    MCDropout,
    MeanField,
    Pretrained,
    Subspace,
    SubspaceVI,
)
from ..methods.collection import Collection
from ..methods.training import Schedule
from ..priors import Normal
from .data import images
from .data.splits import Splits
from .image_networks import cnn, cnn_dropped, cnn_low, resnet, resnet_dropped, resnet_low
from .recipe import Plan, Recipe

__all__ = ["CIFAR", "FASHION"]


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
    walk: Collection,
) -> Mapping[str, Plan]:
    """The methods for one kind of network; one more method is one more line."""

    def line(network: Callable[[], nn.Module], method: Any) -> Plan:
        return Plan(network=network, prior=Normal(1.0), method=method)

    def after(member: Any) -> Pretrained:
        return Pretrained(point=point, member=member)

    swag = SWAG(**vars(walk), rank=20)
    subspace = Subspace(trajectory=walk, basis=PCA(10), inference=SubspaceVI(epochs=5), prior_std=5.0)
    evidence = MarginalLikelihood()
    last = LaplaceApproximation(structure=FullCurvature(), subset=LastLayer(), prior_precision=evidence)
    gp = SNGP(epochs=point.epochs, learning_rate=point.learning_rate, schedule=point.schedule)
    return {
        "MAP": line(full, point),
        "DeepEnsemble": line(full, DeepEnsemble(members=5, member=point)),
        "MCDropout": line(dropped, dropout),
        "MeanField, full rank": line(full, field),
        "MeanField, low rank": line(low, field),
        "SWAG": line(full, after(swag)),
        "SWAG, low rank": line(low, after(swag)),
        "Subspace": line(full, after(subspace)),
        "Laplace, last layer": line(full, after(last)),
        "SNGP": line(full, gp),
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
        field=MeanField(epochs=25, learning_rate=2e-3, temperature=0.3),
        walk=Collection(epochs=20, start_epoch=0, collect_rate=0.03),
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
        field=MeanField(epochs=20, learning_rate=3e-3, schedule=Schedule.COSINE, temperature=0.3),
        walk=Collection(epochs=20, start_epoch=0, collect_rate=0.03),
    ),
    draws=16,
    needs_data=True,
)
