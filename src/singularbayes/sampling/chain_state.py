"""States of samplers as named tensors, and back: frozen dataclasses of tensors, nested or not."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

__all__ = ["rebuilt", "tensors_of"]


def tensors_of(state: Any, name: str = "state") -> dict[str, Tensor]:
    """Every tensor of a state by its path.

    Raises:
        TypeError: a field that is neither a tensor nor a dataclass.
    """
    if isinstance(state, Tensor):
        return {name: state}
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        raise TypeError(
            f"{name} is a {type(state).__name__}; the state of a sampler is a dataclass of tensors or of "
            f"such dataclasses, so that it can be saved"
        )
    parts: dict[str, Tensor] = {}
    for field in dataclasses.fields(state):
        parts |= tensors_of(getattr(state, field.name), f"{name}.{field.name}")
    return parts


def rebuilt(template: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """A state of the template's classes with the tensors of :func:`tensors_of`, on its devices.

    Raises:
        ValueError: a tensor that is missing.
    """
    if isinstance(template, Tensor):
        if name not in tensors:
            raise ValueError(f"the checkpoint lacks {name}: it is of another version of the sampler")
        return tensors[name].to(template.device)
    parts = {
        field.name: rebuilt(getattr(template, field.name), tensors, f"{name}.{field.name}")
        for field in dataclasses.fields(template)
    }
    return type(template)(**parts)
