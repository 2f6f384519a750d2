"""The spectrum of every weight matrix of a trained network, and what each rank would keep and save.

A layer has the matrices that ``factorize`` would give factors to: one for a linear layer or an embedding, the
packed gates of an LSTM, the four projections of attention, ``(out, in * kernel)`` for a convolution. A
low-rank layer is read as the product of its factors.

References:
    Eckart and Young 1936. arXiv 2602.00387, section 3 (it reports that embeddings decay fastest).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from jaxtyping import Float
from torch import Tensor, nn

from .. import spectrum
from ..nn import merge
from ..nn.conversion import PART_OF_ATTENTION, Network, dense
from ..nn.merge import Mergeable
from ..nn.rank_choice import Energy

__all__ = [
    "Spectra",
    "Spectrum",
    "Truncation",
    "effective_rank",
    "singular_values",
    "singular_values_of_tensors",
    "stable_rank",
]

_SHARES = (0.9, 0.99)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values of one weight matrix.

    Args:
        name: of the layer in the network; its first one.
        matrix: torch's name of the matrix in the layer.
        kind: the stock layer's type; ``tensor`` where only tensors were given.
        shape: ``(m, n)``.
        values: singular values, largest first, ``(min(m, n),)`` in float64; 0 below the rounding.
    """

    name: str
    matrix: str
    kind: str
    shape: tuple[int, int]
    values: Float[Tensor, " k"]

    @property
    def title(self) -> str:
        """Layer and matrix in one name; ``weight`` alone is not said."""
        return (
            (self.name or "(root)") if self.matrix == "weight" else f"{self.name}.{self.matrix}".lstrip(".")
        )

    @property
    def rank(self) -> int:
        """How many singular values are above the rounding."""
        return spectrum.numerical_rank(self.values)

    @property
    def stable_rank(self) -> float:
        """``sum s_i^2 / s_1^2``."""
        return spectrum.stable_rank(self.values)

    @property
    def effective_rank(self) -> float:
        """``(sum s_i)^2 / sum s_i^2``."""
        return spectrum.effective_rank(self.values)

    @property
    def decay(self) -> float:
        """Minus the slope of ``log s_i`` on ``log i``."""
        return spectrum.decay(self.values)

    @property
    def break_even(self) -> float:
        """``m n / (m + n)``: factors are smaller than the matrix below this rank, not below ``min(m, n)``."""
        m, n = self.shape
        return m * n / (m + n)

    def rank_for(self, share: float) -> int:
        """The smallest rank that keeps this share of the energy (1 for a matrix of zeros).

        Raises:
            ValueError: a share outside (0, 1].
        """
        return Energy(share).rank_at(spectrum.energy(self.values))

    def at(self, rank: int) -> Truncation:
        """What the best approximation of this rank keeps, loses and saves.

        Raises:
            ValueError: a rank outside ``1..min(m, n)``.
        """
        limit = len(self.values)
        if not 1 <= rank <= limit:
            raise ValueError(f"{self.title}: rank {rank} is outside 1..{limit}, the smaller side of its "
                             f"{self.shape[0]} x {self.shape[1]} weight")  # fmt: skip
        frobenius, spectral = spectrum.left_out(self.values, rank)
        m, n = self.shape
        return Truncation(
            rank=rank,
            kept=spectrum.share_kept(spectrum.energy(self.values), rank),
            frobenius=frobenius,
            spectral=spectral,
            numbers=rank * (m + n),
            saved=m * n - rank * (m + n),
        )


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """A matrix at a lower rank.

    Args:
        rank: of the approximation.
        kept: share of the energy (squared Frobenius norm) that it keeps.
        frobenius: Frobenius norm of what it leaves out, ``sqrt(sum_{i>r} s_i^2)``.
        spectral: spectral norm of what it leaves out, ``s_{r+1}``.
        numbers: entries of its two factors.
        saved: entries of the matrix minus those; negative where factors are larger.
    """

    rank: int
    kept: float
    frobenius: float
    spectral: float
    numbers: int
    saved: int


