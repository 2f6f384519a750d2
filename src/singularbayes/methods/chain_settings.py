"""Settings of chains, shared by every method that samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import Model
from ..posterior import Posterior
from ..sampling.positive import check_positive
from ..sampling.sampler import Sampler
from .chains_fit import fit_chains
from .members import check_executor
from .settings import check_whole

__all__ = ["ChainSettings"]


@dataclass(frozen=True, kw_only=True)
class ChainSettings(ABC):
    """How many chains, how long, and where they run.

    Args:
        chains: of a fit of a network (``sb.sample`` runs one for each row of its start).
        warm_up: steps of each chain that are not kept, in which the sampler adapts.
        draws: kept, of EACH chain.
        thin: steps between kept draws.
        reinitialize: start each chain of a fit from an initialisation of its own; ``False`` starts all from
            the network's weights.
        executor: where groups of chains run, e.g. a ``ProcessPoolExecutor``; ``None`` runs one after the
            other. The numbers do not depend on it.
        group: chains that advance as one batch; ``None``: all of them.
        temperature: ``T`` of the likelihood in a fit, ``p(D | w)^(1/T) p(w)``; 1 is Bayes.
    """

    chains: int = 4
    warm_up: int = 500
    draws: int = 1000
    thin: int = 1
    reinitialize: bool = True
    executor: Executor | None = None
    group: int | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_whole(chains=self.chains, draws=self.draws, thin=self.thin)
        if isinstance(self.warm_up, bool) or not isinstance(self.warm_up, int) or self.warm_up < 0:
            raise ValueError(f"warm_up must be a whole number of at least 0, got {self.warm_up!r}")
        if self.group is not None:
            check_whole(group=self.group)
        check_positive(temperature=self.temperature)
        check_executor(self.executor)

    @abstractmethod
    def sampler(self) -> Sampler:
        """The kernel with these settings."""
        ...

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
        """Sample the posterior of the believed entries, on all data at every step.

        Point estimates (``deterministic=``, gains of normalisation layers) and a learned noise level stay as
        they are in the model: a noise level without a prior has no proper posterior beside weights that can
        interpolate. Statistics of normalisation layers are found once, at the network's weights, and stay.

        Args:
            model: network, likelihood, prior; untouched.
            train: ``(X, y)`` in memory, which is quickest, or a Dataset or batches that can be read again.
            validation: held-out data, for ``info["validation_nll"]``.
            seed: of starts and chains.
            checkpoint: folder to save to every few seconds and on an interrupt, and to go on from; more
                ``draws`` may be asked for there, and more ``chains`` where those that are there fill their
                groups (``group=1``).
            progress: show acceptance and divergences (``None``: on a terminal only).

        Returns:
            A posterior of ``chains * draws`` stored draws, step by step: draw ``n`` of chain ``c`` is row
            ``n * chains + c``. ``info`` has, of each chain, ``acceptance``, ``divergences``, ``gradients``
            and ``step_size``.

        Raises:
            ChainsStuck: no chain ever accepts a proposal; what was kept is saved.
            TypeError: no model; processes for what cannot be pickled.
            ValueError: bad data; a start without density; more draws than the memory holds.

        Warns:
            UserWarning: chains that never moved, low acceptance, many divergences, a noise level never set.
        """
        return fit_chains(
            self,
            model,
            train,
            validation,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
            temperature=self.temperature,
        )
