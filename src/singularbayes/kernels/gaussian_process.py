"""Exact Gaussian-process regression with any kernel.

    f ~ GP(m, k),  y = f(x) + N(0, noise^2):    A = K(x, x) + noise^2 I = L L^T,   alpha = A^-1 (y - m(x))
    mean(z) = m(z) + K(z, x) alpha,    cov(z) = K(z, z) - K(z, x) A^-1 K(x, z)
    log p(y) = -1/2 (y - m)^T alpha - log det L - n/2 log 2 pi

It takes ``n^3`` operations and ``n^2`` numbers: some thousands of rows. Several outputs are independent, with
one kernel for all or one each.

References:
    Rasmussen and Williams 2006, algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..curvature.cholesky import cholesky

__all__ = ["FittedGaussianProcess", "GaussianProcess", "Kernel", "ProcessMoments"]

_ROUNDING = torch.finfo(torch.float32).eps  # kernels are often computed in float32
_JITTER = 1e-4  # of the mean diagonal: more would be another kernel


@runtime_checkable
class Kernel(Protocol):
    """``kernel(x, z)`` gives ``(B, Z)`` for all outputs, or ``(K, B, Z)``: tensors or NumPy arrays.

    So are scikit-learn's kernels (``RBF(1.0)``), and
    ``functools.partial(sb.kernels.empirical_ntk, network, prior=prior)``.
    """

    def __call__(self, x: Any, z: Any) -> Any:
        """The matrix between two sets of inputs."""
        ...


@dataclass(frozen=True, eq=False)
class ProcessMoments:
    """A Gaussian process at some inputs, without the noise.

    Args:
        mean: ``(Z, K)``.
        covariance: between inputs, for each output ``(K, Z, Z)``; ``K`` is 1 where all share it.
    """

    mean: Float[Tensor, "Z K"]
    covariance: Float[Tensor, "C Z Z"]

    @property
    def variance(self) -> Float[Tensor, "Z K"]:
        """Of each output at each input; the noise's is not in it."""
        return self.covariance.diagonal(dim1=1, dim2=2).T.clamp_min(0).expand(self.mean.shape)


