"""``PACBayes``: mean-field training to a PAC-Bayes bound, so that the posterior's certificate is tight.

    minimise  bound(Lhat(q), KL(q || p), n, delta),    q = prod_i Normal(mean_i, softplus(rho_i)^2)

``Lhat`` is a bounded loss (clamped cross-entropy) at one draw of the weights on the batch. With ``u`` and
``v`` the bound's derivatives for ``Lhat`` and KL there, a step's gradient is ``u grad Lhat + v grad KL``,
that of ``MeanField`` at the temperature ``n v / u``, which follows the loss and the KL as they fall.

References:
    Perez-Ortiz et al. 2021, arXiv 2007.12911, section 4 (objectives), 6 (data-dependent priors).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..bounded_losses import BoundedCrossEntropy, BoundedLoss, ZeroOne
from ..bounds import Objective, Quadratic, check_confidence
from ..centred import Centred
from ..divergence import KL, Family, estimator_for, has_closed_form
from ..model import BlockPrior, Model, check_model
from ..posterior import Posterior
from .bounded import Bounded
from .diagonal import Gradient, MeanFieldLearner, inverse_softplus, is_learned
from .learner import Bound
from .settings import Training, check_whole
from .training import TrainingDiverged, fit_learner

__all__ = ["PACBayes"]


class BoundLearner(MeanFieldLearner):
    """The mean-field learner, whose KL has the weight that the bound gives it at each step."""

    def __init__(self, method: PACBayes, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        super().__init__(method, bound, start, gradient)
        self.pac, likelihood = method, bound.model.likelihood
        assert isinstance(likelihood, Bounded)  # noqa: S101 - fit made it
        self.recent = likelihood.recent
        prior = bound.model.prior
        if isinstance(prior, Centred):
            std = method.initial_share * prior.std.to(self.rho)
            self.rho.copy_(inverse_softplus(std))

    def draw(self, noise: torch.Generator) -> None:
        self.recent.clear()
        super().draw(noise)

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        num_data = self.bound.num_data
        n = self.pac.certified or num_data
        loss, kl = sum(t.item() for t in self.recent) / len(self.recent), self.regulariser()
        if not (math.isfinite(loss) and math.isfinite(kl)):
            self.gradient.fill_(math.nan)  # the loop stops at it and says where
            return
        by_loss, by_kl = self.pac.objective.slopes(min(loss, 1.0), max(kl, 0.0), n, self.pac.delta)
        super().finish(weight * num_data * by_kl / by_loss, progress)
        self.gradient.mul_(by_loss)

    def facts(self) -> dict[str, Any]:
        """The KL at the end, in nats."""
        return {"kl": self.regulariser()}


@dataclass(frozen=True)
class BuildBound:
    """Makes a :class:`BoundLearner`."""

    method: PACBayes

    def size(self, model: Model) -> int:
        return model.layout.trained + model.layout.belief

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> BoundLearner:
        return BoundLearner(self.method, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class PACBayes(Training):
    """Mean-field training to a PAC-Bayes bound; certify the result with ``sb.theory.certify``.

    It starts at the weights of ``model.network``; under a ``Centred`` prior with its standard deviations,
    else as ``MeanField``. Other fields: see ``Training``; ``temperature`` multiplies the KL (1 is the bound).

    Args:
        objective: ``Quadratic()``, or ``Lambda()`` (the same at its best number, else of a fixed one).
        loss: bounded and with a gradient: ``BoundedCrossEntropy(p_min)``, of a regression
            ``ClippedLoss(limit)``.
        delta: failure probability of the bound that is trained.
        certified: number of points that will be certified, where it is not that of the training data.
        initial_share: start standard deviation in units of a ``Centred`` prior's.
        initial_std: start standard deviation under another prior, in units of each tensor's own root mean
            square.
        validation_draws: posterior draws of the validation NLL.
        gradient: how a step estimates its gradient; see ``MeanField``.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 2), sb.Categorical())
        >>> posterior = PACBayes(epochs=2).fit(model, (x, (x[:, 0] > 0).long()))
        >>> posterior.info["kl"] >= 0
        True
    """

    objective: Objective = Quadratic()  # noqa: RUF009 - frozen, without fields
    loss: BoundedLoss = field(default_factory=BoundedCrossEntropy)
    delta: float = 0.025
    certified: int | None = None
    initial_share: float = 1.0
    initial_std: float = 0.1
    validation_draws: int = 8
    gradient: Gradient = Gradient.DRAW

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gradient", Gradient(self.gradient))
        check_confidence(delta=self.delta)
        for name in ("initial_share", "initial_std"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        check_whole(validation_draws=self.validation_draws)
        if self.certified is not None:
            check_whole(certified=self.certified)
        if isinstance(self.loss, ZeroOne):
            raise TypeError(
                "the 0-1 loss has no gradient to train by; train with loss=BoundedCrossEntropy(p_min), and "
                "certify the 0-1 loss"
            )
        if not isinstance(self.objective, Objective):
            raise TypeError(
                f"objective must have slopes to follow: Quadratic() or Lambda(), got {self.objective!r}; the "
                f"certificate may use another bound"
            )

    @property
    def family(self) -> Family:
        """Gaussian: its draws have a closed gradient and its KL a closed form."""
        return Family.GAUSSIAN

    def warm_up(self, progress: float) -> float:
        """The bound is the objective from the first step on."""
        return 1.0

    def estimator(self, prior: BlockPrior) -> KL:
        """Closed, or the upper bound: what is certified is what is trained."""
        if is_learned(prior):
            raise ValueError("a learned ScaleMixture sees the data, and then no bound holds; use a fixed one")
        return estimator_for(prior, None if has_closed_form(prior) else KL.BOUND)

    def table_estimator(self, prior: BlockPrior) -> KL:
        """The same for embedding tables."""
        return self.estimator(prior)

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Fit the posterior to the bound. Arguments, returns and errors: see ``MAP.fit``."""
        check_model(model)
        self.loss.check(model.likelihood)
        for _, prior in model.prior_blocks:
            self.estimator(prior)  # refused before any work
        trained = copy.copy(model)
        trained.likelihood = Bounded(model.likelihood, self.loss)  # type: ignore[assignment]
        facts = {"method": type(self).__name__, "numbers": model.layout.trained + model.layout.belief}
        try:
            posterior = fit_learner(
                trained,
                self,
                BuildBound(self),
                train,
                validation,
                seed=seed,
                checkpoint=checkpoint,
                progress=progress,
                validation_draws=self.validation_draws,
                facts=facts,
            )
        except TrainingDiverged as error:
            error.posterior = _with_likelihood(error.posterior, model)
            raise
        return _with_likelihood(posterior, model)


def _with_likelihood(posterior: Posterior, model: Model) -> Posterior:
    return Posterior(
        posterior.network, posterior.distribution, model.likelihood, posterior.layout, posterior.info
    )
