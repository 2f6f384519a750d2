"""Eight schools, non-centred: effects of coaching in eight schools, shrunk to their common mean.

y_j ~ N(theta_j, s_j),  theta_j = mu + tau t_j,  t_j ~ N(0, 1),  mu ~ N(0, 5),  tau ~ half-Cauchy(0, 5)
"""

from pathlib import Path

import torch
from torch import Tensor

from . import log_densities as log_p
from .posterior import ReferencePosterior, around_zero, tensor, unpacked


def log_joint(own: Tensor, effect: Tensor, std: Tensor) -> Tensor:
    """Own parameters are ``t (C, J)``, ``mu``, ``tau``; ``effect`` and its ``std`` are ``(J,)``."""
    t, mu, tau = own[:, :-2], own[:, -2], own[:, -1]
    likelihood = log_p.normal(effect, effects(own)[:, :-2], std).sum(1)
    return likelihood + log_p.normal(t, 0, 1).sum(1) + log_p.normal(mu, 0, 5) + log_p.cauchy(tau, 5)


def effects(own: Tensor) -> Tensor:
    """``t, mu, tau`` to ``theta, mu, tau``."""
    t, mu, tau = own[:, :-2], own[:, -2:-1], own[:, -1:]
    return torch.cat([mu + tau * t, mu, tau], 1)


def standardised(values: Tensor) -> Tensor:
    """The inverse of ``effects``."""
    theta, mu, tau = values[:, :-2], values[:, -2:-1], values[:, -1:]
    return torch.cat([(theta - mu) / tau, mu, tau], 1)


def eight_schools(folder: Path) -> ReferencePosterior:
    data = unpacked(folder / "data" / "eight_schools.json.zip")
    effect, std, schools = tensor(data["y"]), tensor(data["sigma"]), data["J"]
    return ReferencePosterior(
        name="eight_schools-eight_schools_noncentered",
        parameters=(*(f"theta[{j + 1}]" for j in range(schools)), "mu", "tau"),
        positive=(*(False for _ in range(schools + 1)), True),
        log_joint=lambda own: log_joint(own, effect, std),
        start=around_zero(schools + 2),
        to_database=effects,
        from_database=standardised,
    )
