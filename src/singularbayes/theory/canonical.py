"""The components of a low-rank belief in order: factors turned so that their mean is a singular value form.

``A B^T = (A M)(B M^-T)^T`` for every invertible ``M``: the columns of trained factors are an arbitrary
mixture, and none of them shrinks when there are too many. With ``mu_A mu_B^T = U S V^T`` the turn

    M = mu_B^T V S^(-1/2),    M^-T = mu_A^T U S^(-1/2)

makes the means ``U S^(1/2)`` and ``V S^(1/2)``, the network's mean function staying as it is, and component
k has the norm ``s_k``. The noise turns with them, ``Var A'_ik = sum_l M_lk^2 Var A_il``; that turned columns
vary together is dropped, so that the belief stays diagonal.

References:
    Eckart and Young 1936.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import spectrum
from ..distributions import DiagonalGaussian, StoredDraws
from ..posterior import Posterior
from .factor_beliefs import LowRankWeight, low_rank_weights

__all__ = ["canonical"]


@torch.no_grad()
def canonical(posterior: Posterior) -> Posterior:
    """The posterior with the components of every low-rank layer turned into order, strongest first.

    The mean is the same function to rounding; the variances of single factors are those of the turned belief,
    without its covariances between columns. Of a point (``MAP``) everything is the same.

    Args:
        posterior: of one network with low-rank layers without ``s``: a diagonal Gaussian, or a point.

    Raises:
        ValueError: another kind of posterior, layers with an ``s``, frozen factors, no low-rank layer.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.randn(20, 9)
        >>> model = sb.Model(sb.factorize(torch.nn.Linear(9, 9), 3), sb.Gaussian(noise=1.0))
        >>> posterior = sb.MAP(epochs=1).fit(model, (x, x))
        >>> turned = canonical(posterior)
        >>> torch.allclose(turned.predict(x).mean, posterior.predict(x).mean, atol=1e-5)
        True
    """
    point = posterior.support == 1
    if not point and posterior.distribution.kind != "diagonal_gaussian":
        raise ValueError(
            f"components are turned in a diagonal Gaussian or a point, not in a "
            f"{type(posterior.distribution).__name__}; fit MeanField, or prune with turn=False"
        )
    weights = low_rank_weights(posterior)
    for weight in weights:
        _check(weight)
    mean = posterior.distribution.mean.clone()
    variance = posterior.distribution.variance.clone()
    for weight in weights:
        _turn(weight, mean, variance)
    distribution = StoredDraws(mean.unsqueeze(0)) if point else DiagonalGaussian(mean, variance.sqrt())
    return Posterior(posterior.network, distribution, posterior.likelihood, posterior.layout, posterior.info)


def _check(weight: LowRankWeight) -> None:
    if weight.diagonal:
        raise ValueError(f"{weight.title} has an s between its factors, which names its components: they are "
                         f"not turned; prune with turn=False")  # fmt: skip
    missing = [name for name in weight.names if name not in weight.slots]
    if missing:
        raise ValueError(f"{missing[0]} is frozen: the components of {weight.title} cannot be turned; prune "
                         f"with turn=False")  # fmt: skip


def _turn(weight: LowRankWeight, mean: Tensor, variance: Tensor) -> None:
    """Write the turned factors of one matrix into the flat vectors."""
    a, b = weight.stored("A", mean).double(), weight.stored("B", mean).double()
    qa, ra = torch.linalg.qr(a)
    qb, rb = torch.linalg.qr(b)
    u, values, vh = torch.linalg.svd(ra @ rb.T)
    u, v = qa @ u, qb @ vh.T
    # a component of norm 0 has no direction: what its noise does is nobody's, and it is dropped. Rounding
    # must not pass for a norm: the noise would be divided by it
    root = spectrum.without_rounding(values, max(a, b, key=len)).sqrt()
    inverse = torch.where(root > 0, 1 / root, torch.zeros_like(root))
    for factor, turned, turn in (("A", u * root, b.T @ v * inverse), ("B", v * root, a.T @ u * inverse)):
        spread = weight.stored(factor, variance).double() @ turn.square()
        weight.store(factor, turned, mean)
        weight.store(factor, spread, variance)
