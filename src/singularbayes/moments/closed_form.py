"""Moments of a network's outputs where they are exact: outputs affine in Gaussian weights.

    f(x; w) = f(x; m) + J(x) (w - m),  w ~ N(mu, Sigma):   mean f(x; mu),   covariance J Sigma J^T

So for linearised networks (there ``J`` is taken at their point ``m``), and where the last layer alone has a
distribution.

References:
    Immer et al. 2021, arXiv 2008.08216, section 3 (the GLM predictive). Kristiadi et al. 2020, arXiv
    2002.10118 (last layer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..curvature.jacobian import Jacobian
from ..data import as_inputs, batch_size_of, take, to_device
from ..distributions import StoredDraws
from ..model import takes_integers
from ..nn.linearized import Linearized, linearization_point, linearized_network
from ..parameters import Slot
from ..posterior import Posterior
from .affine import is_affine
from .covariance import GAUSSIANS, output_covariance
from .outputs import Moments

__all__ = ["moments"]

_ELSE = "posterior.predict(x) averages over draws for any posterior"


@torch.no_grad()
def moments(posterior: Posterior, x: Any) -> Moments:
    """Mean and covariance of the outputs at each input, in closed form.

    Exact for Gaussian posteriors whose outputs are affine in the weights that have a distribution: of a
    linearised network, or of the last layer alone. Each input takes a backward pass for each of its ``K``
    outputs; memory does not grow with the number of inputs, but for ``(B, K, K)``.

    Args:
        posterior: Gaussian (diagonal, low rank plus diagonal, full, Kronecker), or one atom.
        x: inputs, as for ``posterior.predict``.

    Raises:
        TypeError: a distribution that is no Gaussian.
        ValueError: outputs that are not affine in the weights.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=0.1))
        >>> posterior = sb.MeanField(epochs=2).fit(model, (x, x))
        >>> sb.moments(posterior, x).covariance.shape
        torch.Size([32, 1, 1])
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"moments are those of one posterior, got a {type(posterior).__name__}"
                        + (f"; take one of its .members, or {_ELSE}" if hasattr(posterior, "members") else
                           ": fit one, such as LaplaceApproximation().fit(model, data)"))  # fmt: skip
    distribution, layout = posterior.distribution, posterior.layout
    atom = isinstance(distribution, StoredDraws) and distribution.support == 1
    if not (isinstance(distribution, GAUSSIANS) or atom):
        raise TypeError(
            f"moments are in closed form for one Gaussian over the weights, this posterior is of the kind "
            f"{distribution.kind}; {_ELSE}"
        )
    inputs = to_device(as_inputs(x, posterior.dtype, takes_integers(posterior.network)), posterior.device)
    mean = distribution.mean.to(posterior.dtype)
    outputs = posterior.functions(mean.unsqueeze(0), inputs)[0]
    flat = outputs.reshape(batch_size_of(inputs), -1)
    varying = [s for s in layout.slots if bool((distribution.variance[s.start : s.stop] > 0).any())]
    _check(varying)
    count = flat.shape[1]
    covariance = flat.new_zeros(len(flat), count, count)
    if varying:
        jacobian = _jacobian(posterior, mean, varying, inputs)
        done = 0
        for chunk in jacobian.chunks(inputs, count):
            covariance[done : done + len(chunk)] = output_covariance(distribution, chunk, jacobian.entries)
            done += len(chunk)
    numbers = layout.likelihood_views(mean.unsqueeze(0))
    return Moments(flat, covariance, posterior.likelihood, numbers, outputs.shape[1:])


def _check(varying: list[Slot]) -> None:
    odd = [slot.name for slot in varying if slot.kind != "belief"]
    if odd:
        raise ValueError(f"{odd[0]} has a distribution, and outputs are not affine in it; {_ELSE}")


def _jacobian(posterior: Posterior, mean: Tensor, varying: list[Slot], inputs: Any) -> Jacobian:
    network, layout = posterior.network, posterior.layout
    if isinstance(network, Linearized):
        point = linearization_point(network)
        loose = [slot.name for slot in varying if not set(slot.aliases) & set(point)]
        if loose:
            raise ValueError(
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
    if not _affine(jacobian, inputs):
        names = ", ".join(slot.name for slot in varying[:2])
        raise ValueError(
            f"the outputs are not affine in {names}{', ...' if len(varying) > 2 else ''}, which have a "
            f"distribution: moments are exact for linearised networks (sb.Model(sb.linearize(network), ...)) "
            f"and where the last layer alone is believed about (bayesian='<its name>.*'). {_ELSE}"
        )
    return jacobian


def _affine(jacobian: Jacobian, inputs: Any) -> bool:
    with torch.enable_grad():
        chosen = jacobian.row[jacobian.entries].detach().requires_grad_()
        return is_affine(jacobian.outputs(chosen, take(inputs, slice(0, 1))))
