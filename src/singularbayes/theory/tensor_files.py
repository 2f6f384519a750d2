"""Reading the tensors of a checkpoint without running anything in it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

__all__ = ["read_tensors"]

# What torch.load makes of bytes that are something else, or of a pickle of more than tensors.
_UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file: safetensors, or a state dict that ``torch.save`` wrote.

    Nothing in the file is executed (``weights_only``). A dict that holds the state dict under
    ``state_dict`` or ``model`` is looked into.

    Raises:
        ValueError: no such file, or one that holds no tensors by name.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file; give the folder of a run, of a saved posterior, or a "
                         f"checkpoint (.safetensors, .pt)")  # fmt: skip
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(path)
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ValueError(f"{path} cannot be read as tensors alone ({type(error).__name__}); save "
                         f"network.state_dict() instead") from error  # fmt: skip
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = (
        {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
        if isinstance(content, Mapping)
        else {}
    )
    if not tensors:
        raise ValueError(f"{path} holds no tensors by name; save network.state_dict()")
    return tensors
