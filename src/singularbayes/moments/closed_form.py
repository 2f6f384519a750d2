"""Moments of a network's outputs where they are exact: outputs affine in Gaussian weights.

    f(x; w) = f(x; m) + J(x) (w - m),  w ~ N(mu, Sigma):   mean f(x; mu),   covariance J Sigma J^T

So for linearised networks (there ``J`` is taken at their point ``m``), and where the last layer alone has a
distribution.

References:
    Immer et al. 2021, arXiv 2008.08216, section 3 (the GLM predictive). Kristiadi et al. 2020, arXiv
    2002.10118 (last layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..curvature.jacobian import Jacobian
from ..data import take
from ..nn.linearized import Linearized, linearization_point, linearized_network
from ..posterior import Posterior
from .affine import is_affine
from .delta import propagated
from .outputs import Moments
from .rows import Given, given

__all__ = ["ClosedForm", "NotAffineError"]

_ELSE = (
    "Propagation() and Delta() approximate the moments, and posterior.predict(x) averages over draws, "
    "for any posterior"
)


class NotAffineError(ValueError):
    """Outputs that are not affine in the weights."""


@dataclass(frozen=True)
class ClosedForm:
    """Exact moments: Gaussian posteriors whose outputs are affine in the weights that have a distribution.

    So those of a linearised network, or of the last layer alone. Each input takes a backward pass for each of
    its ``K`` outputs; memory does not grow with the number of inputs, but for ``(B, K, K)``.
    """

    @torch.no_grad()
    def moments(self, posterior: Posterior, x: Any) -> Moments:
        """Mean and covariance at each input.

        Args:
            posterior: Gaussian (diagonal, low rank plus diagonal, full, Kronecker), or one atom.
            x: inputs, as for ``posterior.predict``.

        Raises:
            TypeError: a distribution that is no Gaussian.
            ValueError: outputs that are not affine in the weights.
        """
        at = given(posterior, x)
        odd = [slot.name for slot in at.varying if slot.kind != "belief"]
        if odd:
            raise NotAffineError(f"{odd[0]} has a distribution, and outputs are not affine in it; {_ELSE}")
        jacobian = _jacobian(posterior, at) if at.varying else None
        return propagated(posterior, at, jacobian, {"method": "ClosedForm", "exact": True})


def _jacobian(posterior: Posterior, at: Given) -> Jacobian:
    network, layout, mean, varying = posterior.network, posterior.layout, at.mean, at.varying
    if isinstance(network, Linearized):
        point = linearization_point(network)
        loose = [slot.name for slot in varying if not set(slot.aliases) & set(point)]
        if loose:
            raise NotAffineError(
                f"{loose[0]} has a distribution, but the network is not linear in it: it was frozen when the "
                f"network was linearised; let it require a gradient before linearize, or freeze it after"
            )
        row = mean.clone()
        for slot in layout.of_kind("belief", "point"):
            name = next((name for name in slot.aliases if name in point), None)
            if name is not None:
                row[slot.start : slot.stop] = point[name].flatten()
        return Jacobian(linearized_network(network), layout, row, varying)
    jacobian = Jacobian(network, layout, mean, varying)
    if not _affine(jacobian, at.inputs):
        names = ", ".join(slot.name for slot in varying[:2])
        raise NotAffineError(
            f"the outputs are not affine in {names}{', ...' if len(varying) > 2 else ''}, which have a "
            f"distribution: moments are exact for linearised networks (sb.Model(sb.linearize(network), ...)) "
            f"and where the last layer alone is believed about (bayesian='<its name>.*'). {_ELSE}"
        )
    return jacobian


def _affine(jacobian: Jacobian, inputs: Any) -> bool:
    with torch.enable_grad():
        chosen = jacobian.row[jacobian.entries].detach().requires_grad_()
        return is_affine(jacobian.outputs(chosen, take(inputs, slice(0, 1))))
