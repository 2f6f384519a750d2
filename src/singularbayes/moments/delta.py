"""The delta method: outputs linearised in the weights, at the posterior's mean.

    mean f(x; m),   covariance J Sigma J^T,   J = df/dw at m

References:
    MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 2.23 ff. Immer
    et al. 2021, arXiv 2008.08216, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..curvature.jacobian import Jacobian
from ..data import batch_size_of
from ..nn.linearized import Linearized
from ..posterior import Posterior
from .covariance import output_covariance
from .outputs import Moments
from .rows import Given, given

__all__ = ["Delta", "propagated"]


def propagated(posterior: Posterior, at: Given, jacobian: Jacobian | None, info: dict[str, Any]) -> Moments:
    """``f`` at the mean and ``J Sigma J^T``, some rows at a time."""
    outputs = posterior.functions(at.mean.unsqueeze(0), at.inputs)[0]
    flat = outputs.reshape(batch_size_of(at.inputs), -1)
    count = flat.shape[1]
    covariance = flat.new_zeros(len(flat), count, count)
    done = 0
    if jacobian is not None:
        for chunk in jacobian.chunks(at.inputs, count):
            own = output_covariance(posterior.distribution, chunk, jacobian.entries)
            covariance[done : done + len(chunk)] = own
            done += len(chunk)
    numbers = posterior.layout.likelihood_views(at.mean.unsqueeze(0))
    return Moments(flat, covariance, posterior.likelihood, numbers, outputs.shape[1:], info)


@dataclass(frozen=True)
class Delta:
    """The covariance of the linearised network, whatever its modules; its mean is that of the mean weights.

    It keeps every correlation that there is to first order (shared weights, residual sums, ties) and none
    beyond: second-order terms of wide posteriors are missing, in the variance and in the mean. Each input
    takes a backward pass for each of its ``K`` outputs.
    """

    @torch.no_grad()
    def moments(self, posterior: Posterior, x: Any) -> Moments:
        """Mean and covariance at each input. Arguments and errors: see ``ClosedForm.moments``.

        Raises:
            ValueError: a linearised network, for which ``ClosedForm`` is exact.
        """
        at = given(posterior, x)
        if isinstance(posterior.network, Linearized):
            raise ValueError("the network is linearised already: ClosedForm() is exact for it")
        jacobian = Jacobian(posterior.network, posterior.layout, at.mean, at.varying) if at.varying else None
        return propagated(posterior, at, jacobian, {"method": "Delta", "exact": False})
