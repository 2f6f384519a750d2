"""Maximum a posteriori: the single best network.

    minimise  mean batch NLL - (T / N) log p(w)

``temperature=0`` is maximum likelihood. The posterior is one atom: its epistemic uncertainty is 0. Not an
inference method; the start of many.

References:
    MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import Model, check_model
from ..posterior import Posterior
from .learner import BuildPoint
from .training import Training, fit_learner

__all__ = ["MAP"]


@dataclass(frozen=True, kw_only=True)
class MAP(Training):
    """Maximum a posteriori, or maximum likelihood at ``temperature=0``. Fields: see ``Training``.

    It starts from the weights of ``model.network``.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> posterior = MAP(epochs=3).fit(model, (x, 2 * x))
        >>> posterior.predict(x).epistemic.max().item()
        0.0
    """

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
        """Train the network.

        Args:
            model: network, likelihood, prior; untouched.
            train: ``(X, y)``, a Dataset, or batches that can be iterated again.
            validation: held-out data for early stop and the log.
            seed: of data order and dropout.
            checkpoint: folder to save to and to go on from.
            progress: show a bar (``None``: on a terminal only).

        Returns:
            A posterior with one atom.

        Raises:
            ValueError: bad data or settings. TrainingDiverged: the loss became nan.
        """
        check_model(model)
        facts = {"method": type(self).__name__, "numbers": model.layout.trained}
        return fit_learner(
            model,
            self,
            BuildPoint(),
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            facts=facts,
        )
