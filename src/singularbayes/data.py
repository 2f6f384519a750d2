"""Data as users have them: arrays, tensors, a Dataset, batches, Hugging Face dicts.

Every form becomes a source with ``num_data`` and ``epoch(...)``: an iterator of ``(x, y)`` batches. Tensors
in memory are shuffled by our own generator; a user's loader is iterated with the global random state (torch,
NumPy, Python) seeded and put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from .random import derive, forked, generator, snapshot

__all__ = [
    "Batches",
    "Items",
    "Loader",
    "Tensors",
    "as_inputs",
    "as_labels",
    "as_source",
    "batch_size_of",
    "gather",
    "take",
    "to_device",
]

LABEL_KEYS = ("labels", "label")


def to_device(x: Any, device: torch.device) -> Any:
    """Move a tensor, or a dict or tuple of tensors."""
    if isinstance(x, Tensor):
        return x.to(device, non_blocking=True)
    if isinstance(x, Mapping):
        return {key: to_device(value, device) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return tuple(to_device(value, device) for value in x)
    return x


def batch_size_of(x: Any) -> int:
    """Number of rows of a tensor, or of a dict or tuple of tensors."""
    if isinstance(x, Mapping):
        return batch_size_of(next(iter(x.values())))
    return batch_size_of(x[0]) if isinstance(x, list | tuple) else len(x)


def take(x: Any, index: Tensor | slice) -> Any:
    """Rows of a tensor, or of every tensor of a dict or tuple.

    Example:
        >>> take({"ids": torch.arange(3), "more": (torch.ones(3, 2),)}, slice(0, 1))
        {'ids': tensor([0]), 'more': (tensor([[1., 1.]]),)}
    """
    if isinstance(x, Mapping):
        return {key: take(value, index) for key, value in x.items()}
    return tuple(take(value, index) for value in x) if isinstance(x, tuple) else x[index]


def _refuse_nonfinite(x: Tensor, what: str) -> None:
    if not x.is_floating_point() or bool(torch.isfinite(x).all()):
        return
    place = tuple(int(i) for i in (~torch.isfinite(x)).nonzero()[0])
    where = f"row {place[0]}" + (
        f", column {place[1]}" if len(place) == 2 else f", position {place[1:]}" if len(place) > 2 else ""
    )
    raise ValueError(f"{what} holds {x[place].item()} at {where}; replace or drop missing values first "
                     f"(impute with training statistics)")  # fmt: skip


def _tensor(x: Any, what: str) -> Tensor:
    if isinstance(x, Tensor):
        if x.is_complex():
            raise TypeError(f"{what} is complex ({x.dtype}); pass real and imaginary part as two features")
        return x.detach()
    if isinstance(x, DataLoader | Dataset):
        raise TypeError(
            f"{what} must be the inputs themselves (a tensor, array or dict), got a {type(x).__name__}"
        )
    array = np.asarray(x.to_numpy() if hasattr(x, "to_numpy") else x)  # pandas
    if array.dtype == object and _is_frame_of_numbers(
        x
    ):  # pandas makes objects of numbers beside truth values
        array = np.asarray(x, dtype=np.float64)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise TypeError(
            f"{what} must be numeric, got an array of dtype {array.dtype}; encode text and dates first"
        )
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_frame_of_numbers(x: Any) -> bool:
    return hasattr(x, "dtypes") and all(
        getattr(kind, "kind", "O") in "biuf" for kind in np.atleast_1d(x.dtypes)
    )


def as_inputs(x: Any, dtype: torch.dtype, integers: bool, what: str = "X") -> Any:
    """Inputs as tensors: floating point cast to ``dtype``, checked for NaN and infinity.

    Truth values alone are features and cast to ``dtype``; inside a dict or tuple they are masks and stay
    truth values, for attention adds a mask of numbers.

    Args:
        x: tensor, array, data frame, or a dict or tuple of them; rows first.
        dtype: the network's dtype.
        integers: keep whole numbers as they are (token ids); else they are cast to ``dtype`` too.
        what: name for messages.

    Raises:
        ValueError: not finite (row and column named), no rows, or parts with different numbers of rows.
        TypeError: not numeric.
    """
    if isinstance(x, Mapping):
        names = [key for key, value in x.items() if key not in LABEL_KEYS and value is not None]
        parts = [_part(x[key], dtype, True, f"{what}[{key!r}]") for key in names]
        _same_rows(parts, what)
        return dict(zip(names, parts, strict=True))
    if isinstance(x, tuple):
        parts = [_part(value, dtype, integers, f"{what}[{i}]") for i, value in enumerate(x)]
        _same_rows(parts, what)
        return tuple(parts)
    tensor = _tensor(x, what)
    if tensor.dim() == 0 or len(tensor) == 0:
        raise ValueError(f"{what} is empty (shape {tuple(tensor.shape)}); expected at least one row")
    if tensor.is_floating_point() or tensor.dtype == torch.bool or not integers:
        _refuse_nonfinite(tensor, what)
        if not tensor.is_floating_point():
            _refuse_rounding(tensor, dtype, what)
        tensor = tensor.to(dtype)
        _refuse_nonfinite(tensor, f"{what} (as {dtype})")
    return tensor.contiguous()


def _refuse_rounding(tensor: Tensor, dtype: torch.dtype, what: str) -> None:
    """Whole numbers that the network's dtype cannot hold are ids or large counts, not features."""
    limit = 2 ** (24 if dtype == torch.float32 else 53 if dtype == torch.float64 else 8)
    if tensor.dtype not in (torch.bool, torch.uint8, torch.int8) and bool((tensor.abs() > limit).any()):
        raise ValueError(
            f"{what} holds whole numbers above {limit}, which {dtype} would round; scale them, or use them "
            f"as ids in an embedding"
        )


