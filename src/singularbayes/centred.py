"""``Centred``: a Gaussian prior about a point of its own, with a standard deviation for every weight.

    w_i ~ N(mean_i, std_i^2), independent

The data-dependent prior of a PAC-Bayes certificate: fit a network on one part of the data, centre the prior
there, and certify on the rest. Any method that takes a prior can be fitted with it.

References:
    Ambroladze, Parrado-Hernandez, Shawe-Taylor 2006; Dziugaite et al. 2021, arXiv 2006.10929.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from . import checkpoint
from .provenance import DataSketch

__all__ = ["Centred"]

_STEM = "prior"
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False, repr=False)
class Centred:
    """``N(mean_i, std_i^2)`` on the ``i``-th believed weight, in the order of ``model.layout``.

    Args:
        mean: ``(d,)``, one number a believed weight.
        std: standard deviations ``(d,)``, positive.
        seen: of the data that ``mean`` and ``std`` were made from; ``None`` where that is not known.

    Example:
        >>> prior = Centred(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.5]))
        >>> prior.negative_score(torch.tensor([1.0, 2.0])).tolist()
        [1.0, 0.0]
    """

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    seen: DataSketch | None = None

    def __post_init__(self) -> None:
        if self.mean.dim() != 1 or self.std.shape != self.mean.shape:
            raise ValueError(
                f"Centred needs a mean (d,) and a std (d,), got shapes {tuple(self.mean.shape)} and "
                f"{tuple(self.std.shape)}; for one number for all weights use Normal(std)"
            )
        if not bool(torch.isfinite(self.mean).all()):
            raise ValueError("Centred.mean must be finite: the network that it was read from has diverged")
        if not bool((torch.isfinite(self.std) & (self.std > 0)).all()):
            raise ValueError("Centred.std holds standard deviations: all must be positive and finite")

    @classmethod
    def at(cls, posterior: Any, std: float | Tensor, data: tuple[Any, Tensor] | None = None) -> Centred:
        """The prior centred at a posterior's mean.

        Args:
            posterior: of one network, e.g. ``MAP``'s; its believed weights are those of the model to come.
            std: one standard deviation for all weights, or one each ``(d,)``.
            data: ``(X, y)`` that the posterior was fitted to, tensors; needed only where the posterior does
                not know (it was fitted to a loader or to other batches of the user's).

        Raises:
            ValueError: separate networks, or a ``std`` of another length.
        """
        mean = posterior.at_mean().distribution.mean[: posterior.layout.belief].detach().clone()
        width = torch.as_tensor(std, dtype=mean.dtype, device=mean.device)
        if width.dim() not in (0, 1) or width.numel() not in (1, len(mean)):
            raise ValueError(
                f"std must be one number or one for each of {len(mean)} believed weights, got the shape "
                f"{tuple(width.shape)}"
            )
        known = posterior.info.get("data")
        seen = DataSketch.from_dict(known) if known else None
        if data is not None:
            own = DataSketch.of(*data)
            seen = own if seen is None else seen.joined(own)
        return cls(mean, width.expand(len(mean)).clone(), seen)

    def __repr__(self) -> str:
        return f"Centred({len(self.mean):,} weights, {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Centred) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """A fingerprint of the numbers."""
        parts = [t.detach().double().cpu().numpy().tobytes() for t in (self.mean, self.std)]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:12]

    def part(self, entries: slice | Tensor) -> Centred:
        """The prior of some of the weights; what was checked of all is not checked again at every step."""
        own = copy.copy(self)
        for name in ("mean", "std"):
            object.__setattr__(own, name, getattr(self, name)[entries])
        return own

    def standardised(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale in units of this prior: about its mean, by its standard deviation."""
        centre, width = self._like(mean)
        return (mean - centre) / width, scale / width

    def _like(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation on the device of ``w``, in float32 or its own wider precision."""
        dtype = torch.promote_types(w.dtype, torch.float32)
        return self.mean.to(w.device, dtype), self.std.to(w.device, dtype)

    def log_prob(self, w: Tensor) -> Tensor:
        centre, width = self._like(w)
        return -0.5 * ((w - centre) / width).square() - width.log() - 0.5 * _LOG_2PI

    def negative_score(self, w: Tensor) -> Tensor:
        centre, width = self._like(w)
        return (w - centre) / width.square()

    def sample(self, noise: Tensor, choice: Tensor) -> Tensor:
        centre, width = self._like(noise)
        return centre + width * noise

    def to_dict(self) -> dict[str, Any]:
        """Its fingerprint: the numbers themselves go into a folder of their own (:meth:`save`)."""
        return {"digest": self.digest, "weights": len(self.mean)}

    def save(self, folder: str | Path) -> None:
        """Write ``prior.json`` and its tensors to ``folder``."""
        seen = None if self.seen is None else self.seen.to_dict()
        content = {"library": "singularbayes", "kind": type(self).__name__, "seen": seen}
        checkpoint.write_pair(folder, _STEM, {"mean": self.mean, "std": self.std}, content)

    @classmethod
    def load(cls, folder: str | Path) -> Centred:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: nothing saved there.
            ValueError: a damaged file.
        """
        tensors, content = checkpoint.read_pair(folder, _STEM)
        if content.get("kind") != cls.__name__ or set(tensors) != {"mean", "std"}:
            raise ValueError(f"{Path(folder) / _STEM}.json is damaged: it describes no {cls.__name__}")
        seen = content.get("seen")
        return cls(tensors["mean"], tensors["std"], None if seen is None else DataSketch.from_dict(seen))
