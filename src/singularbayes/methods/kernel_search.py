"""Length scale, standard deviation and noise of a random-feature kernel, by the evidence.

    k(h, h') = std^2 exp(-|h - h'|^2 / (2 length_scale^2)),    maximise  log p(y | length_scale, std, noise)

The features keep their phases and their frequencies in units of the length scale, so the evidence is a smooth
function of three numbers: a grid of length scales around the median distance, then Nelder and Mead's simplex
on the logarithms. For classes it is Laplace's evidence at the mode.

References:
    Rasmussen and Williams 2006, section 5.4.1. Nelder and Mead 1965.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from ..curvature.head import HeadPosterior
from ..likelihoods import Gaussian, Likelihood
from ..nn.random_feature_head import RandomFeatureHead
from ..random import generator

__all__ = ["Kernel", "choose_kernel"]

_GRID = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the median distance
_RANGE = 5.0  # logarithms lie within this of where the search begins
_CLASS_FEATURES = 256  # each class has a matrix of its own: the search takes fewer features
_DISTANCES = 500  # rows of which the median distance is taken
_STEPS = 100  # to the mode
_EVALUATIONS = 150


class Kernel(NamedTuple):
    """What a kernel and its noise are.

    Attributes:
        length_scale: in the units of ``h``.
        std: of the function at one input.
        noise: standard deviation of a ``Gaussian``'s noise that was found; ``None`` where none was searched.
        log_evidence: in nats, on the rows of the search; ``None`` where nothing was searched.
        at_bound: names of what the evidence drives to the end of the search.
    """

    length_scale: float
    std: float
    noise: float | None = None
    log_evidence: float | None = None
    at_bound: tuple[str, ...] = ()


def choose_kernel(
    head: RandomFeatureHead,
    likelihood: Likelihood,
    h: Float[Tensor, "N n"],
    y: Tensor,
    *,
    length_scale: float | None,
    std: float | None,
    rows: int,
    seed: int,
) -> Kernel:
    """The kernel that maximises the evidence in those numbers that are not given.

    Args:
        head: its features.
        likelihood: of the labels; the noise of a ``Gaussian`` that would learn it is searched too.
        h: inputs of the kernel.
        y: labels, checked.
        length_scale: ``None`` searches it.
        std: ``None`` searches it.
        rows: at most so many, chosen at random, enter the evidence.
        seed: of the choice.

    Warns:
        UserWarning: the evidence has no maximum within the search.
    """
    learned = isinstance(likelihood, Gaussian) and likelihood.noise is None
    free = [n for n, given in (("length_scale", length_scale), ("std", std)) if given is None]
    free += ["noise"] if learned else []
    if not free:
        assert length_scale is not None and std is not None  # noqa: S101, PT018 - nothing is free
        return Kernel(length_scale, std)
    own = copy.deepcopy(head).double().requires_grad_(False)
    own.weight.zero_()
    if len(h) > rows:
        chosen = torch.randperm(len(h), generator=generator(seed, "rows"))[:rows].to(h.device)
        h, y = h[chosen], y[chosen]
    h = h.double()
    if not isinstance(likelihood, Gaussian):
        own = _narrowed(own, _CLASS_FEATURES)
    start = {"length_scale": length_scale or _median_distance(own, h), "std": std or 1.0, "noise": 0.3}
    if isinstance(likelihood, Gaussian):
        size = (y.double().square().mean().sqrt().item()) or 1.0
        start |= {"std": std or size, "noise": 0.3 * size}

    def evidence(numbers: dict[str, float]) -> float:
        return _evidence(own, likelihood, h, y, numbers)

    return _maximised(evidence, start, free, learned=learned)


def _maximised(
    evidence: Callable[[dict[str, float]], float], start: dict[str, float], free: list[str], *, learned: bool
) -> Kernel:
    if "length_scale" in free:
        grid = [{**start, "length_scale": start["length_scale"] * factor} for factor in _GRID]
        start = max(grid, key=evidence)
    centre = [math.log(start[name]) for name in free]

    def at(point: list[float]) -> dict[str, float]:
        return {**start, **{name: math.exp(value) for name, value in zip(free, point, strict=True)}}

    simplex = [centre] + [[c + 0.5 * (i == j) for j, c in enumerate(centre)] for i in range(len(free))]
    bounds = [(c - _RANGE, c + _RANGE) for c in centre]
    options = {"initial_simplex": simplex, "xatol": 5e-3, "fatol": 1e-3, "maxfev": _EVALUATIONS}
    found = minimize(
        lambda point: -evidence(at(point.tolist())),
        centre,
        method="Nelder-Mead",
        bounds=bounds,
        options=options,
    )
    at_bound = tuple(
        name for name, c, x in zip(free, centre, found.x, strict=True) if abs(x - c) > _RANGE - 0.01
    )
    if at_bound:
        warnings.warn(
            f"the evidence has no maximum over {', '.join(at_bound)} within a factor of "
            f"{math.exp(_RANGE):.0f} of where the search began, and stands at its end; give the number: "
            f"RandomFeatures(length_scale=..., std=...), or sb.Gaussian(noise=...)",
            stacklevel=4,
        )
    best = at(found.x.tolist())
    noise = best["noise"] if learned else None
    return Kernel(best["length_scale"], best["std"], noise, -float(found.fun), at_bound)


def _evidence(
    head: RandomFeatureHead, likelihood: Likelihood, h: Tensor, y: Tensor, numbers: dict[str, float]
) -> float:
    """At the mode, which is left in ``head``: the next search for one begins there."""
    own = head.at_length_scale(numbers["length_scale"])
    if isinstance(likelihood, Gaussian) and likelihood.noise is None:
        likelihood = replace(likelihood, noise=numbers["noise"])
    learned = {name: number.to(h) for name, number in likelihood.parameters.items()}  # where they start
    of = HeadPosterior(own, own, likelihood, learned, lambda: [(h, y)], numbers["std"] ** -2)
    of.to_mode(_STEPS)
    head.weight.copy_(own.weight)
    return of.log_evidence()


def _narrowed(head: RandomFeatureHead, features: int) -> RandomFeatureHead:
    """The first features alone: the same kernel, less well."""
    if head.features <= features:
        return head
    narrow = copy.deepcopy(head)
    narrow.features = features
    narrow.frequencies, narrow.phases = head.frequencies[:features], head.phases[:features]
    narrow.weight = torch.nn.Parameter(head.weight[:, :features].clone(), requires_grad=False)
    return narrow


def _median_distance(head: RandomFeatureHead, h: Tensor) -> float:
    h = h[:_DISTANCES]
    if head.layer_norm:
        h = torch.nn.functional.layer_norm(h, (h.shape[1],))
    distances = torch.pdist(h)
    positive = distances[distances > 0]
    return positive.median().item() if len(positive) else 1.0
