"""Microcanonical Langevin Monte Carlo: settings for users of :mod:`singularbayes.sampling.mclmc`."""

from __future__ import annotations

from dataclasses import dataclass

from ..sampling.mclmc import MCLMCSampler
from .chain_settings import ChainSettings

__all__ = ["MCLMC"]


@dataclass(frozen=True, kw_only=True)
class MCLMC(ChainSettings):
    """Microcanonical Langevin Monte Carlo: no rejections, two gradients of ALL data a step, a small bias.

    A particle of constant speed whose direction the gradient turns and noise refreshes. Its step size and
    length are each chain's own; warm-up tunes them. Draws follow the posterior up to the integrator's error:
    smaller steps, smaller bias, never exactly 0. It is NOT a method to check others by: use NUTS for that.

    The default ``energy_variance`` is the one that its authors use for networks, where it is the quickest. On
    round Gaussians it makes variances 6 to 8% too small; where scales differ by 100 that of the narrowest
    direction comes out 40% too small (30% with ``diagonal=True``). For accuracy give
    ``energy_variance=1e-5`` (a third of the step size, less than 1% of the variance), or ``step_size`` of at
    most half the square root of the dimension times the posterior's scale.

    Args:
        step_size: ``eps``, in the units of the parameters; ``None`` tunes it.
        length: ``L``, the way after which a direction is forgotten; ``None`` tunes it.
        energy_variance: ``E dE^2 / d`` that the step size is tuned to in the end of warm-up; it starts at
            five times that.
        diagonal: run in coordinates of equal variance; for parameters of very different scales. It takes more
            of the warm-up: give at least 1000 steps.

    References:
        Robnik et al. 2023, arXiv 2212.08549 and 2303.18221; Sommer et al. 2025, arXiv 2502.06335 (on
        networks).
    """

    step_size: float | None = None
    length: float | None = None
    energy_variance: float = 0.1
    diagonal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up == 0 and (self.step_size is None or self.length is None or self.diagonal):
            raise ValueError(
                "step size, length and scales are tuned in warm-up: give warm_up of at least 1 (100 is "
                "sensible), or step_size and length"
            )
        self.sampler()  # its parts check themselves

    def sampler(self) -> MCLMCSampler:
        """The kernel with these settings."""
        return MCLMCSampler(
            step_size=self.step_size,
            length=self.length,
            energy_variance=self.energy_variance,
            diagonal=self.diagonal,
        )
