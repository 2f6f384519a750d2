"""What every method begins with: the posterior's mean, what varies about it, and the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data import as_inputs, to_device
from ..distributions import StoredDraws
from ..model import takes_integers
from ..parameters import Slot
from ..posterior import Posterior
from .covariance import GAUSSIANS

__all__ = ["Given", "check_posterior", "given", "inputs_of"]

_ELSE = "posterior.predict(x) averages over draws for any posterior"


@dataclass(frozen=True, eq=False)
class Given:
    """Mean and variance ``(D,)``, the tensors that have a distribution, and the inputs in dtype and place."""

    mean: Tensor
    variance: Tensor
    varying: list[Slot]
    inputs: Any


def check_posterior(posterior: Any) -> None:
    """Refuse what is not one posterior."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"moments are those of one posterior, got a {type(posterior).__name__}"
                        + (f"; take one of its .members, or {_ELSE}" if hasattr(posterior, "members") else
                           ": fit one, such as LaplaceApproximation().fit(model, data)"))  # fmt: skip


def inputs_of(posterior: Posterior, x: Any) -> Any:
    """Inputs as ``posterior.predict`` takes them."""
    return to_device(as_inputs(x, posterior.dtype, takes_integers(posterior.network)), posterior.device)


def given(posterior: Posterior, x: Any, kinds: tuple[type[Any], ...] = GAUSSIANS) -> Given:
    """The beginning, once the distribution is one of these, or one atom.

    Raises:
        TypeError: another distribution.
    """
    check_posterior(posterior)
    distribution = posterior.distribution
    atom = isinstance(distribution, StoredDraws) and distribution.support == 1
    if not (isinstance(distribution, kinds) or atom):
        raise TypeError(
            f"moments without draws are those of one distribution of the kind "
            f"{', '.join(kind.kind for kind in kinds)}, this posterior is of the kind "
            f"{distribution.kind}; {_ELSE}"
        )
    mean, variance = distribution.mean.to(posterior.dtype), distribution.variance
    varying = [
        s for s in posterior.layout.slots
        if s.kind != "likelihood" and bool((variance[s.start : s.stop] > 0).any())
    ]  # fmt: skip
    return Given(mean, variance.to(mean), varying, inputs_of(posterior, x))
