"""What the training loop trains: a network bound to flat tensors, and the learners that write draws into it.

The point estimate is here because several methods train it (MAP, MC dropout, the members of an ensemble).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..data import Batches, Tensors, as_source, gather, take, to_device
from ..distributions import StoredDraws
from ..model import Model
from ..parameters import owner
from ..posterior import Posterior
from ..priors import ScaleMixture
from ..probing import check_network

__all__ = [
    "Bound",
    "Build",
    "BuildPoint",
    "Collecting",
    "Learner",
    "PointLearner",
    "Prepared",
    "Repeated",
    "TwoSided",
    "adam",
    "prepare",
    "sgd",
    "warn_if_collapsed",
    "warn_if_narrow",
]

_NO_WIDTH = 1e-4


class Bound:
    """A private copy of a model's network, bound to flat tensors.

    Attributes:
        network: the copy, in train mode.
        w: flat trained parameters ``(layout.trained,)``; the network's parameters are views of it.
        likelihood_numbers: learned numbers of the likelihood, views of ``w`` too.
        probe: some rows of the training inputs, for learners that look at how the network works.
        num_data: number of training examples, for learners whose draws depend on it.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        gradient: Tensor,
        start: Tensor,
        probe: Any = None,
        num_data: int = 1,
    ) -> None:
        self.probe, self.num_data = probe, num_data
        self.model, self.layout, self.device = model, model.layout, device
        self.network = model.copy_network().to(device).train()
        self.w = start[: self.layout.trained].clone()
        self.likelihood_numbers: dict[str, Tensor] = {}
        for parameter in self.network.parameters():
            parameter.requires_grad_(False)
        for slot in self.layout.of_kind("belief", "point", "likelihood"):
            view, grad = (t[slot.start : slot.stop].view(slot.shape) for t in (self.w, gradient))
            if slot.kind == "likelihood":
                leaf = view.detach().requires_grad_()
                self.likelihood_numbers[slot.name.partition(".")[2]] = leaf
            else:
                module, name = owner(self.network, slot.name)
                leaf = getattr(module, name)
                leaf.data = view
                leaf.requires_grad_()
            leaf.grad = grad

    def row(self, trained: Tensor) -> Tensor:
        """A full row ``(D,)``: trained entries, then the network's present statistics."""
        statistics = [
            getattr(*owner(self.network, s.name)).detach().reshape(-1)
            for s in self.layout.of_kind("statistic")
        ]
        return torch.cat([trained, *[s.to(trained) for s in statistics]])


@runtime_checkable
class Learner(Protocol):
    """What a method adds to the loop."""

    vector: Tensor
    gradient: Tensor
    bound: Bound

    def draw(self, noise: torch.Generator) -> None:
        """Write the weights of this step into ``bound.w``."""
        ...

    def finish(self, weight: float, progress: float) -> None:
        """Turn the network's gradient into the vector's; ``weight`` is ``T / N``, ``progress`` in epochs."""
        ...

    def regulariser(self) -> float:
        """KL, or ``-log p(w)``, at the present state, in nats (logged once an epoch)."""
        ...

    def distribution(self) -> Any:
        """The distribution over the flat vector at the present state."""
        ...

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """What moves ``vector`` by ``gradient``: one parameter group, plain tensors as its state."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the posterior's ``info`` should say of the learner, in plain types."""
        ...


@runtime_checkable
class TwoSided(Protocol):
    """A learner that may want two passes over the batch of a step."""

    sides: int

    def mirror(self) -> None:
        """Called after the first of two passes, before the second adds to the same gradient."""
        ...


@runtime_checkable
class Repeated(Protocol):
    """A learner that may want several draws in a step, each with a pass over the same batch.

    The loop sets the gradient to 0 after each draw: ``draw`` keeps what the pass before has left in it.
    """

    draws: int


@runtime_checkable
class Collecting(Protocol):
    """A learner that gathers something at the end of each epoch; checkpoints store and restore it.

    The loop may hold the tensors of :meth:`collected` until the next :meth:`end_of_epoch`, which may write
    into them: big columns are never copied for the sake of the last good state.
    """

    def end_of_epoch(self, epoch: int) -> None:
        """Gather, at the trained state after ``epoch`` epochs (1 after the first)."""
        ...

    def collected(self) -> dict[str, Tensor]:
        """All that was gathered, by name, not copied."""
        ...

    def recollect(self, tensors: dict[str, Tensor]) -> None:
        """Put back what :meth:`collected` gave, perhaps from a file, perhaps the very same tensors."""
        ...


@runtime_checkable
class Build(Protocol):
    """Makes a learner: first the length of its trained vector, then the learner itself."""

    def size(self, model: Model) -> int:
        """Length of the trained vector; it begins with the network's ``layout.trained`` parameters."""
        ...

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> Learner:
        """The learner, from the start row ``(D,)`` and the zeroed gradient of the vector."""
        ...


def adam(vector: Tensor, learning_rate: float) -> torch.optim.Adam:
    """Adam on one flat vector, in one fused kernel."""
    fused = vector.dtype in (torch.float32, torch.float64)
    return torch.optim.Adam([vector], lr=learning_rate, fused=fused)


