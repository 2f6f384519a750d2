"""What both kinds of conformal prediction share: calibration points from a posterior, and their files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import write_json
from ..evaluation.data import Reader
from ..metrics.bootstrap import check_count

__all__ = ["FORMAT", "predicted", "read_json", "read_numbers", "save_json", "write_numbers"]

FORMAT = 1


def predicted(source: Any, validation: Any, draws: int, seed: int) -> tuple[Any, Tensor]:
    """A predictive and its labels, from a posterior and ``(X, y)`` or from a predictive and ``y``.

    Raises:
        TypeError: neither a posterior nor a predictive.
        ValueError: no labels.
    """
    check_count("draws", draws, 1)
    if callable(getattr(source, "predict", None)):
        held = Reader.of(source).read(validation)
        if held.y is None:
            raise ValueError("conformal prediction needs labels: pass validation=(X, y)")
        return source.predict(held.x, draws=draws, seed=seed), held.y
    if not callable(getattr(source, "log_prob", None)):
        raise TypeError(f"got a {type(source).__name__}, expected a posterior (with validation=(X, y)) or a "
                        f"predictive (with validation=y)")  # fmt: skip
    if isinstance(validation, tuple):
        raise TypeError("a predictive needs its labels alone: validation=y; (X, y) goes with a posterior")
    return source, torch.as_tensor(validation)


def save_json(
    path: str | os.PathLike[str], content: Mapping[str, Any], score: Any, known: Mapping[str, type]
) -> None:
    """Write one file of strict JSON, whole or not at all.

    Raises:
        TypeError: a score whose kind is not among the known ones.
    """
    if type(score) not in known.values():
        raise TypeError(f"only {', '.join(known)} can be saved, got {type(score).__name__}")
    write_json(Path(path), {"format": FORMAT, "library": "singularbayes", **content})


def read_json(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read what :func:`save_json` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another content; the message names the file.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}: nothing was saved there")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict) or content.get("kind") != kind or content.get("format") != FORMAT:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{file} holds {found!r}, expected {kind!r} of format {FORMAT}")
    return content


def write_numbers(values: Tensor) -> Any:
    """Numbers for strict JSON; infinity, of too few calibration points, becomes null."""
    if values.dim():
        return [write_numbers(value) for value in values]
    return None if math.isinf(values.item()) else values.item()


def read_numbers(values: Any) -> Tensor:
    """What :func:`write_numbers` wrote, in float64."""
    if isinstance(values, list):
        return torch.stack([read_numbers(value) for value in values])
    return torch.tensor(math.inf if values is None else float(values), dtype=torch.float64)