def _part(x: Any, dtype: torch.dtype, integers: bool, what: str) -> Any:
    """One input of several: truth values stay."""
    if not isinstance(x, Mapping | tuple):
        tensor = _tensor(x, what)
        if tensor.dtype == torch.bool and tensor.dim() and len(tensor):
            return tensor.contiguous()
        x = tensor
    return as_inputs(x, dtype, integers, what)


def _same_rows(parts: Sequence[Any], what: str) -> None:
    if not parts:
        raise ValueError(f"{what} is empty: a dict or tuple without inputs; expected at least one")
    counts = sorted({batch_size_of(part) for part in parts})
    if len(counts) > 1:
        raise ValueError(f"the parts of {what} have {counts} rows; expected the same number each")


def as_labels(y: Any, dtype: torch.dtype) -> Tensor:
    """Labels as a tensor; whole numbers stay whole, the rest is cast to ``dtype``."""
    tensor = _tensor(y, "y")
    if tensor.dim() == 0:
        raise ValueError(
            "y is a single number; expected one label a row (a stream of single examples needs a DataLoader)"
        )
    _refuse_nonfinite(tensor, "y")
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Tensors:
    """All data in memory: ``x`` a tensor (or dict, tuple of tensors), ``y`` labels or ``None``."""

    x: Any
    y: Tensor | None

    @property
    def num_data(self) -> int:
        return batch_size_of(self.x)

    def to(self, device: torch.device) -> Tensors:
        return Tensors(to_device(self.x, device), None if self.y is None else self.y.to(device))

    def epoch(self, batch_size: int, seed: int, epoch: int, *, shuffle: bool) -> Iterator[tuple[Any, Tensor]]:
        """Batches of ``batch_size``; a last batch of one row joins the one before it."""
        count = self.num_data
        device = self.y.device if self.y is not None else torch.device("cpu")
        order = (
            torch.randperm(count, generator=generator(seed, "order", epoch)).to(device) if shuffle else None
        )
        start = 0
        while start < count:
            stop = min(start + batch_size, count)
            if count - stop == 1:
                stop = count
            index = slice(start, stop) if order is None else order[start:stop]
            yield take(self.x, index), take(self.y, index)
            start = stop


@dataclass(frozen=True)
class Loader:
    """A user's iterable of batches; iterated with the global state forked, its own generator put back."""

    batches: Iterable[Any]
    num_data: int
    dtype: torch.dtype
    integers: bool

    def to(self, device: torch.device) -> Loader:
        return self

    def epoch(self, batch_size: int, seed: int, epoch: int, *, shuffle: bool) -> Iterator[tuple[Any, Tensor]]:
        if type(self.batches) in (list, tuple):  # nothing is drawn, so there is no state to keep
            for batch in self.batches:
                yield _split(batch, self.dtype, self.integers)
            return
        own = _generators_of(self.batches)
        states = [g.get_state() for g in own]
        try:
            with forked(seed, "loader", epoch):
                for g in own:
                    g.manual_seed(derive(seed, "loader", epoch))
                iterator = iter(self.batches)
                inside = snapshot()
            while True:
                outside = snapshot()
                inside()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                finally:
                    inside = snapshot()
                    outside()
                yield _split(batch, self.dtype, self.integers)
        finally:
            for g, state in zip(own, states, strict=True):
                g.set_state(state)


