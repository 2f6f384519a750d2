"""Snapshots of a training that is not ours: of a user's own loop, or a folder of checkpoints.

A method whose posterior is made of a trajectory (``SWA``, ``SWAG``) has ``.collector(model)``. The collector
holds the state that grows; the method stays what it is, settings.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors.torch
import torch
from torch import Tensor, nn

from ..data import as_source
from ..model import Model, check_model
from ..normalization import ShuffledPass, has_statistics
from ..parameters import owner
from ..posterior import Posterior
from ..random import derive
from .collection import Collection
from .trajectory import Trajectory

__all__ = ["Collector", "Finish", "Last", "training_pass"]

_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")


class Last:
    """Where a walk ended.

    Args:
        model: of the walk.
        network: a private copy of its network: buffers and frozen parameters are those of the posterior.
        info: plain facts.
    """

    def __init__(self, model: Model, network: nn.Module, info: Mapping[str, Any]) -> None:
        self.network, self.info = network, dict(info)
        slots = model.layout.of_kind("statistic")
        self.device = next(network.parameters()).device
        parts = [getattr(*owner(network, slot.name)).detach().reshape(-1) for slot in slots]
        empty = torch.empty(0, dtype=model.dtype, device=self.device)
        self.statistics = torch.cat([empty, *[part.to(empty) for part in parts]])


@runtime_checkable
class Finish(Protocol):
    """A method that makes a posterior of a trajectory; a frozen dataclass."""

    def posterior_of(
        self, model: Model, last: Last, trajectory: Trajectory, train: Any, seed: int
    ) -> Posterior:
        """The posterior of a trajectory that ended at ``last``; it may keep that network."""
        ...


def training_pass(
    settings: Collection, model: Model, last: Last, train: Any, seed: int
) -> Iterable[tuple[Any, Tensor]]:
    """The pass over the training data that estimates statistics of normalisation layers.

    Args:
        settings: for the batch size.
        model: of the fit.
        last: where the walk ended.
        train: training data, or ``None``.
        seed: of the fit.

    Raises:
        ValueError: no training data, and statistics that need them.
    """
    if train is not None:
        source = as_source(train, model.dtype, model.takes_integers).to(last.device)
        return ShuffledPass(source, settings.batch_size, derive(seed, "statistics"))
    if has_statistics(last.network, model.layout):
        first = model.layout.of_kind("statistic")[0].name
        raise ValueError(
            f"the network has running statistics ({first}, ...), which must be estimated anew at the "
            f"posterior's weights; pass the training data: posterior(train)"
        )
    return []


class Collector:
    """Gathers snapshots of a training of your own, and makes a method's posterior of them.

    Call :meth:`collect` at the end of each epoch, once the network moves around in its basin at a constant
    learning rate (from a trained network: some 20 to 50 epochs of SGD), or :meth:`collect_folder` on saved
    checkpoints. A snapshot is taken in, not kept: memory is that of the mean, the variance and ``rank``
    deviations. Buffers and frozen parameters are read from ``model.network`` when the posterior is made.

    Args:
        model: of the network that is trained, or one of the same architecture. Its noise must be known
            (``sb.Gaussian(noise=0.1)``): the network's snapshots do not hold it.
        trajectory: of vectors ``(layout.trained,)``.
        method: makes the posterior.

    Raises:
        ValueError: a likelihood with learned numbers.

    Example:
        >>> import singularbayes as sb
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> swag = sb.SWAG(rank=10).collector(sb.Model(network, sb.Gaussian(noise=0.1)))
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        >>> for epoch in range(15):
        ...     for rows in torch.randperm(64).split(16):
        ...         optimizer.zero_grad()
        ...         nn.functional.mse_loss(network(x[rows]), x[rows] ** 2).backward()
        ...         _ = optimizer.step()
        ...     if epoch >= 5:
        ...         swag.collect(network)
        >>> posterior = swag.posterior()
        >>> posterior.predict(x, draws=32).epistemic.shape, posterior.info["collected"]
        (torch.Size([64]), 10)
    """

    def __init__(self, model: Model, trajectory: Trajectory, method: Finish) -> None:
        check_model(model)
        learned = model.layout.of_kind("likelihood")
        if learned:
            raise ValueError(
                f"the likelihood learns {learned[0].name}, which a network's snapshot does not hold; give "
                f"its value (sb.Gaussian(noise=0.1)), or let .fit train the network"
            )
        self.model, self.trajectory, self.method = model, trajectory, method

    def __repr__(self) -> str:
        return f"Collector({type(self.method).__name__}, {self.trajectory})"

    def collect(self, network: nn.Module | Mapping[str, Tensor]) -> None:
        """Take in a network's present weights; the network may go on training.

        Args:
            network: the network, as it is or wrapped (``DistributedDataParallel``, ``torch.compile``, an
                attribute of a Lightning module: whatever stands before all names), or its state dict.

        Raises:
            TypeError: something else.
            ValueError: another architecture (the tensor is named), values that are not finite.
        """
        state = network.state_dict() if isinstance(network, nn.Module) else network
        if not isinstance(state, Mapping):
            raise TypeError(
                f"collect takes a network or its state dict, got a {type(network).__name__}; checkpoints in "
                f"files: collect_folder(folder)"
            )
        if not _is_state_dict(state):
            raise ValueError(f"got no state dict: {_entries(state)}; take the right one of them")
        self.trajectory.add(self._pieces(state, "the network"))

    def collect_folder(
        self, folder: str | Path, pattern: str | None = None, key: str | None = None
    ) -> list[Path]:
        """Take in every checkpoint of a folder, in the natural order of their names (2 before 10).

        Args:
            folder: of state dicts that ``torch.save`` wrote, or safetensors files.
            pattern: of their names below the folder, e.g. ``"checkpoint-*/model.safetensors"``; by default
                every ``.pt``, ``.pth``, ``.ckpt``, ``.bin`` and ``.safetensors`` file in it.
            key: where the state dict lies, if a file holds more (``torch.save({"model": ..., ...})``).

        Returns:
            The files, in the order in which they were taken.

        Raises:
            FileNotFoundError: no such folder.
            ValueError: no checkpoint there; a file that is no state dict, or of another architecture (file
                and tensor are named). Files before it have been taken in.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is no folder")
        found = folder.glob("*" if pattern is None else pattern)
        files = [f for f in found if f.is_file() and (pattern is not None or f.suffix in _SUFFIXES)]
        if not files:
            wanted = f"matches {pattern!r}" if pattern is not None else f"ends in {', '.join(_SUFFIXES)}"
            raise ValueError(f"zero snapshots: no file in {folder} {wanted}")
        files.sort(key=lambda file: _natural(file.relative_to(folder).as_posix()))
        for file in files:
            self.trajectory.add(self._pieces(_state(file, key), file.relative_to(folder).as_posix()))
        return files

    def posterior(self, train: Any = None, *, seed: int = 0) -> Posterior:
        """The method's posterior of what was collected so far; collecting may go on.

        Nothing is copied now. If another snapshot follows, the columns are copied first: the posterior keeps
        its own.

        Args:
            train: training data; needed if normalisation layers have running statistics.
            seed: of draws and of the order of the data, where statistics are estimated.

        Raises:
            ValueError: nothing collected; running statistics without training data.
        """
        if self.trajectory.count == 0:
            raise ValueError(
                "zero snapshots were collected; call collect(network) at the ends of epochs, or "
                "collect_folder(folder)"
            )
        model, method = self.model, self.method
        general = {field.name for field in dataclasses.fields(Collection)}
        own = [f.name for f in dataclasses.fields(method) if f.name not in general]  # type: ignore[arg-type]
        info = {
            "method": type(method).__name__,
            "seed": seed,
            "settings": {name: getattr(method, name) for name in own},
        }
        last = Last(model, model.copy_network(), info)
        return method.posterior_of(model, last, self.trajectory, train, seed)

    def _pieces(self, state: Mapping[str, Tensor], what: str) -> list[Tensor]:
        """The trained tensors of a state dict, in the order of the vector."""
        network, layout = self.model.network, self.model.layout
        known = network.state_dict()
        while not known.keys() & state.keys():
            wrappers = {name.partition(".")[0] for name in state}
            if len(wrappers) != 1 or not all("." in name for name in state):
                break
            state = {name.partition(".")[2]: tensor for name, tensor in state.items()}
        slots = layout.of_kind("belief", "point")
        parts = []
        for slot in slots:
            names = [alias for alias in slot.aliases if alias in state]
            if not names:
                raise ValueError(f"{what}: there is no tensor {slot.name}; it is of another architecture")
            name = names[0]
            if tuple(state[name].shape) != slot.shape:
                raise ValueError(
                    f"{what}: {name} has shape {tuple(state[name].shape)}, the model's has {slot.shape}; it "
                    f"is of another architecture"
                )
            for other in names[1:]:
                if not _same(state[other], state[name]):
                    raise ValueError(f"{what}: {name} and {other} differ, and are one parameter in the model")
            parts.append(state[name].to(self.model.device))
        self._check_rest(known, state, what)
        return parts

    def _check_rest(self, known: Mapping[str, Tensor], state: Mapping[str, Tensor], what: str) -> None:
        """What is not trained must be what the posterior will be read with."""
        unknown = [name for name in state if name not in known]
        if unknown:
            raise ValueError(
                f"{what}: the model's network has no tensor {unknown[0]}; it is of another architecture"
            )
        inside = {alias for slot in self.model.layout.slots for alias in slot.aliases}
        for name, parameter in self.model.network.named_parameters(remove_duplicate=False):
            if name not in inside and name in state and not _same(state[name], parameter.detach()):
                raise ValueError(
                    f"{what}: {name} is frozen in the model, but differs from the model's network; load the "
                    f"checkpoint into that network first, or let the parameter require a gradient"
                )


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.to(two), two)


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _state(file: Path, key: str | None) -> dict[str, Tensor]:
    """The state dict in a file."""
    try:
        if file.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of a damaged file make torch's reader raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch's own advice is to run the pickle
            reason = "it holds pickled objects, or is damaged"
        raise ValueError(
            f"{file} cannot be read as tensors alone ({reason}); save network.state_dict() with torch.save, "
            f"or as safetensors"
        ) from error
    if key is not None:
        if not isinstance(content, Mapping) or key not in content:
            raise ValueError(f"{file} has no entry {key!r}; {_entries(content)}")
        content = content[key]
    if not _is_state_dict(content):
        raise ValueError(
            f"{file} is no state dict; {_entries(content)}; name the right one: key='...', or choose the "
            f"files of networks: pattern='...'"
        )
    return dict(content)


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and all(isinstance(value, Tensor) for value in content.values())


def _entries(content: Any) -> str:
    if not isinstance(content, Mapping):
        return f"it holds a {type(content).__name__}"
    return f"it holds {', '.join(map(str, list(content)[:6]))}"
