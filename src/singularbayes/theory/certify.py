"""``certify``: a PAC-Bayes certificate of a posterior's risk.

    L(Q) <= bound(Lhat_ub, KL(q || p), n, delta),    Lhat_ub from m draws with delta'

``Lhat_ub`` bounds the expected empirical risk: each of ``m`` independent draws is judged on a random subset
of the points of its own, so that their mean losses are independent, in [0, 1], with that expectation. It
holds for the Gibbs classifier (a new draw for every prediction), with confidence ``1 - delta - delta'``.

References:
    Langford and Caruana 2001 (draws); Perez-Ortiz et al. 2021, arXiv 2007.12911, section 6; methods and
    bounds: :mod:`singularbayes.bounds`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import checkpoint as files
from ..bounded_losses import BoundedLoss, ClippedLoss, ZeroOne
from ..bounds import Bound, Catoni, DrawsBound, KLInverse, RelativeEntropy, check_confidence
from ..calibration import uncalibrated
from ..centred import Centred
from ..data import Tensors, as_source, gather, take
from ..likelihoods import Likelihood
from ..model import BlockPrior, takes_integers
from ..posterior import Posterior
from ..provenance import DataSketch, row_hashes
from ..random import derive, generator
from .certificate import Certificate, Condition
from .pac_bayes import pac_bayes_kl

__all__ = ["certify"]

_TOGETHER = 16  # draws made at a time
_SECONDS = 20.0  # between two checkpoints
_STEM = "draws"
_KINDS = {
    "point": "point estimates",
    "statistic": "running statistics of a normalisation",
    "likelihood": "learned numbers of the likelihood",
}


def certify(
    posterior: Posterior,
    data: Any,
    delta: float = 0.025,
    *,
    delta_draws: float = 0.01,
    draws: int = 10_000,
    subset: int | None = None,
    prior: BlockPrior | None = None,
    loss: BoundedLoss | None = None,
    bound: Bound | None = None,
    estimate: DrawsBound | None = None,
    candidates: int = 1,
    seed: int = 0,
    checkpoint: str | Path | None = None,
) -> Certificate:
    """Certify the risk of a posterior's Gibbs classifier on new data of the same distribution.

    It speaks of the uncalibrated network: what ``calibrate`` fitted is left out.

    Args:
        posterior: with a density (see :func:`pac_bayes_kl`), no point estimates beside it. It may have seen
            all the data.
        data: the certified points ``(X, y)``, independent of each other and of the prior; any form of data.
        delta: probability that the bound fails.
        delta_draws: probability that the estimate from finitely many draws fails.
        draws: number of draws of the weights; 1e5 for a certificate that is to be published.
        subset: rows that each draw is judged on, drawn anew for each with replacement; ``None``: all rows.
        prior: that the KL is to; ``None``: the one of the fit. A ``Centred`` one must be passed.
        loss: in [0, 1]: ``ZeroOne()`` (the default), ``BoundedCrossEntropy(p_min)``, ``ClippedLoss(limit)``.
        bound: ``KLInverse()`` (the default), or another of :mod:`singularbayes.bounds`.
        estimate: bound on the empirical risk from the draws: ``RelativeEntropy()`` (the default), or
            ``EmpiricalBernstein()``, tighter with large subsets.
        candidates: how many priors (their width, their part of the data) or bounds were compared on the
            certified points: both deltas are divided by it. What the posterior was trained with is free.
        seed: of draws and subsets.
        checkpoint: folder to go on from; the same call goes on where it was stopped.

    Raises:
        ValueError: deltas outside (0, 1), a prior that saw the certified points, was learned from them or is
            not known, point estimates or running statistics that no KL covers, labels or losses out of range.
        TypeError: a posterior without a density, or a loss for another task.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] > 0).long()
        >>> model = sb.Model(torch.nn.Linear(2, 2), sb.Categorical())
        >>> posterior = sb.MeanField(epochs=20, learning_rate=0.02).fit(model, (x, y))
        >>> certify(posterior, (x, y), draws=200).risk < 0.5
        True
    """
    began = time.perf_counter()
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"a certificate is of a posterior with a density, got {type(posterior).__name__}; the KL of a "
            f"mixture of networks is infinite or has no closed form; certify its members apart"
        )
    loss, bound, estimate = loss or ZeroOne(), bound or KLInverse(), estimate or RelativeEntropy()
    _check_numbers(delta, delta_draws, draws=draws, candidates=candidates, subset=subset)
    likelihood = uncalibrated(posterior.likelihood)
    loss.check(likelihood)
    points = gather(as_source(data, posterior.dtype, takes_integers(posterior.network)))
    labels = _labels(posterior, likelihood, points)
    _check_fixed(posterior, loss)
    kl = pac_bayes_kl(posterior, prior)
    conditions = _conditions(posterior, points, prior, likelihood, bound, loss, candidates)
    risks = _risks(posterior, likelihood, loss, points.x, labels, draws, subset, seed, checkpoint)
    delta, delta_draws = delta / candidates, delta_draws / candidates
    upper = estimate.upper(risks, delta_draws)
    value = bound.value(upper, kl, points.num_data, delta)
    return Certificate(
        risk=min(value, 1.0),
        value=value,
        empirical=float(risks.mean()),
        empirical_upper=upper,
        kl=kl,
        n=points.num_data,
        delta=delta,
        delta_draws=delta_draws,
        candidates=candidates,
        draws=draws,
        subset=points.num_data if subset is None else subset,
        bound=repr(bound),
        loss=repr(loss),
        unit=float(getattr(loss, "unit", 1.0)),
        numbers=int(posterior.info.get("numbers") or 2 * posterior.layout.belief),
        conditions=conditions,
        seconds=time.perf_counter() - began,
    )


# Checks


def _check_numbers(delta: float, delta_draws: float, *, subset: int | None, **counts: int) -> None:
    check_confidence(delta=delta, delta_draws=delta_draws)
    if delta + delta_draws >= 1:
        raise ValueError(f"delta + delta_draws must be below 1, got {delta} + {delta_draws}")
    for name, value in ({} if subset is None else {"subset": subset}).items() | counts.items():
        if isinstance(value, bool) or value != int(value) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _labels(posterior: Posterior, likelihood: Likelihood, points: Tensors) -> Tensor:
    if points.y is None:
        raise ValueError("a certificate needs labels: pass (X, y)")
    row = posterior.distribution.mean.unsqueeze(0)
    shape = posterior.functions(row, take(points.x, slice(0, 2))).shape[1:]
    return likelihood.labels(torch.Size((len(points.y), *shape[1:])), points.y).to(posterior.device)


def _check_fixed(posterior: Posterior, loss: BoundedLoss) -> None:
    """Only believed weights have a KL: whatever else follows the data must not be there."""
    slots = [*posterior.layout.of_kind("point", "statistic")]
    if type(loss) not in (
        ZeroOne,
        ClippedLoss,
    ):  # these a learned noise does not move
        slots += posterior.layout.of_kind("likelihood")
    for slot in slots:
        raise ValueError(
            f"{slot.name} belongs to the {_KINDS[slot.kind]}, which follow the data and which no KL covers; "
            f"make it a believed weight (normalization=True, no deterministic=), or freeze it "
            f"(requires_grad_(False); a BatchNorm replaced by its affine map) before the fit"
        )


def _conditions(
    posterior: Posterior,
    points: Tensors,
    prior: BlockPrior | None,
    likelihood: Likelihood,
    bound: Bound,
    loss: BoundedLoss,
    candidates: int,
) -> tuple[Condition, ...]:
    """Every condition that a certificate rests on; one that is broken is an error.

    Raises:
        ValueError: the prior saw certified points.
    """
    found = [Condition(f"the loss lies in [0, 1] ({loss!r})", checked=True)]
    if isinstance(prior, Centred):
        found.append(_independence(prior.seen, points))
    else:
        found.append(Condition("the prior has no data in it: fixed numbers, about 0", checked=True))
        found.append(Condition("those numbers were not chosen by the certified points", checked=False))
    found += [
        Condition("the KL is closed or an upper bound, not Monte Carlo", checked=True),
        Condition(
            "every number that follows the data has a KL: no point estimates, no statistics", checked=True
        ),
        Condition(
            "frozen parameters and the preprocessing of X do not depend on the certified points",
            checked=False,
        ),
        Condition(
            "the certified points are independent draws of the distribution that is spoken of", checked=False
        ),
        Condition("no class weights in the certified loss", checked=True),
        Condition("the certified points were not augmented", checked=False),
        Condition(
            "the risk is the Gibbs classifier's; the vote over draws errs at most twice as often",
            checked=False,
        ),
        Condition(
            f"candidates: {candidates} priors or bounds were compared on the certified points", checked=False
        ),
    ]
    if isinstance(bound, Catoni):
        found.append(Condition(f"C = {bound.C:g} was fixed before the data were seen", checked=False))
    if likelihood != posterior.likelihood:
        found.append(
            Condition(
                "calibration is left out: it is the uncalibrated network that is certified", checked=True
            )
        )
    distinct = len(np.unique(row_hashes(points.x, points.y)))
    if distinct < points.num_data:
        text = (
            f"{points.num_data - distinct} certified rows are copies of others: are they independent draws?"
        )
        found.append(Condition(text, checked=False))
    return tuple(found)


def _independence(seen: DataSketch | None, points: Tensors) -> Condition:
    if seen is None:
        text = "the prior did not see the certified points (what it saw is not known here)"
        return Condition(text, checked=False)
    shared = seen.shared(points.x, points.y)
    if shared:
        raise ValueError(
            f"the prior saw certified points: {shared} of {len(seen.hashes)} rows kept of the {seen.rows:,} "
            f"that it was made from are among them, and then no bound holds; certify on the other rows (of "
            f"data with equal rows: on those that the prior's part has not)"
        )
    return Condition(
        f"none of {len(seen.hashes)} kept rows of the prior's {seen.rows:,} is certified", checked=True
    )


# The draws


def _risks(
    posterior: Posterior,
    likelihood: Likelihood,
    loss: BoundedLoss,
    x: Any,
    y: Tensor,
    draws: int,
    subset: int | None,
    seed: int,
    folder: str | Path | None,
) -> NDArray[np.float64]:
    """Mean loss of every draw on its own random rows."""
    mark = _mark(posterior, loss, x, y, subset, seed) if folder is not None else ""
    risks = np.zeros(0) if folder is None else _read(Path(folder), mark)[:draws]
    risks = risks[: len(risks) // _TOGETHER * _TOGETHER] if len(risks) < draws else risks
    found = [risks]
    done, saved = len(risks), time.monotonic()
    while done < draws:
        block = _block(posterior, likelihood, loss, x, y, subset, seed, done // _TOGETHER)
        found.append(block[: draws - done])
        done += len(found[-1])
        if folder is not None and (done == draws or time.monotonic() - saved > _SECONDS):
            tensors = {"risks": torch.from_numpy(np.concatenate(found))}
            files.write_pair(folder, _STEM, tensors, {"mark": mark})
            saved = time.monotonic()
    return np.concatenate(found)


@torch.no_grad()
def _block(
    posterior: Posterior,
    likelihood: Likelihood,
    loss: BoundedLoss,
    x: Any,
    y: Tensor,
    subset: int | None,
    seed: int,
    number: int,
) -> NDArray[np.float64]:
    rows = posterior.draw(_TOGETHER, derive(seed, "certificate", number) % 2**62)
    chosen = generator(seed, "certified rows", number)
    risks = []
    for row in rows:
        index = slice(None) if subset is None else torch.randint(len(y), (subset,), generator=chosen)
        outputs = posterior.functions(row.unsqueeze(0), take(x, index))[0]
        losses = loss.losses(likelihood, outputs, y[index], posterior.layout.likelihood_views(row))
        if not bool(((losses >= 0) & (losses <= 1)).all()):
            raise ValueError(
                f"{loss!r} gave losses outside [0, 1], or nan: {losses.min().item():.4g} to "
                f"{losses.max().item():.4g}; no certificate speaks of such a loss"
            )
        risks.append(losses.double().mean().item())
    return np.array(risks)


def _mark(posterior: Posterior, loss: BoundedLoss, x: Any, y: Tensor, subset: int | None, seed: int) -> str:
    """What must be equal for draws to go on."""
    digest = hashlib.sha256(repr((loss, posterior.likelihood, subset, seed)).encode())
    digest.update(row_hashes(x, y).tobytes())
    for name, tensor in posterior.distribution.tensors().items():
        digest.update(name.encode() + tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(folder: Path, mark: str) -> NDArray[np.float64]:
    if not (folder / f"{_STEM}.json").is_file():
        return np.zeros(0)
    tensors, content = files.read_pair(folder, _STEM)
    if content.get("mark") != mark:
        raise ValueError(
            f"{folder} holds draws of another certificate (posterior, data, loss, subset or seed differ); "
            f"choose another folder or remove it"
        )
    return tensors["risks"].numpy()
