"""Predator and prey: twenty years of pelts of hares and lynxes under the equations of Lotka and Volterra.

    u' = (theta1 - theta2 v) u,  v' = (theta4 u - theta3) v,  (u, v) = z at year 0
    pelts of each year ~ LogNormal(log (u, v), sigma)
    theta1, theta3 ~ half-N(1, .5),  theta2, theta4 ~ half-N(.05, .05),  sigma ~ LogNormal(-1, 1),
    z ~ LogNormal(log 10, 1)

With ``a = log u`` and ``b = log v`` the slopes are ``theta1 - theta2 exp(b)`` and ``theta4 exp(a) - theta3``:
each moves one variable and reads only the other, so that half of the system is solved exactly while the other
half rests. Compositions of such moves are simple and accurate: the six stages of the scheme below, twice
a year, are right to 4e-5 in the logarithms.

References:
    Blanes and Moan, Practical symplectic partitioned Runge-Kutta and Runge-Kutta-Nystrom methods (J. Comput.
    Appl. Math. 142, 2002), S6 of order 4.
"""

from pathlib import Path

import torch
from torch import Tensor

from . import log_densities as log_p
from .posterior import ReferencePosterior, tensor, unpacked

A = (0.0792036964311957, 0.353172906049774, -0.0420650803577195)
A = (*A, 1 - 2 * sum(A), *A[::-1])
B = (0.209515106613362, -0.143851773179818)
B = (*B, 0.5 - sum(B), 0.5 - sum(B), *B[::-1])


def log_populations(theta: Tensor, start: Tensor, years: int, steps: int = 2) -> Tensor:
    """``log (u, v)`` at years 1 to ``years``, ``(C, years, 2)``; differentiable.

    Of rates ``(C, 4)`` and populations at year 0, ``(C, 2)``, by ``steps`` steps a year.
    """
    theta1, theta2, theta3, theta4 = (theta / steps).unbind(1)
    a, b = start.log().unbind(1)
    prey = [(part * theta1, -part * theta2) for part in A]
    predator = [(-part * theta3, part * theta4) for part in B]
    found = []
    for _ in range(years):
        for _ in range(steps):
            for (grow, eaten), (starve, feed) in zip(prey, predator, strict=False):
                a = torch.addcmul(a + grow, eaten, b.exp())
                b = torch.addcmul(b + starve, feed, a.exp())
            a = torch.addcmul(a + prey[-1][0], prey[-1][1], b.exp())
        found.append(torch.stack([a, b], 1))
    return torch.stack(found, 1)


def log_joint(own: Tensor, first: Tensor, pelts: Tensor, steps: int = 2) -> Tensor:
    """Own parameters are ``theta (4), z (2), sigma (2)``; pelts are ``(2,)`` at year 0 and ``(years, 2)``."""
    theta, z, sigma = own[:, :4], own[:, 4:6], own[:, 6:]
    path = log_populations(theta, z, len(pelts), steps)
    likelihood = log_p.log_normal(pelts, path, sigma[:, None]).sum((1, 2))
    likelihood = likelihood + log_p.log_normal(first, z.log(), sigma).sum(1)
    rates = log_p.normal(theta[:, 0::2], 1, 0.5) + log_p.normal(theta[:, 1::2], 0.05, 0.05)
    noise = log_p.log_normal(sigma, -1, 1) + log_p.log_normal(z, tensor(10.0).log(), 1)
    return likelihood + (rates + noise).sum(1)


def start(chains: int, source: torch.Generator) -> Tensor:
    """The priors' centres, populations at the first pelts, each times a factor of 1.1 or so."""
    centre = tensor([1, 0.05, 1, 0.05, 30, 4, 0.37, 0.37]).log()
    return centre + 0.1 * torch.randn(chains, 8, generator=source, dtype=torch.float64)


def lotka_volterra(folder: Path) -> ReferencePosterior:
    data = unpacked(folder / "data" / "hudson_lynx_hare.json.zip")
    first, pelts = tensor(data["y_init"]), tensor(data["y"])
    rates = tuple(f"theta[{k + 1}]" for k in range(4))
    return ReferencePosterior(
        name="hudson_lynx_hare-lotka_volterra",
        parameters=(*rates, "z_init[1]", "z_init[2]", "sigma[1]", "sigma[2]"),
        positive=(True,) * 8,
        log_joint=lambda own: log_joint(own, first, pelts),
        start=start,
    )
