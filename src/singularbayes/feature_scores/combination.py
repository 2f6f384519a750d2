"""A combination of scores, chosen on validation data that are never scored.

    score(x) = sum_j w_j (s_j(x) - m_j) / d_j,   w by logistic regression of OOD against in-distribution rows

Both kinds weigh half, whatever their numbers; m and d are the mean and standard deviation over the fitting
rows under these weights. Scores of very different tails are best given on a log scale.

References:
    Lee et al. 2018, arXiv 1807.03888, section 2.2 (logistic regression over scores).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ..data import as_inputs
from ..evaluation.data import Reader

__all__ = ["Combination", "FittedCombination", "InputScore"]


@runtime_checkable
class InputScore(Protocol):
    """Anything that scores inputs, higher for more out-of-distribution."""

    def score(self, x: Any) -> Tensor:
        """Scores ``(B,)`` of inputs."""
        ...


@dataclass(frozen=True, eq=False)
class FittedCombination:
    """What :class:`Combination` fitted.

    Args:
        scores: name -> score.
        weights: name -> weight of the standardised score.
        means: name -> mean on the fitting rows.
        stds: name -> standard deviation there.
        max_shared: share of scored rows that may be fitting rows.
        fitted_on: digests of the fitting rows.
        inside: scores of the in-distribution fitting rows: choose a threshold on these.
        outside: scores of the OOD fitting rows.
    """

    scores: Mapping[str, InputScore]
    weights: dict[str, float]
    means: dict[str, float]
    stds: dict[str, float]
    max_shared: float
    fitted_on: frozenset[bytes]
    inside: Float[Tensor, " n"]
    outside: Float[Tensor, " m"]

    def __repr__(self) -> str:
        terms = " + ".join(f"{weight:.3g} {name}" for name, weight in self.weights.items())
        return f"FittedCombination({terms})"

    def score(self, x: Any) -> Float[Tensor, " B"]:
        """The combined score; higher is more out-of-distribution.

        Raises:
            ValueError: more than ``max_shared`` of the rows were fitted on: a number on them would flatter.
        """
        inputs = as_inputs(x, torch.float64, integers=True)
        digests = list(_digests(inputs))
        shared = sum(digest in self.fitted_on for digest in digests)
        if shared > self.max_shared * len(digests):
            raise ValueError(
                f"{shared} of {len(digests)} rows are among those that the combination was chosen on; score "
                f"other data, or set max_shared if rows repeat by chance (scores of the fitting rows: "
                f".inside and .outside)"
            )
        return _combine({name: _values(name, rule, inputs) for name, rule in self.scores.items()}, self)


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Several scores in one, weighted by logistic regression on a validation OOD set.

    The set must be of another kind than those that are scored later, or the result says how well this OOD
    kind can be learned, not how well strange inputs are found.

    Args:
        penalty: strength of the L2 penalty on the weights, per fitting row; above 0.
        max_shared: share of the rows of a later set that may be fitting rows before it is refused; above 0
            for discrete data whose rows repeat by chance.

    Example:
        >>> from singularbayes.feature_scores import Inputs, Mahalanobis, NearestNeighbours
        >>> x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> scores = {
        ...     "mahalanobis": Mahalanobis().fit(Inputs(), x[:100]),
        ...     "neighbours": NearestNeighbours(k=5, normalize=False).fit(Inputs(), x[:100]),
        ... }
        >>> combined = Combination().fit(scores, inside=x[100:200], outside=4 + x[100:200])
        >>> bool(combined.score(4 + x[200:]).mean() > combined.score(x[200:]).mean())
        True
    """

    penalty: float = 1e-3
    max_shared: float = 0.0

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise ValueError(
                f"penalty must be above 0, got {self.penalty}: separated sets have no other optimum"
            )
        if not 0 <= self.max_shared < 1:
            raise ValueError(f"max_shared is a share in [0, 1), got {self.max_shared}")

    def fit(self, scores: Mapping[str, InputScore], inside: Any, outside: Any) -> FittedCombination:
        """Choose the weights.

        Args:
            scores: name -> object with ``score(x)``: fitted feature scores, :class:`.PosteriorScore`, ...
            inside: in-distribution validation data (not training rows: their distances are too small).
            outside: validation OOD data.

        Raises:
            ValueError: no scores, a score that is constant, or rows that are both inside and outside.
        """
        if not scores:
            raise ValueError("scores is empty; expected name -> object with score(x)")
        reader = Reader(torch.float64, integers=True)
        data = [reader.read(part).x for part in (inside, outside)]
        digests = [frozenset(_digests(part)) for part in data]
        both = digests[0] & digests[1]
        if len(both) > self.max_shared * min(map(len, digests)):
            raise ValueError(f"{len(both)} rows are both inside and outside; expected two different sets")
        columns = [{name: _values(name, rule, part) for name, rule in scores.items()} for part in data]
        counts = [len(next(iter(part.values()))) for part in columns]
        sample = torch.cat([torch.full((count,), 0.5 / count, dtype=torch.float64) for count in counts])
        means, stds, table = {}, {}, []
        for name in scores:
            values = torch.cat([part[name] for part in columns])
            means[name] = float(sample @ values)
            stds[name] = float((sample @ (values - means[name]).square()).sqrt())
            if not stds[name] > 1e-12 * (1 + abs(means[name])):
                raise ValueError(f"score {name!r} is the same for all fitting rows; leave it out")
            table.append((values - means[name]) / stds[name])
        target = np.repeat([0, 1], counts)
        model = LogisticRegression(C=1 / (self.penalty * len(target)), max_iter=1000, tol=1e-8)
        model.fit(torch.stack(table, 1).numpy(), target, sample_weight=sample.numpy() * len(target))
        weights = dict(zip(scores, map(float, model.coef_[0]), strict=True))
        fitted = FittedCombination(
            dict(scores), weights, means, stds, self.max_shared, digests[0] | digests[1],
            torch.empty(0), torch.empty(0),
        )  # fmt: skip
        for name, part in zip(("inside", "outside"), columns, strict=True):
            object.__setattr__(fitted, name, _combine(part, fitted))
        return fitted


def _combine(values: Mapping[str, Tensor], fitted: FittedCombination) -> Tensor:
    terms = [
        fitted.weights[name] * (column - fitted.means[name]) / fitted.stds[name]
        for name, column in values.items()
    ]
    return torch.stack(terms).sum(0)


def _values(name: str, rule: InputScore, x: Any) -> Tensor:
    values = torch.as_tensor(rule.score(x)).detach().double().cpu()
    if values.dim() != 1 or not bool(torch.isfinite(values).all()):
        raise ValueError(f"score {name!r} gave shape {tuple(values.shape)}, finite: "
                         f"{bool(torch.isfinite(values).all())}; expected (B,) finite numbers")  # fmt: skip
    return values


def _digests(x: Any) -> Iterator[bytes]:
    """A digest of each row, the same for float32 and float64 data."""
    parts = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple) else [x]
    arrays = [(part.reshape(len(part), -1).float() + 0.0).cpu().numpy() for part in parts]  # -0 is 0
    for rows in zip(*arrays, strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for row in rows:
            digest.update(np.ascontiguousarray(row).tobytes())
        yield digest.digest()
