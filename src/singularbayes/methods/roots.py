"""Square roots ``S`` of covariances that are trained: block-diagonal, a draw is ``mean + S y``.

A *site* is a stretch of neighbouring entries with a root of its own, a Kronecker product of triangular
factors, one for each of its *sides*:

    no side:          S = diag(s)
    one, ``n``:       S = L                  any covariance of the n entries
    two, ``m, n``:    S = L kron R           of a matrix, row by row: ``S y = L Y R^T``

Every factor is ``L = diag(s) T``, ``T`` lower triangular with ones on its diagonal, ``s = softplus(rho)``:
trained are ``rho`` and the entries of ``T``, which have no unit, so one step size serves weights of any
scale. It covers every positive definite matrix (of two factors only the product counts: a constant may go
from one to the other). Gradients are written down by hand: ``pull`` and ``pull_variance`` leave those for
``s`` and ``L`` where the numbers' gradient will be, ``finish`` turns them into it.

References:
    Pinheiro and Bates 1996, "Unconstrained parametrizations for variance-covariance matrices", section 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..distributions import positive
from .diagonal import inverse_softplus

__all__ = ["Piece", "Root", "Site", "Triangle"]


class Site(NamedTuple):
    """Neighbouring entries of the belief and the sides of their root; the sides' product is their number."""

    entries: slice
    sides: tuple[int, ...] = ()

    @property
    def storage(self) -> int:
        """Numbers that are stored: a square for each side, whose upper half stays 0."""
        return sum(side**2 for side in self.sides) or self.entries.stop - self.entries.start

    @property
    def numbers(self) -> int:
        """Numbers that are trained."""
        return sum(side * (side + 1) // 2 for side in self.sides) or self.entries.stop - self.entries.start


@runtime_checkable
class Piece(Protocol):
    """The root of one site; ``rows`` are ``(k, entries)``."""

    def start(self, scales: Tensor) -> None:
        """Independent entries of these standard deviations, written into the numbers."""
        ...

    def read(self) -> None:
        """Follow the numbers as they are now."""
        ...

    def times(self, rows: Tensor) -> Tensor:
        """``S`` times each row."""
        ...

    def pull(self, rows: Tensor, gradients: Tensor) -> Tensor:
        """Take in the gradients for ``times(rows)``; ``S^T`` times each is the result."""
        ...

    def log_det(self) -> Tensor:
        """Of ``S``, in nats."""
        ...

    def variance(self) -> Tensor:
        """The diagonal of ``S S^T``."""
        ...

    def pull_variance(self, gradient: Tensor) -> None:
        """Take in the gradient for :meth:`variance`."""
        ...

    def finish(self, weight: float) -> None:
        """Leave the numbers' gradient: of what was taken in, less ``weight`` times that of the log det."""
        ...


class Independent:
    """``S = diag(s)``."""

    def __init__(self, numbers: Tensor, gradient: Tensor) -> None:
        self.rho, self.gradient = numbers, gradient
        self.read()

    def start(self, scales: Tensor) -> None:
        self.rho.copy_(inverse_softplus(scales))

    def read(self) -> None:
        self.std = positive(self.rho)

    def times(self, rows: Tensor) -> Tensor:
        return rows * self.std

    def pull(self, rows: Tensor, gradients: Tensor) -> Tensor:
        self.gradient.add_((rows * gradients).sum(0))
        return gradients * self.std

    def log_det(self) -> Tensor:
        return self.std.double().log().sum()

    def variance(self) -> Tensor:
        return self.std.square()

    def pull_variance(self, gradient: Tensor) -> None:
        self.gradient.addcmul_(gradient, self.std, value=2)

    def finish(self, weight: float) -> None:
        self.gradient.sub_(self.std.reciprocal(), alpha=weight).mul_(self.rho.sigmoid())


class Triangle:
    """One factor ``L (n, n)``; its numbers are a square: ``rho`` on the diagonal, ``T`` below, 0 above.

    Attributes:
        matrix: ``L``.
        gradient: for ``L`` until :meth:`finish`, whose business its upper half is too.
    """

    def __init__(self, side: int, numbers: Tensor, gradient: Tensor) -> None:
        self.side = side
        self.numbers, self.gradient = numbers.view(side, side), gradient.view(side, side)
        self.read()

    def start(self, scales: Tensor) -> None:
        self.numbers.zero_().diagonal().copy_(inverse_softplus(scales))

    def read(self) -> None:
        self.std = positive(self.numbers.diagonal())
        self.matrix = self.numbers.tril(-1).mul_(self.std.unsqueeze(1))
        self.matrix.diagonal().copy_(self.std)

    def log_det(self) -> Tensor:
        return self.std.double().log().sum()

    def finish(self, weight: float) -> None:
        """Less ``weight`` times the gradient of the log det."""
        own = self.gradient.diagonal().clone()
        self.gradient.tril_(-1)
        by_std = own + torch.linalg.vecdot(self.gradient, self.numbers) - weight / self.std
        self.gradient.mul_(self.std.unsqueeze(1))
        self.gradient.diagonal().copy_(by_std * self.numbers.diagonal().sigmoid())


class Triangular:
    """``S = L``."""

    def __init__(self, side: int, numbers: Tensor, gradient: Tensor) -> None:
        self.factor = Triangle(side, numbers, gradient)

    def start(self, scales: Tensor) -> None:
        self.factor.start(scales)

    def read(self) -> None:
        self.factor.read()

    def times(self, rows: Tensor) -> Tensor:
        return rows @ self.factor.matrix.T

    def pull(self, rows: Tensor, gradients: Tensor) -> Tensor:
        self.factor.gradient.addmm_(gradients.T, rows)
        return gradients @ self.factor.matrix

    def log_det(self) -> Tensor:
        return self.factor.log_det()

    def variance(self) -> Tensor:
        return self.factor.matrix.square().sum(1)

    def pull_variance(self, gradient: Tensor) -> None:
        self.factor.gradient.addcmul_(self.factor.matrix, gradient.unsqueeze(1), value=2)

    def finish(self, weight: float) -> None:
        self.factor.finish(weight)


class Matrix:
    """``S = L kron R`` on matrices ``(m, n)``: the covariance of their rows, times that of their columns.

    The log det is ``n log det L + m log det R``, and the variance of entry ``(i, j)`` the product of those
    that the two factors give ``i`` and ``j``: nothing larger than a factor is formed.
    """

    def __init__(self, sides: tuple[int, int], numbers: Tensor, gradient: Tensor) -> None:
        (m, n), cut = sides, sides[0] ** 2
        self.left = Triangle(m, numbers[:cut], gradient[:cut])
        self.right = Triangle(n, numbers[cut:], gradient[cut:])

    def start(self, scales: Tensor) -> None:
        for factor in (self.left, self.right):  # one tensor has one scale at the start
            factor.start(scales[:1].sqrt().expand(factor.side))

    def read(self) -> None:
        self.left.read()
        self.right.read()

    def _matrices(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.left.side, self.right.side)

    def times(self, rows: Tensor) -> Tensor:
        return (self.left.matrix @ self._matrices(rows) @ self.right.matrix.T).flatten(1)

    def pull(self, rows: Tensor, gradients: Tensor) -> Tensor:
        left, right, x, g = self.left, self.right, self._matrices(rows), self._matrices(gradients)
        turned = g @ right.matrix  # (k, m, n)
        for one, two in zip(turned, x, strict=True):
            left.gradient.addmm_(one, two.T)
        for one, two in zip(g, left.matrix @ x, strict=True):
            right.gradient.addmm_(one.T, two)
        return (left.matrix.T @ turned).flatten(1)

    def log_det(self) -> Tensor:
        return self.right.side * self.left.log_det() + self.left.side * self.right.log_det()

    def variance(self) -> Tensor:
        return torch.outer(self.left.matrix.square().sum(1), self.right.matrix.square().sum(1)).flatten()

    def pull_variance(self, gradient: Tensor) -> None:
        by = gradient.view(self.left.side, self.right.side)
        left, right = self.left.matrix, self.right.matrix
        by_left, by_right = by @ right.square().sum(1), left.square().sum(1) @ by
        self.left.gradient.addcmul_(left, by_left.unsqueeze(1), value=2)
        self.right.gradient.addcmul_(right, by_right.unsqueeze(1), value=2)

    def finish(self, weight: float) -> None:
        self.left.finish(weight * self.right.side)
        self.right.finish(weight * self.left.side)


def _piece(site: Site, numbers: Tensor, gradient: Tensor) -> Piece:
    match site.sides:
        case ():
            return Independent(numbers, gradient)
        case (side,):
            return Triangular(side, numbers, gradient)
        case (m, n):
            return Matrix((m, n), numbers, gradient)
    raise ValueError(f"a site has up to two sides, got {site.sides}")


class Root:
    """The roots of all sites together, as one ``S (d, d)`` that is never formed; rows are ``(k, d)``.

    Args:
        sites: in order, without gaps.
        numbers: trained, a view ``(sum of the sites' storage,)`` that is written to at the start alone.
        gradient: of the objective for the numbers, likewise a view.

    Attributes:
        pieces: the root of each site.
    """

    def __init__(self, sites: Sequence[Site], numbers: Tensor, gradient: Tensor) -> None:
        self.sites, self.numbers = tuple(sites), numbers
        sizes = [site.storage for site in self.sites]
        shares = zip(self.sites, numbers.split(sizes), gradient.split(sizes), strict=True)
        self.pieces: list[Piece] = [_piece(*share) for share in shares]

    def _each(self, rows: Tensor) -> list[tuple[Piece, Tensor]]:
        return [(piece, rows[..., s.entries]) for s, piece in zip(self.sites, self.pieces, strict=True)]

    def start(self, scales: Tensor) -> None:
        """Begin with independent entries of these standard deviations, equal within a matrix."""
        for piece, own in self._each(scales):
            piece.start(own)
        self.read()

    def read(self) -> None:
        """Follow the numbers as they are now."""
        for piece in self.pieces:
            piece.read()

    def times(self, rows: Tensor) -> Tensor:
        """``S`` times each row."""
        return _joined([piece.times(own.contiguous()) for piece, own in self._each(rows)])

    def pull(self, rows: Tensor, gradients: Tensor) -> Tensor:
        """Take in the gradients for :meth:`times` of these rows; the result is the rows' own."""
        parts = zip(self._each(rows), self._each(gradients), strict=True)
        return _joined([piece.pull(x.contiguous(), g.contiguous()) for (piece, x), (_, g) in parts])

    def log_det(self) -> float:
        """Of ``S``, in nats, summed in float64."""
        return math.fsum(piece.log_det().item() for piece in self.pieces)

    def variance(self) -> Tensor:
        """The diagonal of ``S S^T``."""
        return _joined([piece.variance() for piece in self.pieces])

    def pull_variance(self, gradient: Tensor) -> None:
        """Take in the gradient for :meth:`variance`."""
        for piece, own in self._each(gradient):
            piece.pull_variance(own)

    def finish(self, weight: float) -> None:
        """Leave the numbers' gradient, less ``weight`` times that of the log det."""
        for piece in self.pieces:
            piece.finish(weight)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