def _generators_of(loader: Any) -> list[torch.Generator]:
    """Generators of a loader's own, of its sampler, and of its batch sampler and that one's sampler."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


@dataclass(frozen=True)
class Items:
    """A map-style ``Dataset``: batches are collated from its items in an order of our own."""

    dataset: Any
    dtype: torch.dtype
    integers: bool

    @property
    def num_data(self) -> int:
        return len(self.dataset)

    def to(self, device: torch.device) -> Items:
        return self

    def epoch(self, batch_size: int, seed: int, epoch: int, *, shuffle: bool) -> Iterator[tuple[Any, Tensor]]:
        index = Tensors(torch.arange(self.num_data), torch.arange(self.num_data))
        for number, (rows, _) in enumerate(index.epoch(batch_size, seed, epoch, shuffle=shuffle)):
            with forked(seed, "items", epoch, number):  # items may be augmented at random
                items = [self.dataset[i] for i in rows.tolist()]
            yield _split(default_collate(items), self.dtype, self.integers)


Batches = Tensors | Loader | Items


def _split(batch: Any, dtype: torch.dtype, integers: bool) -> tuple[Any, Tensor]:
    if isinstance(batch, Mapping):
        key = next((key for key in LABEL_KEYS if key in batch), None)
        if key is None:
            raise ValueError(
                f"a dict batch needs labels under one of {LABEL_KEYS}, got keys {sorted(map(str, batch))}"
            )
        return _pair(batch, batch[key], dtype, integers)
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        found = (
            f"{type(batch).__name__} of length {len(batch)}"
            if hasattr(batch, "__len__")
            else type(batch).__name__
        )
        raise ValueError(f"a batch must be (x, y) or a dict with 'labels', got {found}")
    x, y = batch
    return _pair(tuple(x) if isinstance(x, list) else x, y, dtype, integers)


def _pair(x: Any, y: Any, dtype: torch.dtype, integers: bool) -> tuple[Any, Tensor]:
    inputs, labels = as_inputs(x, dtype, integers), as_labels(y, dtype)
    if batch_size_of(inputs) != len(labels):
        raise ValueError(f"X has {batch_size_of(inputs)} rows and y has {len(labels)}; they must be equal")
    return inputs, labels


def as_source(data: Any, dtype: torch.dtype, integers: bool) -> Batches:
    """Whatever the user has, as a source of batches.

    Args:
        data: ``(X, y)``, a ``Dataset``, or an iterable of ``(x, y)`` or dict batches that can be read again.
        dtype: the network's dtype.
        integers: whether the network takes whole numbers (token ids) as input.

    Raises:
        ValueError: empty data, lengths that differ, values that are not finite.
        TypeError: a kind of data that is not known, or an iterator that can be read only once.
    """
    if isinstance(data, tuple | list) and len(data) == 2 and _is_arrays(data):
        return Tensors(*_pair(data[0], data[1], dtype, integers))
    if isinstance(data, Iterator):
        raise TypeError(
            "training reads the data once an epoch, and this iterator can be read only once; pass a list of "
            "batches or a DataLoader"
        )
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        items: Any = data
        if len(items) == 0:
            raise ValueError("the data set is empty; expected at least one example")
        return Items(data, dtype, integers)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | np.ndarray | Tensor):
        count = _count(data, dtype, integers)
        if count == 0:
            raise ValueError("the data are empty: no batch came out of the iterable")
        return Loader(data, count, dtype, integers)
    raise TypeError(f"data must be (X, y), a Dataset, or an iterable of batches, got {type(data).__name__}")


def _is_arrays(pair: Sequence[Any]) -> bool:
    """Whether a pair is ``(X, y)`` rather than a list of two batches."""
    if isinstance(pair, list) and all(isinstance(part, Mapping) for part in pair):
        return False  # two dict batches
    return not isinstance(pair[0], list | tuple) or isinstance(pair, tuple)


def _count(batches: Iterable[Any], dtype: torch.dtype, integers: bool) -> int:
    """Examples an epoch brings."""
    if (
        isinstance(batches, DataLoader)
        and batches.batch_size is not None
        and not isinstance(batches.dataset, IterableDataset)
    ):
        sampler: Any = batches.sampler
        return len(batches) * batches.batch_size if batches.drop_last else len(sampler)
    source = Loader(batches, 1, dtype, integers)
    return sum(len(y) for _, y in source.epoch(1, 0, 0, shuffle=False))


def gather(source: Batches) -> Tensors:
    """A source in memory, in its own order (validation sets, calibration)."""
    if isinstance(source, Tensors):
        return source
    pairs = list(source.epoch(1024, 0, 0, shuffle=False))
    return Tensors(_join([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))


def _join(parts: Sequence[Any], what: str = "X") -> Any:
    if isinstance(parts[0], Mapping):
        return {key: _join([part[key] for part in parts], f"{what}[{key!r}]") for key in parts[0]}
    if isinstance(parts[0], tuple):
        columns = enumerate(zip(*parts, strict=True))
        return tuple(_join(column, f"{what}[{place}]") for place, column in columns)
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise ValueError(
            f"rows of {what} have the shapes {shapes[0]} and {shapes[1]} in different batches; data that are "
            f"held together (validation, calibration, evaluation) need one shape: pad them all to the same "
            f"length (padding='max_length')"
        )
    return torch.cat(list(parts))