@dataclass(frozen=True, eq=False)
class FittedGaussianProcess:
    """A Gaussian process given data.

    Args:
        process: what was fitted.
        x: inputs of the data.
        lower: Cholesky factors of ``K + noise^2 I``, one for all outputs or one each ``(C, n, n)``.
        weights: ``alpha (K, n)``.
        log_evidence: ``log p(y)``, of all outputs together, in nats.
        jitter: what was added at most to a diagonal of ``K + noise^2 I`` for it to have a factor; mostly 0.
    """

    process: GaussianProcess
    x: Any
    lower: Float[Tensor, "C n n"]
    weights: Float[Tensor, "K n"]
    log_evidence: float
    jitter: float

    def __repr__(self) -> str:
        return (
            f"FittedGaussianProcess({self.weights.shape[1]} rows, {self.weights.shape[0]} outputs, "
            f"log evidence {self.log_evidence:.2f}, jitter {self.jitter:.2g})"
        )

    def predict(self, z: Any) -> ProcessMoments:
        """Mean and covariance at other inputs.

        Args:
            z: inputs, as the kernel takes them.
        """
        process = self.process
        cross = process.matrix(z, self.x)  # (C, Z, n)
        own = process.matrix(z, z)
        half = torch.linalg.solve_triangular(self.lower, cross.mT, upper=False)
        covariance = own - half.mT @ half
        mean = torch.einsum("kzn,kn->zk", cross.expand(len(self.weights), -1, -1), self.weights)
        return ProcessMoments(mean + process.offset(z, self.weights.shape[0]).to(mean), covariance)


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian-process prior on functions, and Gaussian noise.

    Args:
        kernel: see :class:`Kernel`. ``nngp``: ``lambda x, z: nngp(network, prior, x, z).kernel``.
        noise: standard deviation of the noise, in the units of ``y``; 0 interpolates.
        mean: prior mean, ``mean(x) -> (B,)`` or ``(B, K)``; ``None`` is 0.

    Example:
        >>> from sklearn.gaussian_process.kernels import RBF
        >>> x = torch.linspace(-2, 2, 9).unsqueeze(1)
        >>> fitted = GaussianProcess(RBF(1.0), noise=0.1).fit(x, x.sin())
        >>> moments = fitted.predict(torch.tensor([[0.5], [9.0]]))
        >>> moments.variance.sqrt() > 0.5
        tensor([[False],
                [ True]])
    """

    kernel: Kernel
    noise: float
    mean: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kernel, type) or not callable(self.kernel):
            raise TypeError(f"kernel must be an object that is called with (x, z), got {self.kernel!r}")
        if not (self.noise >= 0 and math.isfinite(self.noise)):
            raise ValueError(f"noise is a standard deviation; it must be 0 or positive, got {self.noise!r}")

    def fit(self, x: Any, y: Any) -> FittedGaussianProcess:
        """The process given data.

        Args:
            x: inputs, as the kernel takes them.
            y: ``(n,)`` or ``(n, K)``.

        Raises:
            ValueError: a kernel matrix that is not symmetric, not finite or not positive definite, with its
                smallest eigenvalue; labels that do not fit it.
        """
        targets = _numbers(y)
        targets = targets.unsqueeze(1) if targets.dim() == 1 else targets
        matrix = self.matrix(x, x)
        rows, outputs = targets.shape
        if matrix.shape[1:] != (rows, rows) or len(matrix) not in (1, outputs):
            raise ValueError(
                f"{rows} labels of {outputs} outputs need a kernel matrix ({rows}, {rows}), or one for each "
                f"output, got {tuple(matrix.shape)}"
            )
        _check_definite(matrix)
        noisy = matrix + self.noise**2 * torch.eye(rows, dtype=matrix.dtype, device=matrix.device)
        lower, jitter = _factor(noisy)
        residuals = (targets.to(matrix) - self.offset(x, outputs).to(matrix)).T  # (K, n)
        if len(lower) == 1:
            weights = torch.cholesky_solve(residuals.T, lower[0]).T
        else:
            weights = torch.cholesky_solve(residuals.unsqueeze(2), lower).squeeze(2)
        determinant = 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1).expand(outputs).sum()
        evidence = -0.5 * ((residuals * weights).sum() + determinant + rows * outputs * math.log(2 * math.pi))
        return FittedGaussianProcess(self, x, lower, weights, evidence.item(), jitter)

    def matrix(self, x: Any, z: Any) -> Float[Tensor, "C B Z"]:
        """The kernel between two sets of inputs in float64, with a leading axis of outputs.

        Raises:
            ValueError: not finite, or of another shape.
        """
        one, two = (
            part.detach().cpu().numpy() if _wants_arrays(self.kernel, part) else part for part in (x, z)
        )
        found = _numbers(self.kernel(one, two))
        found = found.unsqueeze(0) if found.dim() == 2 else found
        if found.dim() != 3:
            raise ValueError(f"a kernel gives (B, Z) or (K, B, Z), this one gave {tuple(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise ValueError("the kernel is not finite: it gave inf or nan; scale the inputs or the prior")
        return found

    def offset(self, x: Any, outputs: int) -> Tensor:
        """The prior mean, ``(B, K)`` or what broadcasts to it."""
        if self.mean is None:
            return torch.zeros(1, outputs, dtype=torch.float64)
        found = _numbers(self.mean(x))
        return found.unsqueeze(1) if found.dim() == 1 else found


def _wants_arrays(kernel: object, x: object) -> bool:
    """scikit-learn's kernels take arrays."""
    return isinstance(x, Tensor) and type(kernel).__module__.startswith("sklearn.")


def _numbers(values: Any) -> Tensor:
    tensor = values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
    return tensor.double()


def _check_definite(matrix: Tensor) -> None:
    size = matrix.abs().amax(dim=(1, 2))
    for number, (each, scale) in enumerate(zip(matrix, size, strict=True)):
        where = f" of output {number}" if len(matrix) > 1 else ""
        if not torch.allclose(each, each.T, rtol=0, atol=1e-5 * scale.item()):
            raise ValueError(f"the kernel matrix{where} is not symmetric: this is no covariance")
        values = torch.linalg.eigvalsh(0.5 * (each + each.T))
        least = -_ROUNDING * len(each) * values[-1].abs().item()
        if values[0] < min(least, 0.0) or values[-1] <= 0:
            raise ValueError(
                f"the kernel{where} is not positive definite: its matrix has the eigenvalue "
                f"{values[0].item():.3g} beside the largest {values[-1].item():.3g}, so that some functions "
                f"would have a negative variance; use a kernel that is a covariance, such as a sum or "
                f"product of scikit-learn's"
            )


def _factor(matrix: Tensor) -> tuple[Tensor, float]:
    """Cholesky factors, and the largest jitter among them."""
    found = [cholesky(each) for each in matrix]
    jitter = max(own for _, own in found)
    if jitter > _JITTER * matrix.diagonal(dim1=1, dim2=2).mean().item():
        raise ValueError(
            f"the kernel matrix is not positive definite: a jitter of {_JITTER:g} of its diagonal did "
            f"not mend it; use float64 inputs, a larger noise, or fewer rows that are alike"
        )
    return torch.stack([lower for lower, _ in found]), jitter
