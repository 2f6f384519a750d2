"""The KL of a PAC-Bayes bound: exact, or an upper bound; never an estimate.

    independent entries    sum_i KL(q_i || p_i),  or its bound for a ScaleMixture
    joint Gaussian q       -E_q log p - H(q),     H(q) = (d ln(2 pi e) + ln det C) / 2

On a factorised network it is the KL of the factors, which bounds that of the products (data processing).

References:
    arXiv 2602.00387, lemma 3.4. Hershey and Olsen 2007, eq. 20 (the mixture's bound).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..centred import Centred
from ..distributions import (
    DiagonalGaussian,
    DiagonalLaplace,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
)
from ..divergence import KL, Family, bound, cross_entropy
from ..model import BlockPrior, part_of
from ..posterior import Posterior
from ..priors import Laplace, Normal, ScaleMixture

__all__ = ["pac_bayes_kl"]

_KINDS: dict[str, Any] = {"Normal": Normal, "Laplace": Laplace, "ScaleMixture": ScaleMixture}
_JOINT = (LowRankGaussian, FullGaussian, KroneckerGaussian)
Blocks = Sequence[tuple[slice, BlockPrior]]


def pac_bayes_kl(posterior: Posterior, prior: BlockPrior | None = None, *, kl: KL | None = None) -> float:
    """``KL(q || p)`` of the believed weights in nats, summed in float64.

    Args:
        posterior: with a density: diagonal, low-rank, full or Kronecker Gaussian, or independent Laplace.
        prior: on every believed weight; ``None``: the one that the posterior was fitted with.
        kl: ``closed`` (an error where there is none), ``bound`` (closed where it exists), ``None`` the same.

    Returns:
        Exact for Normal, Laplace and Centred priors (of a joint ``q`` too: the cross-entropy is that of its
        marginals); an upper bound for a ScaleMixture.

    Raises:
        ValueError: a Monte Carlo KL; a prior that is not known; entries without width (an infinite KL).
        TypeError: a posterior without a density, or a prior of another kind.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 16).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> pac_bayes_kl(sb.MeanField(epochs=1).fit(model, (x, x))) > 0
        True
    """
    if kl is KL.MONTE_CARLO:
        raise ValueError(
            "a certificate needs a KL that is exact or bounded from above, and kl=sb.KL.MONTE_CARLO is an "
            "estimate that may lie below; use kl=sb.KL.BOUND (a posterior that was trained with it is fine)"
        )
    q, d = posterior.distribution, posterior.layout.belief
    if not isinstance(q, (DiagonalGaussian, DiagonalLaplace, *_JOINT)):
        raise TypeError(
            f"a PAC-Bayes KL needs a posterior with a density, got {q.kind}: the KL of separate networks or "
            f"masks to a density is infinite, that of a mixture has no closed form; fit MeanField, IVON, "
            f"StructuredVI or PACBayes"
        )
    blocks = _blocks_of(posterior, prior)
    if kl is KL.CLOSED:
        for _, each in blocks:
            if isinstance(each, ScaleMixture):
                raise ValueError("the KL to a ScaleMixture has no closed form; use kl=sb.KL.BOUND or None")
    if isinstance(q, DiagonalGaussian):
        return _independent(Family.GAUSSIAN, q.mean[:d], q.std[:d], blocks)
    if isinstance(q, DiagonalLaplace):
        return _independent(Family.LAPLACE, q.mean[:d], q.scale[:d], blocks)
    mean, std = q.mean[:d].double(), q.variance[:d].double().sqrt()
    _check_width(std)
    terms = [cross_entropy(Family.GAUSSIAN, p, mean[b], std[b]).sum().item() for b, p in blocks]
    value = math.fsum(terms) - 0.5 * (d * math.log(2 * math.pi * math.e) + _log_determinant(q, d))
    return max(value, 0.0)  # below by rounding alone


def _independent(family: Family, mean: Tensor, scale: Tensor, blocks: Blocks) -> float:
    _check_width(scale)
    mean, scale = mean.double(), scale.double()
    return math.fsum(bound(family, p, mean[b], scale[b]).sum().item() for b, p in blocks)


def _check_width(scale: Tensor) -> None:
    points = int((scale <= 0).sum())
    if points:
        raise ValueError(
            f"{points} of {len(scale)} believed weights have a standard deviation of 0: their KL to a prior "
            f"with a density is infinite; give them a width, or freeze them (requires_grad_(False))"
        )


def _log_determinant(q: Any, d: int) -> float:
    """``ln det`` of the covariance of the first ``d`` entries."""
    if isinstance(q, FullGaussian):
        order = q.positions < d
        if int(order.sum()) != d:
            raise ValueError(
                f"the covariance covers {int(order.sum())} of {d} believed weights; the rest are points, "
                f"whose KL is infinite"
            )
        return 2 * torch.linalg.slogdet(q.factor.double())[1].item()
    factor = q.factor[:d].double()
    if isinstance(q, LowRankGaussian):
        std = q.std[:d].double()
        return 2 * std.log().sum().item() + _lemma(factor / std.unsqueeze(1), factor / std.unsqueeze(1))
    std = q.std[:d].double()
    value, solved = 2 * std.log().sum().item(), factor / std.square().unsqueeze(1)
    for block in q.each_block():
        (m, n), scale = block.shape, std[block.entries].view(block.shape)
        left, right = block.left.double(), block.right.double()
        value += 2 * (n * torch.linalg.slogdet(left)[1] + m * torch.linalg.slogdet(right)[1]).item()
        columns = factor[block.entries].T.reshape(-1, m, n)  # C^-1 of each: (L kron R) S^2 (L kron R)^T
        inner = torch.linalg.solve(left, torch.linalg.solve(right, columns.mT).mT) / scale.square()
        outer = torch.linalg.solve(left.T, torch.linalg.solve(right.T, inner.mT).mT)
        solved[block.entries] = outer.reshape(-1, m * n).T
    return value + _lemma(factor, solved)


def _lemma(factor: Tensor, solved: Tensor) -> float:
    """``ln det(I + F^T C^-1 F)``."""
    eye = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.slogdet(eye + factor.T @ solved)[1].item()


def _blocks_of(posterior: Posterior, prior: BlockPrior | None) -> Blocks:
    """The prior, block by block of the believed weights.

    Args:
        posterior: fitted.
        prior: on every weight, or ``None`` for the one of the fit.

    Raises:
        ValueError: the fit's prior is not known, or was learned from the data; a ``Centred`` one of another
            length.
        TypeError: no prior with a closed KL or a bound.
    """
    d = posterior.layout.belief
    if prior is None:
        return list(_remembered(posterior))
    if isinstance(prior, type) or not isinstance(prior, Normal | Laplace | ScaleMixture | Centred):
        raise TypeError(
            f"a certificate's KL is known for Normal, Laplace, ScaleMixture and Centred priors, got "
            f"{prior!r}; a Monte Carlo KL to another one is no bound"
        )
    if isinstance(prior, Centred) and len(prior.mean) != d:
        raise ValueError(f"the prior is centred at {len(prior.mean)} weights, the posterior believes in {d}")
    if isinstance(prior, ScaleMixture) and prior.learned:
        raise _learned()
    return [(slice(0, d), part_of(prior, slice(0, d)))]


def _remembered(posterior: Posterior) -> Iterator[tuple[slice, BlockPrior]]:
    known = posterior.info.get("prior")
    if not known:
        raise ValueError("the posterior does not know the prior that it was fitted with; pass prior=")
    if posterior.info.get("learned_priors"):
        raise _learned()
    for each in known:
        fields: Mapping[str, Any] = {k: v for k, v in each.items() if k not in ("start", "stop", "kind")}
        if each["kind"] not in _KINDS:
            raise ValueError(
                f"the posterior was fitted with a {each['kind']} prior, whose numbers it does not keep; "
                f"pass it as prior="
            )
        prior = _KINDS[each["kind"]](**fields)
        if isinstance(prior, ScaleMixture) and prior.learned:
            raise _learned()
        yield slice(each["start"], each["stop"]), prior


def _learned() -> ValueError:
    return ValueError(
        "the prior's numbers were learned with the posterior, so it saw the certified data; fit with a fixed "
        "ScaleMixture(learned=False), or pass prior= one that was chosen before"
    )