@dataclass(frozen=True, eq=False)
class Spectra:
    """The spectra of a network; a sequence of :class:`Spectrum`, printed as a table."""

    layers: tuple[Spectrum, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Spectrum]:
        return iter(self.layers)

    def __getitem__(self, title: str) -> Spectrum:
        """One matrix by its title.

        Raises:
            KeyError: there is none of that title; those there are are named.
        """
        for layer in self.layers:
            if layer.title == title:
                return layer
        raise KeyError(f"no matrix {title!r}; there are {', '.join(layer.title for layer in self.layers)}")

    def table(self) -> pd.DataFrame:
        """One row a matrix: shape, ranks of several kinds, decay, largest value."""
        return pd.DataFrame(
            [
                {
                    "layer": layer.title,
                    "kind": layer.kind,
                    "shape": " x ".join(map(str, layer.shape)),
                    "rank": layer.rank,
                    **{f"r for {share:.0%}": layer.rank_for(share) for share in _SHARES},
                    "effective": layer.effective_rank,
                    "stable": layer.stable_rank,
                    "break-even": layer.break_even,
                    "decay": layer.decay,
                    "largest": float(layer.values[0]),
                }
                for layer in self.layers
            ]
        )

    def __str__(self) -> str:
        return self.table().to_string(index=False, float_format=_short)


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def effective_rank(matrix: Float[Tensor, "m n"] | Float[Tensor, " k"]) -> float:
    """``(sum l)^2 / sum l^2``: how many equal values would spread as much as a matrix's do.

    Args:
        matrix: a covariance, whose ``l`` are the eigenvalues, or any matrix, whose ``l`` are the singular
            values; or the values themselves.

    Raises:
        ValueError: no entries, values that are not finite, given values below 0.

    Example:
        >>> import torch
        >>> effective_rank(torch.diag(torch.tensor([4.0, 1.0, 1.0])))
        2.0
    """
    return spectrum.effective_rank(matrix if matrix.dim() == 1 else spectrum.values(matrix))


def stable_rank(matrix: Float[Tensor, "m n"] | Float[Tensor, " k"]) -> float:
    """``sum s^2 / s_1^2`` of a matrix's singular values, or of the values given; never above the rank.

    Raises:
        ValueError: see :func:`effective_rank`.

    Example:
        >>> import torch
        >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
        1.5
    """
    return spectrum.stable_rank(matrix if matrix.dim() == 1 else spectrum.values(matrix))


def singular_values(source: nn.Module | Mergeable) -> Spectra:
    """The singular values of every weight matrix of a network, or of a posterior at its mean.

    Low-rank layers are read as the products of their factors; layers without a matrix of their own kind
    (normalisation, subclasses with a forward of their own, parametrised weights) are left out. Layers that
    share their weight are listed once.

    Args:
        source: a network, which is only read, or a posterior.

    Raises:
        ValueError: no matrix at all; values that are not finite, or not there (the meta device).
        TypeError: neither a network nor a posterior.

    Example:
        >>> spectra = singular_values(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2)))
        >>> {layer.title: len(layer.values) for layer in spectra}
        {'0': 20, '2': 2}
    """
    network = merge(source)
    known = Network(network, random=False)
    found: list[Spectrum] = []
    seen: set[int] = set()
    for place in known.places.values():
        if place.structure is None or place.reason == PART_OF_ATTENTION:
            continue
        weight = dict(place.module.named_parameters(recurse=False)).get("weight")
        if weight is not None:
            if id(weight) in seen:
                continue
            seen.add(id(weight))
        kind = type(place.module).__name__
        found += [_spectrum(place.key, matrix, kind, dense(place.module, matrix))
                  for matrix in place.structure.matrices(place.module)]  # fmt: skip
    if not found:
        raise ValueError("the network has no layer with a weight matrix (linear, embedding, convolution, "
                         "recurrent, attention): there is no spectrum")  # fmt: skip
    return Spectra(tuple(found))


