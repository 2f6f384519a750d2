"""Stochastic gradient HMC: settings for users; the kernel is :mod:`singularbayes.sampling.sghmc`."""

from __future__ import annotations

from dataclasses import dataclass

from ..sampling.sghmc import SGHMCSampler
from ..sampling.step_sequences import Constant, Cyclical, StepSizes
from ..sampling.stochastic import AllData
from .chain_settings import ChainSettings
from .minibatches import Minibatches

__all__ = ["SGHMC"]


@dataclass(frozen=True, kw_only=True)
class SGHMC(ChainSettings):
    """Stochastic gradient Hamiltonian Monte Carlo: the one sampler here that may see minibatches.

        dv = grad log p(w) dt - c v dt + sqrt(2 c) dW,    dw = v dt

    Gradients are of the SUM over all ``N`` data plus the prior; from a batch of ``B`` they are scaled by ``N
    / B``. It never rejects: draws follow the posterior up to a bias that goes to 0 with the step size, of
    order ``step_size^2``, and with minibatches of order ``step_size * V / friction`` besides, ``V`` the
    variance of the gradient: of order ``N^2 / B``. ``facts["kinetic_temperature"]`` far above 1 says that it
    is too hot: lower the step size, or raise friction or batch size. It is NOT adaptive: the step size is
    yours to choose.

    Args:
        step_size: ``h``, a number, or ``Decaying(...)`` or ``Cyclical(...)``. It must be below ``2 /
            sqrt(k)``, ``k`` the largest curvature of ``-log p``, which grows with the data.
        friction: ``c``, one over time. ``step_size * friction`` is what a step forgets of its momentum
            (Chen's ``alpha``).
        batch_size: examples of a gradient; ``None`` takes all data.
        estimate_noise: learn the variance of the minibatch gradients in warm-up, entry by entry, and leave
            that much out of the friction's noise.

    References:
        Chen, Fox and Guestrin 2014, arXiv 1402.4102.
    """

    step_size: float | StepSizes = 1e-3
    friction: float = 10.0
    batch_size: int | None = None
    estimate_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimate_noise and self.warm_up == 0:
            raise ValueError("estimate_noise=True learns in warm-up: give warm_up of at least 1")
        if isinstance(self.step_size, Cyclical):
            period = self.step_size.period
            for name in ("warm_up", "thin"):
                if getattr(self, name) % period:
                    raise ValueError(
                        f"{name} must be a multiple of the cycle's period {period}, so that draws are kept "
                        f"at the ends of cycles, where the steps are small; got {getattr(self, name)}"
                    )
        self.sampler()  # its parts check themselves

    def sampler(self) -> SGHMCSampler:
        """The kernel with these settings."""
        sizes = self.step_size if isinstance(self.step_size, StepSizes) else Constant(self.step_size)
        gradient = AllData() if self.batch_size is None else Minibatches(self.batch_size)
        return SGHMCSampler(
            step_sizes=sizes, friction=self.friction, gradient=gradient, estimate_noise=self.estimate_noise
        )
