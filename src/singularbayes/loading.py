"""``load``: read a saved posterior, of one network or a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from . import checkpoint, posterior
from .likelihoods import Likelihood
from .mixture_posterior import FORMAT, STEM, MixturePosterior
from .posterior import Posterior

__all__ = ["load"]


def load(
    folder: str | Path,
    network: nn.Module | Sequence[Any],
    likelihood: Likelihood | Sequence[Any] | None = None,
) -> Posterior | MixturePosterior:
    """Read a posterior that its ``save`` wrote.

    Args:
        folder: where it was saved; it may have moved.
        network: a network of the same architecture (its values do not matter); it is copied. Of a mixture: a
            list with one network a member (a list again for a mixture inside), or one network that fits all.
        likelihood: only for a likelihood of your own; of a mixture a list, with ``None`` for a member that
            has one of the library's.

    Raises:
        FileNotFoundError: nothing saved there.
        ValueError: a damaged file, a network whose parameters do not fit (named), or another number of
            networks than members.
    """
    if not (Path(folder) / f"{STEM}.json").is_file():
        if not isinstance(network, nn.Module):
            raise ValueError(
                f"{folder} holds no mixture, so it needs one network, got a {type(network).__name__}"
            )
        if isinstance(likelihood, Sequence):
            raise ValueError(f"{folder} holds no mixture, so it takes one likelihood, not a list")
        return posterior.load(folder, network, likelihood)
    content = checkpoint.read_json(folder, STEM)
    if content.get("library") != "singularbayes" or content.get("format") != FORMAT:
        raise ValueError(
            f"{folder} holds a mixture of format {content.get('format')!r}, this version reads {FORMAT}"
        )
    lacks = [key for key in ("members", "weights", "temperature", "info") if key not in content]
    if lacks:
        raise ValueError(f"{Path(folder) / STEM}.json is damaged: it has no {lacks[0]!r}")
    names = content["members"]
    networks = [network] * len(names) if isinstance(network, nn.Module) else list(network)
    likelihoods = [None] * len(names) if likelihood is None else likelihood
    if not isinstance(likelihoods, Sequence):
        raise ValueError(
            f"{folder} holds a mixture of {len(names)} members: give likelihood as a list, one a member, "
            f"None for those of the library"
        )
    for what, given in (("networks", networks), ("likelihoods", likelihoods)):
        if len(given) != len(names):
            raise ValueError(
                f"{folder} holds a mixture of {len(names)} members, got {len(given)} {what}; expected one "
                f"each"
            )
    members = [
        _member(Path(folder) / name, number, own, its)
        for number, (name, own, its) in enumerate(zip(names, networks, likelihoods, strict=True))
    ]
    return MixturePosterior(members, content["weights"], content["info"], content["temperature"])


def _member(folder: Path, number: int, network: Any, likelihood: Any) -> Posterior | MixturePosterior:
    try:
        return load(folder, network, likelihood)
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"member {number} of the mixture: {error}") from error
