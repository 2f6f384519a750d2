"""Files that are whole or absent: tensors as safetensors, the rest as strict JSON, never pickle.

A pair is written in two steps: the tensors under a name that holds their digest, then the JSON that names
them, moved into place in one system call. A run that is killed at any moment leaves the previous pair, or the
new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

__all__ = ["read_json", "read_pair", "write_json", "write_pair", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically (UTF-8)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _strict(value: Any) -> Any:
    """JSON has no nan or infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError(f"{type(value).__name__} is no plain JSON type; convert it before it is saved")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON atomically; nan and infinity become null."""
    write_text(path, json.dumps(_strict(content), indent=1, allow_nan=False) + "\n")


def write_pair(
    folder: str | Path, stem: str, tensors: dict[str, torch.Tensor], content: dict[str, Any]
) -> None:
    """Write ``stem.json`` and the tensors that it names, so that a kill leaves the old or the new pair."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    blob = safetensors.torch.save(plain)
    name = f"{stem}-{hashlib.sha256(blob).hexdigest()[:12]}.safetensors"
    for left in folder.glob(f".{stem}*.part"):  # of a writer that was killed
        left.unlink(missing_ok=True)
    temporary = folder / f".{name}.{os.getpid()}.part"
    try:
        temporary.write_bytes(blob)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)
    write_json(folder / f"{stem}.json", {**content, "tensors": name})
    for stale in folder.glob(f"{stem}-{'[0-9a-f]' * 12}.safetensors"):
        if stale.name != name:
            stale.unlink(missing_ok=True)


def read_json(folder: str | Path, stem: str) -> dict[str, Any]:
    """Read the object that :func:`write_json` wrote to ``stem.json``; errors: see :func:`read_pair`."""
    path = Path(folder) / f"{stem}.json"
    if not path.is_file():
        raise FileNotFoundError(f"no {stem}.json in {Path(folder)}: nothing was saved there")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    return content


def read_pair(folder: str | Path, stem: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what :func:`write_pair` wrote.

    Raises:
        FileNotFoundError: no such file; the message names the path that was looked at.
        ValueError: a file that is not what it should be.
    """
    content = read_json(folder, stem)
    try:
        tensors = safetensors.torch.load_file(Path(folder) / content.pop("tensors"))
    except (ValueError, KeyError, TypeError, OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{Path(folder) / stem}.json names tensors that are damaged: {error}") from error
    return tensors, content