def sgd(vector: Tensor, learning_rate: float, momentum: float) -> torch.optim.SGD:
    """Stochastic gradient descent with momentum on one flat vector, in one fused kernel.

    It changes its learning rate where the learner does: ``param_groups[0]["lr"]``.
    """
    fused = vector.dtype in (torch.float32, torch.float64)
    return torch.optim.SGD([vector], lr=learning_rate, momentum=momentum, fused=fused)


def warn_if_collapsed(posterior: Posterior, advice: str, size: float | None = None) -> None:
    """Warn of a posterior without width, whose draws are one network, and say what to do.

    Args:
        posterior: just fitted.
        advice: what to do.
        size: what a standard deviation is compared with; by default the root mean square of the means.
    """
    distribution, beliefs = posterior.distribution, posterior.layout.belief
    widest = distribution.variance[:beliefs].max().sqrt().item()
    warn_if_narrow(widest, distribution.mean[:beliefs], advice, size, stacklevel=4)


def warn_if_narrow(
    widest: float, mean: Tensor, advice: str, size: float | None = None, *, stacklevel: int
) -> None:
    """Warn if the largest standard deviation is nothing beside the weights.

    Args:
        widest: the largest standard deviation.
        mean: of the belief.
        advice: what to do.
        size: what ``widest`` is compared with; by default the root mean square of the means.
        stacklevel: of the warning.
    """
    unit = torch.linalg.vector_norm(mean).item() / math.sqrt(len(mean)) if size is None else size
    if widest < _NO_WIDTH * unit:
        warnings.warn(
            f"the posterior collapsed to its mean: every standard deviation is below a ten-thousandth of the "
            f"weights' size; {advice}",
            stacklevel=stacklevel,
        )


class PointLearner:
    """The trained vector is the weights themselves."""

    def __init__(self, bound: Bound, start: Tensor, gradient: Tensor) -> None:
        for _, prior in bound.model.prior_blocks:
            if isinstance(prior, ScaleMixture) and prior.learned:
                raise ValueError(
                    "a learned ScaleMixture needs MeanField: a single network cannot tell a prior"
                )
        self.bound, self.gradient = bound, gradient
        self.vector = bound.w

    def draw(self, noise: torch.Generator) -> None:
        return None

    @torch.no_grad()
    def finish(self, weight: float, progress: float) -> None:
        if weight:
            for block, prior in self.bound.model.prior_blocks:
                self.gradient[block].add_(prior.negative_score(self.vector[block]), alpha=weight)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        return adam(self.vector, learning_rate)

    @torch.no_grad()
    def regulariser(self) -> float:
        return -self.bound.model.log_prior(self.vector).item()

    def facts(self) -> dict[str, Any]:
        return {}

    def distribution(self) -> StoredDraws:
        return StoredDraws(self.bound.row(self.vector.detach().clone()).unsqueeze(0))


class BuildPoint:
    """Makes a :class:`PointLearner`."""

    def size(self, model: Model) -> int:
        return model.layout.trained

    def __call__(self, bound: Bound, start: Tensor, gradient: Tensor) -> PointLearner:
        return PointLearner(bound, start, gradient)


@dataclass(frozen=True)
class Prepared:
    """Checked data on the training device; the validation data as inputs and labels; the first rows."""

    train: Batches
    validation: tuple[Any, Tensor] | None
    probe: Any = None


def prepare(
    model: Model, patience: int | None, train: Any, validation: Any, device: torch.device
) -> Prepared:
    """All checks of the data, before any work.

    Raises:
        ValueError: empty or non-finite data, labels out of range, shapes that the network refuses.
    """
    if patience is not None and validation is None:
        raise ValueError(f"patience={patience} needs validation data: .fit(model, train, validation)")
    if model.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"the network's parameters are {model.dtype}, too coarse for small steps; train in float32 "
            f"(network.float()) with autocast=True, which runs the forward pass in bfloat16"
        )
    source = as_source(train, model.dtype, model.takes_integers).to(device)
    held = (
        None
        if validation is None
        else gather(as_source(validation, model.dtype, model.takes_integers)).to(device)
    )
    probe = model.copy_network().to(device).eval()
    if isinstance(source, Tensors):
        if source.y is None:
            raise ValueError("training data need labels: pass (X, y)")
        first = take(source.x, slice(0, 2))
        shape = check_network(model, probe, first)
        source = Tensors(source.x, _checked_labels(model, source.y, shape))
    else:  # its labels are checked batch by batch; the first rows tell whether the shapes fit
        x, y = next(iter(source.epoch(2, 0, 0, shuffle=False)))
        first = to_device(take(x, slice(0, 2)), device)
        shape = check_network(model, probe, first)
        model.likelihood.labels(shape, y[: shape[0]])
    if held is None:
        return Prepared(source, None, first)
    if held.y is None:
        raise ValueError("validation data need labels: pass (X, y)")
    with torch.no_grad():
        shape = model.outputs(probe, take(held.x, slice(0, 2))).shape
    return Prepared(source, (held.x, _checked_labels(model, held.y, shape)), first)


def _checked_labels(model: Model, y: Tensor, shape: torch.Size) -> Tensor:
    """All labels, checked against the shape of the network's outputs for some rows."""
    return model.likelihood.labels(torch.Size((len(y), *shape[1:])), y).to(y.device)
