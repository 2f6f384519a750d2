"""``moments``: the method by default is the most exact one that a posterior allows."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..nn.linearized import Linearized
from ..posterior import Posterior
from .closed_form import ClosedForm, NotAffineError
from .covariance import GAUSSIANS
from .delta import Delta
from .outputs import Method, Moments
from .propagation import KINDS, Propagation
from .random_tensor import UncoveredError
from .rows import check_posterior

__all__ = ["moments"]


def moments(posterior: Posterior, x: Any, method: Method | None = None) -> Moments:
    """Mean and covariance of the outputs at each input, without draws.

    Args:
        posterior: one distribution over the weights: Gaussian, Laplace, or one atom.
        x: inputs, as for ``posterior.predict``.
        method: ``ClosedForm()``, ``Propagation()`` or ``Delta()``. By default the first of them that fits:
            exact where outputs are affine in Gaussian weights; else moment propagation where the weights are
            independent and each operation of the network has a rule (``moments.covered()`` lists them); else
            the delta method. ``.info`` of the result names the method, and the reason.

    Raises:
        TypeError: no posterior, a distribution that no method takes, or no method.
        ValueError, NotImplementedError: a method that was given and does not fit.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> network = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> posterior = sb.MeanField(epochs=2).fit(sb.Model(network, sb.Gaussian(noise=0.1)), (x, x))
        >>> found = sb.moments(posterior, x)
        >>> found.covariance.shape, found.info["method"]
        (torch.Size([32, 1, 1]), 'Propagation')
    """
    check_posterior(posterior)
    if method is not None:
        if isinstance(method, type) or not isinstance(method, Method):
            raise TypeError(f"method must be an object such as Propagation() or Delta(), got {method!r}")
        return method.moments(posterior, x)
    distribution = posterior.distribution
    reason = f"the posterior is of the kind {distribution.kind}, whose weights are not independent"
    if not isinstance(distribution, KINDS) or isinstance(distribution, GAUSSIANS):
        try:
            return ClosedForm().moments(posterior, x)
        except NotAffineError:
            if isinstance(posterior.network, Linearized):
                raise  # it has no other moments
    if isinstance(distribution, KINDS):
        try:
            return Propagation().moments(posterior, x)
        except UncoveredError as uncovered:
            reason = str(uncovered)
    found = Delta().moments(posterior, x)
    return dataclasses.replace(found, info={**found.info, "reason": reason})