def _spectrum(name: str, matrix: str, kind: str, weight: Tensor) -> Spectrum:
    layer = f"{name}.{matrix}".lstrip(".")
    if weight.is_meta:
        raise ValueError(f"{layer} has no values (it is on the meta device); load them first")
    try:
        values = spectrum.values(weight.detach())
    except ValueError as error:
        raise ValueError(f"{layer}: {error}") from None
    m, n = weight.shape
    return Spectrum(name, matrix, kind, (m, n), values.cpu())


_A = re.compile(r"(?:^|\.)A(?:_[ih]h_l\d+(?:_reverse)?)?$")
_PACKED = {"in_proj_weight": 3}


def singular_values_of_tensors(tensors: Mapping[str, Tensor]) -> Spectra:
    """The spectra of a state dict: every tensor of two axes or more, as ``(first axis, all others)``.

    Factors that stand together, ``A`` and ``B`` (and ``s``), are read as their product, and a packed
    ``in_proj_weight`` as its three matrices. What else a tensor means is not known: a transposed weight has
    the same spectrum, tied ones are listed twice.

    Args:
        tensors: by name, such as ``network.state_dict()`` or a loaded checkpoint.

    Raises:
        ValueError: no tensor of two axes or more, or values that are not finite.

    Example:
        >>> print(*(layer.title for layer in singular_values_of_tensors(nn.LSTM(3, 4).state_dict())))
        weight_ih_l0 weight_hh_l0
    """
    found: list[Spectrum] = []
    taken: set[str] = set()
    for name, tensor in tensors.items():
        if name in taken:
            continue
        pair = _partners(name, tensors)
        if pair is not None:
            b, s = pair
            taken |= {b, s}
            product = _product(tensor, tensors[b], tensors.get(s))
            found.append(_spectrum(*_split(name), "factors", product))
        elif tensor.dim() >= 2 and tensor.is_floating_point() and not _is_b(name, tensors):
            parts = tensor.flatten(1).chunk(_PACKED.get(name.rpartition(".")[2], 1))
            leaves = ("",) if len(parts) == 1 else ("[q]", "[k]", "[v]")
            path, leaf = _split(name)
            found += [
                _spectrum(path, leaf + x, "tensor", part) for x, part in zip(leaves, parts, strict=True)
            ]
    if not found:
        raise ValueError(
            f"none of the {len(tensors)} tensors has two axes or more: there is no spectrum; is it the state "
            f"dict of a network?"
        )
    return Spectra(tuple(found))


def _split(name: str) -> tuple[str, str]:
    path, _, leaf = name.rpartition(".")
    return path, "weight" if leaf == "A" else leaf.replace("A_", "weight_", 1) if leaf.startswith(
        "A_"
    ) else leaf


def _beside(name: str) -> tuple[str, str]:
    """Where ``B`` and ``s`` of an ``A`` stand."""
    at = name.rindex(".") + 1 if "." in name else 0
    return f"{name[:at]}B{name[at + 1 :]}", f"{name[:at]}s{name[at + 1 :]}"


def _partners(name: str, tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """The names of ``B`` and ``s`` where this is an ``A`` that fits them."""
    if not _A.search(name) or tensors[name].dim() != 2:
        return None
    b, s = _beside(name)
    other, rank = tensors.get(b), tensors[name].shape[1]
    if other is None or other.dim() < 2:
        return None
    return (b, s) if (other.shape[1] if other.dim() == 2 else other.shape[0]) == rank else None


def _is_b(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether this is the ``B`` of a pair that comes later."""
    at = name.rindex(".") + 1 if "." in name else 0
    a = f"{name[:at]}A{name[at + 1 :]}"
    return name[at : at + 1] == "B" and a in tensors and _partners(a, tensors) is not None


def _product(a: Tensor, b: Tensor, s: Tensor | None) -> Tensor:
    """``A diag(s) B^T``; a convolution's ``B`` is ``(r, in, *kernel)``."""
    columns = b.mT if b.dim() == 2 else b.flatten(1)
    return (a if s is None else a * s) @ columns
