"""Mean-field variational inference over the flat vector; on a factorised network, the singular posterior.

    minimise  E_q[mean batch NLL] + (T / N) KL(q || p),    q = prod_i Normal(mean_i, softplus(rho_i)^2)

One draw of all weights a step, or a cheaper estimate of the same gradient (``Gradient``). What is trained,
and how a step's gradient comes about: :mod:`.diagonal`.

References:
    Blundell et al. 2015, arXiv 1505.05424, section 3.2. arXiv 2602.00387, algorithm 1 (on factors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..divergence import KL, Family, estimator_for, has_closed_form
from ..model import BlockPrior, Model, check_model
from ..posterior import Posterior
from .diagonal import Gradient, MeanFieldLearner, is_learned
from .learner import Bound, warn_if_collapsed
from .settings import check_whole
from .training import Training, fit_learner
from .warm_up import check_warm_up, share_of_kl

__all__ = ["Gradient", "MeanField"]


@dataclass(frozen=True)
class BuildMeanField:
    """Makes a :class:`MeanFieldLearner`."""

    method: MeanField

    def size(self, model: Model) -> int:
        return (
            model.layout.trained + model.layout.belief + 3 * sum(is_learned(p) for _, p in model.prior_blocks)
        )

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> MeanFieldLearner:
        return MeanFieldLearner(self.method, bound, start, gradient)


@dataclass(frozen=True, kw_only=True)
class MeanField(Training):
    """Mean-field VI (Bayes by Backprop).

    On ``sb.factorize``'s network it is the singular posterior of arXiv 2602.00387.

    It starts at the weights of ``model.network``. Other fields: see ``Training``.

    Args:
        kl: estimator of the KL: ``closed`` (Normal and Laplace priors), ``monte_carlo`` (one sample; any
            prior), ``bound`` (deterministic upper bound). ``None``: closed where it exists, else Monte Carlo;
            for embedding tables that are not tied closed or the bound, so that a step draws no more rows than
            it looks up (a learned prior needs Monte Carlo, which draws all rows; ``compile`` draws all rows
            too, and takes the same KL).
        kl_start: epochs without KL at the start.
        kl_full: epoch at which the KL's weight has grown to its full size, in a line from ``kl_start``.
        family: ``gaussian`` or ``laplace`` q.
        initial_std: start standard deviation in units of each tensor's own root mean square.
        validation_draws: posterior draws of the validation NLL.
        gradient: how a step estimates its gradient: ``draw``, ``local`` (linear layers, Gaussian q) or
            ``antithetic`` (two passes a step). The last two need ``closed`` or ``bound``, their default KL.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> layers = torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        >>> net = sb.factorize(torch.nn.Sequential(*layers), rank={"2": 2})
        >>> posterior = MeanField(epochs=2).fit(
        ...     sb.Model(net, sb.Gaussian(noise=0.1), prior=sb.ScaleMixture()), (x, x)
        ... )
        >>> posterior.predict(x, draws=16).epistemic.shape
        torch.Size([32])
    """

    kl: KL | None = None
    kl_start: float = 0.0
    kl_full: float = 0.0
    family: Family = Family.GAUSSIAN
    initial_std: float = 0.1
    validation_draws: int = 8
    gradient: Gradient = Gradient.DRAW

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "family", Family(self.family))
        object.__setattr__(self, "kl", None if self.kl is None else KL(self.kl))
        object.__setattr__(self, "gradient", Gradient(self.gradient))
        if self.gradient is not Gradient.DRAW and self.kl is KL.MONTE_CARLO:
            raise ValueError(
                f"gradient={self.gradient.value!r} has no one draw of the weights to take "
                f"kl=sb.KL.MONTE_CARLO at; use kl=None, sb.KL.CLOSED or sb.KL.BOUND"
            )
        if self.gradient is Gradient.LOCAL and (self.family is not Family.GAUSSIAN or self.compile):
            raise ValueError(
                "gradient='local' needs family='gaussian' (sums of other noise have another form) and "
                "compile=False"
            )
        if not (self.initial_std > 0 and math.isfinite(self.initial_std)):
            raise ValueError(f"initial_std must be positive and finite, got {self.initial_std}")
        check_warm_up(self.kl_start, self.kl_full)
        check_whole(validation_draws=self.validation_draws)

    def warm_up(self, progress: float) -> float:
        """Share of the KL's weight after ``progress`` epochs."""
        return share_of_kl(progress, self.kl_start, self.kl_full)

    def estimator(self, prior: BlockPrior) -> KL:
        """The KL estimator for one block's prior."""
        if is_learned(prior) and (self.kl is KL.BOUND or self.gradient is not Gradient.DRAW):
            raise ValueError(
                "a learned ScaleMixture needs kl=sb.KL.MONTE_CARLO and gradient=sb.Gradient.DRAW"
            )
        if self.kl is None and self.gradient is not Gradient.DRAW and not has_closed_form(prior):
            return KL.BOUND
        return estimator_for(prior, self.kl)

    def table_estimator(self, prior: BlockPrior) -> KL:
        """The KL estimator for an embedding table: by default one that needs no draw of every row."""
        if self.kl is not None or has_closed_form(prior) or is_learned(prior):
            return self.estimator(prior)
        return KL.BOUND

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
        """Fit the variational posterior. Arguments, returns and errors: see ``MAP.fit``."""
        check_model(model)
        for _, prior in model.prior_blocks:
            self.estimator(prior)  # refused before any work
        layout = model.layout
        facts = {"method": type(self).__name__, "numbers": layout.trained + layout.belief}
        posterior = fit_learner(
            model,
            self,
            BuildMeanField(self),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            validation_draws=self.validation_draws,
            facts=facts,
        )
        advice = "raise temperature or initial_std, or check that the KL is on (kl_start)"
        warn_if_collapsed(posterior, advice)
        return posterior
