"""The flat vector: which tensors of a network a row of draws stands for, and where each lies.

A row is ``[belief | point | likelihood | statistics | masks]``:

* *belief*: parameters with a distribution;
* *point*: parameters that are trained but have none (standard deviation 0);
* *likelihood*: learned numbers of the likelihood (an unknown noise level);
* *statistics*: running statistics of normalisation layers, which follow the weights;
* *masks*: dropout masks, where a method draws them.

So one row determines one function. A tied parameter lies there once, under its first name; patterns match any
of its names.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

__all__ = ["Layout", "Patterns", "Slot", "match_names", "owner"]

Patterns = str | Sequence[str]
Kind = Literal["belief", "point", "likelihood", "statistic", "mask"]
Entry = tuple[Kind, tuple[str, ...], tuple[int, ...]]
_ORDER: tuple[Kind, ...] = ("belief", "point", "likelihood", "statistic", "mask")
_NORMALIZATION = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)
LIKELIHOOD_PREFIX = "likelihood."


@dataclass(frozen=True)
class Slot:
    """One tensor of the flat vector: entries ``start:stop``, reshaped to ``shape``."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Kind

    @property
    def size(self) -> int:
        return self.stop - self.start


def match_names(patterns: Patterns, names: Iterable[Sequence[str]], what: str) -> set[str]:
    """First names of those entries whose names (any alias) match a shell pattern.

    Raises:
        ValueError: a pattern that matches nothing, with the nearest names.
    """
    chosen: set[str] = set()
    entries = [tuple(entry) for entry in names]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = {entry[0] for entry in entries if any(fnmatch.fnmatchcase(name, pattern) for name in entry)}
        if not hits:
            known = [name for entry in entries for name in entry]
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3) or known[:3]
            raise ValueError(
                f"{what} pattern {pattern!r} matches no parameter; nearest names: {', '.join(near)}"
            )
        chosen |= hits
    return chosen


def owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a parameter or buffer, and its name there."""
    path, _, leaf = name.rpartition(".")
    return network.get_submodule(path), leaf


def _tied(network: nn.Module) -> dict[str, tuple[list[str], nn.Parameter]]:
    """Every distinct parameter by its first name, with all its names."""
    names: dict[int, str] = {}
    found: dict[str, tuple[list[str], nn.Parameter]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        found.setdefault(first, ([], parameter))[0].append(name)
    return found


def _refuse(network: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    compiled = [
        path for path, module in network.named_modules() if "_orig_mod" in dict(module.named_children())
    ]
    if compiled:
        at = f"network.{compiled[0]}" if compiled[0] else "network"
        raise ValueError(
            f"{compiled[0] or 'the network'} was compiled; use {at}._orig_mod in its place, and compile "
            f"afterwards"
        )
    lazy = [name for name, parameter in parameters.items() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"{lazy[0]} is not initialised yet (a lazy module); run the network on one batch first"
        )
    for path, module in network.named_modules():
        hooks = module._forward_pre_hooks.values()  # noqa: SLF001 - torch has no public way
        if any(type(hook).__name__ == "WeightNorm" for hook in hooks):
            raise ValueError(
                f"{path or 'the network'} uses the old torch.nn.utils.weight_norm, which recomputes its "
                f"weight in a hook; use torch.nn.utils.parametrizations.weight_norm"
            )
        if isinstance(module, _BatchNorm) and not module.track_running_stats:
            raise ValueError(
                f"{path or 'the network'} is a {type(module).__name__} without running statistics: a "
                f"prediction would depend on the other rows of its batch; set track_running_stats=True"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ValueError(
                f"{path or 'the network'} has max_norm={module.max_norm:g}: its forward pass writes to its "
                f"table, and would to every draw of it; set max_norm=None"
            )
    if not parameters:
        raise ValueError(
            "the network has no parameter that requires a gradient: there is nothing to have a belief about"
        )
    dtypes = {parameter.dtype for parameter in parameters.values()}
    devices = {parameter.device for parameter in parameters.values()}
    if len(dtypes) > 1 or len(devices) > 1:
        odd = next(
            n
            for n, p in parameters.items()
            if (p.dtype, p.device) != (min(dtypes, key=str), min(devices, key=str))
        )
        raise ValueError(
            f"parameters must share one dtype and one device, got {sorted(map(str, dtypes))} on "
            f"{sorted(map(str, devices))} (e.g. {odd}); convert with network.to(...)"
        )
    if not next(iter(dtypes)).is_floating_point:
        raise ValueError(f"parameters must be real floating point, got {next(iter(dtypes))}")


@dataclass(frozen=True)
class Layout:
    """Where the chosen tensors of a network lie in the flat vector.

    Example:
        >>> layout = Layout.of(
        ...     nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), deterministic="*bias"
        ... )
        >>> layout.belief, layout.trained
        (9, 13)
    """

    slots: tuple[Slot, ...]

    @classmethod
    def of(
        cls,
        network: nn.Module,
        *,
        bayesian: Patterns = "*",
        deterministic: Patterns = (),
        normalization: bool = False,
        likelihood: Mapping[str, Tensor] | None = None,
    ) -> Layout:
        """Choose the parameters of a network.

        Args:
            network: any module; parameters that do not require a gradient are frozen and left out.
            bayesian: patterns of the parameters that get a distribution; all others are frozen.
            deterministic: patterns, among those, of parameters that are trained as point estimates.
            normalization: give the affine parameters of normalisation layers a distribution too; by default
                they are point estimates.
            likelihood: learned numbers of the likelihood, by name.

        Raises:
            ValueError: unknown patterns, mixed dtypes, lazy or compiled modules, nothing to choose.
        """
        if not isinstance(network, nn.Module):
            raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
        tied = _tied(network)
        trainable = {name: p for name, (_, p) in tied.items() if p.requires_grad or is_lazy(p)}
        _refuse(network, trainable)
        aliases = [tied[name][0] for name in trainable]
        chosen = match_names(bayesian, aliases, "bayesian")
        points = match_names(deterministic, [a for a in aliases if a[0] in chosen], "deterministic")
        if not normalization:
            points |= {name for name in chosen if _is_affine(*owner(network, name))}
        if points == chosen:
            raise ValueError(
                "every chosen parameter is deterministic: there is nothing to have a belief about"
            )
        entries: list[Entry] = [
            ("point" if name in points else "belief", tuple(tied[name][0]), tuple(parameter.shape))
            for name, parameter in trainable.items()
            if name in chosen
        ]
        learned = likelihood or {}
        entries.extend(("likelihood", (LIKELIHOOD_PREFIX + n,), tuple(t.shape)) for n, t in learned.items())
        entries.extend(("statistic", (name,), tuple(b.shape)) for name, b in _statistics(network))
        return cls._place(entries)

    @classmethod
    def _place(cls, entries: Sequence[Entry]) -> Layout:
        slots, start = [], 0
        for kind, names, shape in sorted(entries, key=lambda entry: _ORDER.index(entry[0])):
            stop = start + torch.Size(shape).numel()
            slots.append(Slot(names[0], names, shape, start, stop, kind))
            start = stop
        return cls(tuple(slots))

    def with_masks(self, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout with dropout masks (buffers of these names and shapes) appended."""
        entries: list[Entry] = [(s.kind, s.aliases, s.shape) for s in self.slots]
        entries.extend(("mask", (name,), tuple(shape)) for name, shape in shapes.items())
        return self._place(entries)

    def _end(self, *kinds: Kind) -> int:
        return max((slot.stop for slot in self.slots if slot.kind in kinds), default=0)

    @property
    def belief(self) -> int:
        """Number of entries with a distribution; they come first."""
        return self._end("belief")

    @property
    def trained(self) -> int:
        """Number of trained entries, belief first."""
        return self._end("belief", "point", "likelihood")

    @property
    def size(self) -> int:
        """Length ``D`` of the vector."""
        return self.slots[-1].stop

    def of_kind(self, *kinds: Kind) -> tuple[Slot, ...]:
        """The slots of these kinds, in order."""
        return tuple(slot for slot in self.slots if slot.kind in kinds)

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Views of ``w (..., D)`` for the network, by first name: ``functional_call``'s argument."""
        return {
            s.name: w[..., s.start : s.stop].view((*w.shape[:-1], *s.shape))
            for s in self.slots
            if s.kind != "likelihood"
        }

    def likelihood_views(self, w: Tensor) -> dict[str, Tensor]:
        """Views of ``w (..., D)`` for the likelihood's learned numbers."""
        return {
            s.name.removeprefix(LIKELIHOOD_PREFIX): w[..., s.start : s.stop].view((*w.shape[:-1], *s.shape))
            for s in self.of_kind("likelihood")
        }

    def flatten(self, network: nn.Module, likelihood: Mapping[str, Tensor] | None = None) -> Tensor:
        """The network's present tensors as one vector ``(D,)``, detached."""
        parts = []
        for slot in self.slots:
            if slot.kind == "likelihood":
                tensor = (likelihood or {})[slot.name.removeprefix(LIKELIHOOD_PREFIX)]
            else:
                module, leaf = owner(network, slot.name)
                tensor = getattr(module, leaf)
            parts.append(tensor.detach().reshape(-1))
        reference = parts[0]
        return torch.cat([part.to(reference) for part in parts])

    @torch.no_grad()
    def write(self, network: nn.Module, w: Tensor) -> None:
        """Copy ``w (D,)`` into the network's parameters and buffers. Only for networks of our own."""
        for name, tensor in self.views(w).items():
            module, leaf = owner(network, name)
            getattr(module, leaf).copy_(tensor)

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain types, for a checkpoint."""
        return [{"kind": s.kind, "names": list(s.aliases), "shape": list(s.shape)} for s in self.slots]

    @classmethod
    def from_dict(cls, content: Sequence[Mapping[str, Any]]) -> Layout:
        """What :meth:`to_dict` wrote."""
        return cls._place([(item["kind"], tuple(item["names"]), tuple(item["shape"])) for item in content])


def _is_affine(module: nn.Module, leaf: str) -> bool:
    """Whether a parameter is a gain or shift after a normalisation: a layer that has both names them."""
    return isinstance(module, _NORMALIZATION) or leaf in getattr(module, "normalization_parameters", ())


def _statistics(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that follow the weights in training: running statistics, and spectral norm's vectors."""
    found = []
    for path, module in network.named_modules():
        leaves: tuple[str, ...] = getattr(module, "running_statistics", ())  # our own layers'
        if isinstance(module, _NormBase) and module.track_running_stats:
            leaves = ("running_mean", "running_var")
        elif type(module).__name__ == "_SpectralNorm":
            leaves = ("_u", "_v")
        for leaf in leaves:
            buffer = getattr(module, leaf, None)
            if buffer is not None:
                found.append((f"{path}.{leaf}" if path else leaf, buffer))
    return found
