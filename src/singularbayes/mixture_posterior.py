"""``MixturePosterior``: posteriors of any methods and architectures as one.

    p(y | x) = sum_m w_m p_m(y | x)

and ``p_m`` the mixture over the draws of posterior ``m``, so that mean, variance and the split of uncertainty
are those of one set of weighted draws: a disagreement of the posteriors is epistemic too.

References:
    Yao et al. 2018, arXiv 1704.02030, section 2 (averages of predictive distributions, not of predictions).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import checkpoint
from .calibration import Calibration, Temperature
from .data import as_source, gather
from .predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive, Predictive
from .random import derive
from .recalibrated import Recalibrated
from .saving import plain, refuse_another_kind
from .scaling import check_temperature
from .temperature import best_temperature

__all__ = ["MixturePosterior", "WholeLikelihood", "check_density", "pooled", "shared_out"]

FORMAT = 1
STEM = "mixture"
_KINDS = (BernoulliPredictive, CategoricalPredictive, GaussianPredictive)
_ROUNDING = 1e-6  # of a sum of weights
_OF_ONE_NETWORK = {"at_mean", "distribution", "draw", "functions", "layout", "merged", "network", "way"}


@dataclass(frozen=True)
class WholeLikelihood:
    """What the members' likelihoods have in common, and what was fitted for all together.

    Args:
        task: ``categorical``, ``bernoulli`` or ``gaussian``.
        temperature: on top of each member's own; fitted by ``calibrate``.
    """

    task: str
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


def check_density(number: int, likelihood: Any) -> None:
    """A member needs a density: isotonic intervals have none, and would not be those that it shows alone.

    Raises:
        ValueError: a member whose intervals were recalibrated.
    """
    if isinstance(likelihood, Recalibrated):
        raise ValueError(
            f"member {number} has isotonic intervals, which were moved apart from a density, and a mixture "
            f"pools densities. Join the member as it was before, and calibrate it by Temperature()"
        )


def shared_out(draws: int, supports: Sequence[int | None]) -> list[int]:
    """Draws of each member: an even split, at least one each, and of a finite posterior no more than it has.

    The members' weights are no part of it: they weigh the draws, and a small one needs draws as well.

    Example:
        >>> shared_out(64, [None, 1, None])  # one point estimate
        [32, 1, 31]
    """
    limits = [math.inf if support is None else support for support in supports]
    counts = [0] * len(limits)
    for _ in range(max(draws, len(limits))):
        room = [i for i, limit in enumerate(limits) if counts[i] < limit]
        if not room:
            break
        counts[min(room, key=counts.__getitem__)] += 1
    return counts


def pooled(predictives: Sequence[Predictive], weights: Sequence[float]) -> Predictive:
    """The predictive of the mixture: all draws side by side, a member's weight shared by its draws.

    Args:
        predictives: of the same inputs and of one task.
        weights: of each, with sum 1.

    Raises:
        ValueError: predictives of other classes or outputs, or without a density of their own.

    Example:
        >>> from singularbayes import GaussianPredictive
        >>> one = GaussianPredictive(torch.zeros(3, 1), torch.ones(3, 1))
        >>> two = GaussianPredictive(torch.ones(1, 1), torch.ones(1, 1))
        >>> pooled([one, two], [0.25, 0.75]).mean.item()
        0.75
    """
    first = predictives[0]
    for number, other in enumerate(predictives):
        if type(other) not in _KINDS:
            raise ValueError(
                f"member {number} predicts a {type(other).__name__}; a mixture pools the densities of class "
                f"probabilities and Gaussians"
            )
        if type(other) is not type(first) or _event(other) != _event(first):
            raise ValueError(
                f"member {number} predicts {_event(other)} ({type(other).__name__}) and member 0 "
                f"{_event(first)} ({type(first).__name__}) for each input; the members of a mixture predict "
                f"the same classes or numbers"
            )
    shares = []
    for weight, predictive in zip(weights, predictives, strict=True):
        own, count = predictive.weights, predictive.draws
        equal = torch.full((count,), weight / count, dtype=torch.float64)
        shares.append(equal if own is None else weight * own.double().cpu())
    share = torch.cat(shares)
    equal = bool((share == share[0]).all())  # an ensemble's members: the numbers of an unweighted predictive
    device = next(iter(_tensors(first).values())).device
    together = {name: torch.cat([_tensors(part)[name].to(device) for part in predictives])
                for name in _tensors(first)}  # fmt: skip
    return _like(first, together, None if equal else share.to(device))


def _event(predictive: Predictive) -> str:
    tensor = next(iter(_tensors(predictive).values()))
    shape = tuple(tensor.shape[2:])
    if isinstance(predictive, CategoricalPredictive):
        return f"{shape[0]} classes"
    return "one number" if not shape else f"numbers of shape {shape}"


def _tensors(predictive: Predictive) -> dict[str, Tensor]:
    names = [field.name for field in dataclasses.fields(predictive) if field.name != "weights"]
    return {name: getattr(predictive, name) for name in names}


def _like(predictive: Predictive, tensors: Mapping[str, Tensor], weights: Tensor | None) -> Predictive:
    """The same kind of predictive, of other draws."""
    return type(predictive)(**tensors, weights=weights)


class MixturePosterior:
    """Fitted posteriors with weights: one predictive, by the law of total variance.

    The members may be of any methods and architectures, ensembles and mixtures too. They are of one task and
    predict ``y`` in the same units; their likelihoods may differ, and each keeps the temperature that it was
    calibrated to. The mixture has no vector of weights of its own, hence no ``draw`` and no ``functions``:
    ask a member for its own.

    Args:
        members: posteriors, or anything with ``predict(x, draws, seed, batch_size)``, ``support``,
            ``likelihood.task`` and ``info``.
        weights: of the members, 0 or more, with sum 1. A member of weight 0 is kept and not predicted with.
        info: plain facts, as a posterior's.
        temperature: of the whole, see :meth:`calibrate`.

    Raises:
        ValueError: no member, other tasks, isotonic intervals, weights that are negative or do not sum to 1.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> fits = [method.fit(model, (x, x)) for method in (sb.MAP(epochs=2), sb.MeanField(epochs=2))]
        >>> MixturePosterior(fits, [0.5, 0.5]).predict(x, draws=8)
        GaussianPredictive(8 draws, 32 rows)
    """

    def __init__(
        self,
        members: Sequence[Any],
        weights: Sequence[float],
        info: Mapping[str, Any] | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.members = tuple(members)
        self.weights = tuple(float(weight) for weight in weights)
        if not self.members:
            raise ValueError("a mixture needs at least one member, got none")
        _check(self.weights, len(self.members))
        tasks = [member.likelihood.task for member in self.members]
        if len(set(tasks)) > 1:
            raise ValueError(
                f"the members' tasks are {', '.join(tasks)}; a mixture is of posteriors of one task"
            )
        for number, member in enumerate(self.members):
            check_density(number, member.likelihood)
        self.likelihood = WholeLikelihood(tasks[0], temperature)
        self.info = dict(info or {})
        dtypes = [getattr(member, "dtype", torch.float32) for member in self.members]
        self.dtype = torch.float64 if torch.float64 in dtypes else dtypes[0]

    def __repr__(self) -> str:
        parts = [
            f"{weight:.3g} {member.info.get('method', type(member).__name__)}"
            for weight, member in zip(self.weights, self.members, strict=True)
        ]
        temperature = self.likelihood.temperature
        at = "" if temperature == 1 else f" at temperature {temperature:.3g}"
        return f"MixturePosterior({', '.join(parts)}{at})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_ONE_NETWORK:
            raise AttributeError(
                f"a mixture of posteriors has no {name}: its members may be different networks, so they "
                f"share no vector of weights. Use predict(x), whose draws are of all members, or "
                f".members[0].{name} of one of them"
            )
        raise AttributeError(f"MixturePosterior has no attribute {name!r}")

    @property
    def support(self) -> int | None:
        """How many distinct draws there are; ``None`` where there is no end of them."""
        supports = [member.support for _, _, member in self._counting()]
        return None if None in supports else sum(supports)

    def _counting(self) -> list[tuple[int, float, Any]]:
        """Number, weight and member of all whose weight is not 0."""
        pairs = zip(self.weights, self.members, strict=True)
        return [(number, weight, member) for number, (weight, member) in enumerate(pairs) if weight > 0]

    @torch.no_grad()
    def predict(self, x: Any, draws: int = 64, seed: int = 0, batch_size: int | None = None) -> Predictive:
        """The predictive of new inputs, its draws weighted.

        Args:
            x: inputs, rows first, of a form that every member's network takes.
            draws: of all members together: an even split, each at least one, and a finite posterior (a point
                estimate, an ensemble) no more than it has; the others have what it leaves.
            seed: of the draws; every member has its own from it.
            batch_size: rows of ``x`` at a time; it does not change the draws.

        Raises:
            ValueError: no rows, shapes that do not fit, members that predict other classes or outputs.
        """
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        counting = self._counting()
        counts = shared_out(draws, [member.support for _, _, member in counting])
        parts = [
            member.predict(x, draws=count, seed=derive(seed, "member", number), batch_size=batch_size)
            for count, (number, _, member) in zip(counts, counting, strict=True)
        ]
        whole = pooled(parts, [weight for _, weight, _ in counting])
        temperature = self.likelihood.temperature
        return whole if temperature == 1 else whole.tempered(temperature)

    def calibrate(
        self, validation: Any, by: Calibration | None = None, draws: int = 64, seed: int = 0
    ) -> MixturePosterior:
        """A new mixture with the temperature that minimises its validation NLL; the weights stay.

        One temperature for all, on top of each member's own: for classes the logits of every draw of every
        member are divided by it before they are averaged, whatever the networks; for numbers the total
        variance of the mixture is multiplied by it about the mixture's mean. To calibrate each member by
        itself, calibrate it before it joins.

        Args:
            validation: ``(X, y)``, a Dataset or batches; not the test set.
            by: :class:`.Temperature`, the only one that a mixture has: ``VectorScaling`` fits the logits of
                one network, and isotonic intervals are of one.
            draws: posterior draws.
            seed: of the draws.

        Raises:
            TypeError: ``by`` is another calibration.
            ValueError: no labels.

        Warns:
            UserWarning: as :meth:`.Posterior.calibrate`.
        """
        if by is not None and not isinstance(by, Temperature):
            raise TypeError(
                f"a mixture is calibrated by Temperature(), got {by!r}. VectorScaling() fits the logits of "
                f"one network: calibrate each member by it, then join them. For intervals with a guarantee "
                f"use conformal_intervals(mixture, ...)"
            )
        held = gather(as_source(validation, self.dtype, integers=True))
        if held.y is None:
            raise ValueError("calibration needs labels: pass (X, y)")
        base = MixturePosterior(self.members, self.weights, self.info)
        found, labels = base.predict(held.x, draws, seed), held.y
        tensors = {name: tensor.double() for name, tensor in _tensors(found).items()}
        predictive = _like(found, tensors, found.weights)  # float32 leaves the flat valley's floor open
        temperature = best_temperature(
            lambda t: -predictive.tempered(t).log_prob(labels).mean().item(),
            self.likelihood.task,
            stacklevel=3,
        )
        return MixturePosterior(
            self.members,
            self.weights,
            {**self.info, "temperature": temperature, "calibration": Temperature.__name__},
            temperature,
        )

    def to(self, device: torch.device | str) -> MixturePosterior:
        """The same mixture on another device."""
        members = [member.to(device) for member in self.members]
        return MixturePosterior(members, self.weights, self.info, self.likelihood.temperature)

    def save(self, folder: str | Path) -> None:
        """Write ``mixture.json`` and a folder for each member to ``folder``; read it with ``sb.load``.

        The mixture is written whole or not at all: a run that is killed leaves the one of before.

        Raises:
            ValueError: the folder holds a posterior of one network.
        """
        folder = Path(folder)
        refuse_another_kind(folder, STEM)
        folder.mkdir(parents=True, exist_ok=True)
        names = [_save_member(folder, number, member) for number, member in enumerate(self.members)]
        content = {
            "format": FORMAT,
            "library": "singularbayes",
            "members": names,
            "weights": list(self.weights),
            "temperature": self.likelihood.temperature,
            "info": plain(self.info),
        }
        checkpoint.write_json(folder / f"{STEM}.json", content)
        for stale in folder.glob(f"member-*-{'[0-9a-f]' * 12}"):
            if stale.name not in names:
                shutil.rmtree(stale, ignore_errors=True)


def _check(weights: Sequence[float], members: int) -> None:
    if len(weights) != members:
        raise ValueError(f"got {len(weights)} weights for {members} members; expected one each")
    if not all(weight >= 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"weights must be finite and 0 or more, got {list(weights)}")
    if abs(sum(weights) - 1) > _ROUNDING:
        raise ValueError(
            f"the weights {list(weights)} sum to {sum(weights):g}, expected 1; divide them by it"
        )


def _save_member(folder: Path, number: int, member: Any) -> str:
    """The member in a folder whose name holds a digest of its files, there whole or not at all."""
    for left in folder.glob(f".member-{number}.*.part"):  # of a writer that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder / f".member-{number}.{os.getpid()}.part"
    try:
        member.save(temporary)
        digest = hashlib.sha256()
        for file in sorted(path for path in temporary.rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(temporary)).encode())
            digest.update(file.read_bytes())
        name = f"member-{number}-{digest.hexdigest()[:12]}"
        if not (folder / name).exists():
            temporary.replace(folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return name
