"""A fit's checkpoint: what a killed run needs to go on to the same numbers.

``training.json`` and its tensors hold the state, the last good snapshot, the best one where there is one, and
a fingerprint of the fit: a folder of another fit is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoint
from ..data import Tensors
from ..model import Model
from .learner import Prepared

__all__ = ["State", "digest_of", "exists", "fingerprint", "read", "save"]

_STEM = "training"

Snapshot = dict[str, Tensor]


@dataclass
class State:
    """What goes on from epoch to epoch, and into a checkpoint."""

    epoch: int = 0
    best_epoch: int = 0
    best_loss: float = math.inf
    seconds: float = 0.0
    stopped: bool = False
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


def fingerprint(
    settings: Any, free: Collection[str], model: Model, data: Prepared, start: Tensor, seed: int
) -> str:
    """What must be equal for a checkpoint to be of the same fit: settings, seed, data, model, start.

    Args:
        settings: the method, a dataclass.
        free: names of its fields that may differ.
        model: its layout, prior and likelihood count.
        data: the training data count where they lie in memory, else their number alone.
        start: the trained vector before the first step; frozen parameters and buffers count as well.
        seed: of the fit.
    """
    fixed = {
        f.name: str(getattr(settings, f.name)) for f in dataclasses.fields(settings) if f.name not in free
    }
    train = data.train
    digest = hashlib.sha256()
    digest.update(repr((type(settings).__name__, sorted(fixed.items()), seed, train.num_data)).encode())
    digest.update(repr([(s.name, s.shape, s.kind) for s in model.layout.slots]).encode())
    digest.update(repr((model.prior, model.likelihood)).encode())
    digest.update(start.double().cpu().numpy().tobytes())
    digest.update(repr(model.network).encode())
    for name, tensor in model.network.state_dict().items():
        digest.update(name.encode())
        _add(digest, tensor)
    if isinstance(train, Tensors):
        _add(digest, train.x)
        _add(digest, train.y)
    else:  # batches of the user's: what the first of them hold
        for batch in itertools.islice(train.epoch(64, seed, 0, shuffle=True), 4):
            _add(digest, batch)
    if data.validation is not None:
        _add(digest, data.validation)
    return digest.hexdigest()


def digest_of(*tensors: Tensor) -> str:
    """A fingerprint of numbers."""
    digest = hashlib.sha256()
    _add(digest, tensors)
    return digest.hexdigest()


def _add(digest: Any, part: Any) -> None:
    """Add a tensor, or a dict or tuple of tensors."""
    if isinstance(part, Mapping):
        for key in sorted(part):
            digest.update(str(key).encode())
            _add(digest, part[key])
    elif isinstance(part, tuple):
        for item in part:
            _add(digest, item)
    elif isinstance(part, Tensor):
        digest.update(str((part.dtype, tuple(part.shape))).encode())
        digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def exists(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / f"{_STEM}.json").is_file()


def save(folder: Path, mark: str, state: State, good: Snapshot, best: Snapshot | None) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        folder: where to.
        mark: the fit's fingerprint.
        state: at the end of an epoch.
        good: snapshot at the same moment.
        best: snapshot of the best epoch so far, where one is kept.
    """
    tensors = {f"now.{name}": t for name, t in good.items()}
    tensors |= {f"best.{name}": t for name, t in (best or {}).items()}
    content = {"fit": mark, **dataclasses.asdict(state), "best_loss": str(state.best_loss)}  # may be infinite
    checkpoint.write_pair(folder, _STEM, tensors, content)


def read(folder: Path, mark: str) -> tuple[State, Snapshot, Snapshot | None]:
    """State, last good snapshot and best one, as :func:`save` wrote them.

    Raises:
        ValueError: a damaged file, or a checkpoint of another fit.
    """
    tensors, content = checkpoint.read_pair(folder, _STEM)
    if content.pop("fit") != mark:
        raise ValueError(
            f"{folder} holds a checkpoint of another fit (settings, data, seed or start differ); choose "
            f"another folder or remove it"
        )
    content["best_loss"] = float(content["best_loss"])
    good = {name.removeprefix("now."): t for name, t in tensors.items() if name.startswith("now.")}
    best = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}
    return State(**content), good, best or None
