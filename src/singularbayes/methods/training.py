"""The one training loop: any learner, any data, one flat vector of trained numbers.

Training runs on a private copy of the network whose parameters are views of one flat ``w`` and whose
gradients are views of one flat ``g``. A *learner* (point estimate, mean field, ...) says what the trained
vector is, writes a draw into ``w`` before each step and turns ``g`` into the vector's gradient after it. The
objective is everywhere

    mean batch NLL + (temperature / N) * KL,        KL a sum in nats, N the number of training examples.

Every random number of an epoch follows from ``(seed, epoch)``; so a run that was killed goes on to the same
numbers (:mod:`.resume`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Tensors, to_device
from ..functions import call, evaluate, way_for
from ..model import Model
from ..posterior import Posterior
from ..probing import checked_device, restless_frozen_parts
from ..progress import Progress, shown
from ..provenance import DataSketch
from ..random import forked, generator
from . import resume
from .distributed import Ranks
from .health import TrainingDiverged, warn_if_constant, warn_of_frozen
from .learner import Bound, Build, Collecting, Prepared, Repeated, TwoSided, prepare
from .settings import Schedule, Training

__all__ = ["Run", "Schedule", "Training", "TrainingDiverged", "fit_learner"]

_CHECKPOINT_SECONDS = 20.0
_COLLECTED = "collected."


def _start(model: Model, device: torch.device) -> Tensor:
    return model.layout.flatten(model.network, model.likelihood.parameters).to(device)


class Run:
    """One fit in progress."""

    def __init__(
        self, model: Model, settings: Training, build: Build, data: Prepared, device: torch.device, seed: int
    ) -> None:
        start = _start(model, device)
        self.model, self.settings, self.data, self.seed, self.device = model, settings, data, seed, device
        self.ranks = Ranks.present()
        size, room = build.size(model), 2 if self.ranks.size > 1 else 0
        self.storage = torch.zeros(size + room, dtype=start.dtype, device=device)
        gradient = self.storage[:size]
        self.bound = Bound(model, device, gradient, start, data.probe, data.train.num_data)
        self.learner = build(self.bound, start, gradient)
        learner = self.learner
        self.mirrored = learner if isinstance(learner, TwoSided) and learner.sides == 2 else None
        self.draws = learner.draws if isinstance(learner, Repeated) else 1
        self.collecting = learner if isinstance(learner, Collecting) else None
        vector = learner.vector
        vector.grad = learner.gradient
        self.optimizer = learner.optimizer(settings.learning_rate)
        self.forward: Any = torch.compile(self.bound.network) if settings.compile else self.bound.network
        self.state = resume.State()
        self.start = self.good = self.snapshot()
        self.best: dict[str, Tensor] | None = None

    # One step, one epoch

    def step(
        self, x: Any, y: Tensor, weight: float, progress: float, noise: torch.Generator, checked: bool = True
    ) -> Tensor:
        """Draw, forward, backward, update; labels that were not ``checked`` are checked by the outputs."""
        learner = self.learner
        losses = []
        for _ in range(self.draws):
            learner.draw(noise)
            learner.gradient.zero_()
            losses.append(self._pass(x, y, checked))
        loss = losses[0] if self.draws == 1 else torch.stack(losses).mean()
        if self.mirrored is not None:
            self.mirrored.mirror()
            loss = (loss + self._pass(x, y, checked)) / 2
        learner.finish(weight, progress)
        loss = self.ranks.average(self.storage, loss, len(y))
        self.optimizer.step()
        return loss

    def _pass(self, x: Any, y: Tensor, checked: bool) -> Tensor:
        """Forward and backward; the loss."""
        try:
            if self.settings.autocast:
                with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
                    outputs = call(self.forward, x).float()
            else:
                outputs = call(self.forward, x)
        except ValueError as error:
            if len(y) > 1:
                raise
            raise ValueError(
                f"the network cannot train on a batch of one row ({error}): a batch normalisation needs "
                f"batch_size of at least 2; of batches of your own, drop_last=True in the DataLoader"
            ) from error
        if not checked:
            y = self.model.likelihood.labels(outputs.shape, y)
        loss = self.model.likelihood.loss(outputs, y, self.bound.likelihood_numbers)
        loss.backward()
        return loss.detach()

    def epoch(self) -> dict[str, float]:
        """One pass; returns the size-weighted mean NLL and the objective per datum."""
        settings, number = self.settings, self.state.epoch
        count = self.data.train.num_data
        weight = settings.temperature / count
        ranks = self.ranks
        noise = generator(self.seed, "noise", number, *ranks.place, device=self.device)
        losses: list[Tensor | float] = []
        sizes: list[int] = []
        seen = 0
        at_once = self.device.type == "cpu"  # elsewhere asking for each loss would wait for the device
        checked = isinstance(self.data.train, Tensors)
        with forked(self.seed, "forward", number, *ranks.place, device=self.device), self._train_mode():
            for inputs, labels, rows in ranks.batches(
                self.data.train, settings.batch_size, self.seed, number
            ):
                x, y = inputs, labels
                if not checked:
                    x, y = to_device(inputs, self.device), labels.to(self.device)
                progress = number + seen / count
                self._set_rate(min(progress / settings.epochs, 1.0))
                loss: Tensor | float = self.step(x, y, weight, progress, noise, checked)
                if at_once:
                    loss = loss.item()
                    if not math.isfinite(loss):
                        raise _NotFiniteError(len(losses))
                losses.append(loss)
                sizes.append(rows)
                seen += rows
        ranks.average_buffers(self.bound.network, self.model.layout)
        values = [float(loss) for loss in losses]
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise _NotFiniteError(step)
        if not bool(torch.isfinite(self.learner.vector).all()):  # the last step's gradient was not finite
            raise _NotFiniteError(len(values) - 1)
        nll = sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)
        return {"nll": nll, "objective": nll + weight * self.learner.regulariser()}

    def _set_rate(self, progress: float) -> None:
        schedule = self.settings.schedule
        if schedule is not Schedule.CONSTANT:
            self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * schedule.factor(progress)

    @contextlib.contextmanager
    def _train_mode(self) -> Iterator[None]:
        self.bound.network.train()
        # Also inside a caller's no_grad; not under a caller's autocast, whose cache would keep old weights.
        with torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
            yield
        self.bound.network.eval()

    @torch.no_grad()
    def validation_loss(self, x: Any, y: Tensor, draws: int) -> float:
        """Mean NLL of the predictive mixture on validation data."""
        with torch.autocast(self.device.type, enabled=False):
            predictive = self.posterior({}).predict(x, draws=draws, seed=self.seed)
            return self.ranks.agreed(-predictive.log_prob(y).double().mean().item(), self.device)

    # Snapshots

    def snapshot(self) -> dict[str, Tensor]:
        """Everything that training moves, copied; what a learner has collected, as its own tensors.

        Those hold until the learner collects again: long enough for the last good state, which is replaced
        right after. The best one, which is kept longer, copies them (:meth:`kept`).
        """
        parts = {"vector": self.learner.vector.detach().clone()}
        parts |= {f"buffer.{name}": b.clone() for name, b in self.bound.network.named_buffers()}
        for name, value in (
            self.optimizer.state[self.learner.vector] if self.optimizer.state else {}
        ).items():
            parts[f"optimizer.{name}"] = value.clone()
        if self.collecting is not None:
            parts |= {f"{_COLLECTED}{name}": t for name, t in self.collecting.collected().items()}
        return parts

    def kept(self) -> dict[str, Tensor]:
        """A snapshot all of whose tensors are copies."""
        parts = self.snapshot()
        return parts | {n: t.clone() for n, t in parts.items() if n.startswith(_COLLECTED)}

    @torch.no_grad()
    def restore(self, parts: dict[str, Tensor]) -> None:
        """Put a snapshot back."""
        self.learner.vector.copy_(parts["vector"])
        buffers = dict(self.bound.network.named_buffers())
        for name, tensor in parts.items():
            kind, _, leaf = name.partition(".")
            if kind == "buffer":
                buffers[leaf].copy_(tensor)
        own = {n.partition(".")[2]: t.clone() for n, t in parts.items() if n.startswith("optimizer.")}
        if own:
            device = self.learner.vector.device  # fused Adam counts its steps on the device too
            self.optimizer.state[self.learner.vector] = {name: t.to(device) for name, t in own.items()}
        if self.collecting is not None:
            gathered = {n.removeprefix(_COLLECTED): t for n, t in parts.items() if n.startswith(_COLLECTED)}
            self.collecting.recollect(gathered)

    def seen(self) -> dict[str, Any] | None:
        """A sketch of all data that the fit has looked at: training, validation, those of its start.

        ``None`` where the training data do not lie in memory.
        """
        train, held = self.data.train, self.data.validation
        if not isinstance(train, Tensors):
            return None
        sketch = DataSketch.of(train.x, train.y)
        if held is not None:
            sketch = sketch.joined(DataSketch.of(*held))
        return (sketch if self.model.seen is None else sketch.joined(self.model.seen)).to_dict()

    def posterior(self, info: dict[str, Any]) -> Posterior:
        """The posterior at the present state, on a network of its own."""
        network = self.model.copy_network().to(self.device)
        own = dict(network.named_buffers())
        with torch.no_grad():
            for name, buffer in self.bound.network.named_buffers():
                own[name].copy_(buffer)
        distribution = self.learner.distribution()
        self.model.layout.write(network, distribution.mean)
        return Posterior(network, distribution, self.model.likelihood, self.model.layout, info)


class _NotFiniteError(Exception):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step


def fit_learner(
    model: Model,
    settings: Training,
    build: Build,
    data: Any,
    validation: Any,
    *,
    seed: int,
    checkpoint: str | Path | None,
    progress: bool | None,
    validation_draws: int = 1,
    dropout: bool = False,
    facts: dict[str, Any],
) -> Posterior:
    """Fit a learner and return its posterior.

    Args:
        model: network, likelihood, prior.
        settings: of the loop (the method itself).
        build: makes the learner from the bound network, the start row and the gradient buffer.
        data: training data, any form of ``data.as_source``.
        validation: held-out data or ``None``.
        seed: of order, noise and dropout.
        checkpoint: folder to save to at ends of epochs and to go on from; ``None`` saves nothing. Of several
            ranks the first writes, and all read.
        progress: show a bar (``None``: on a terminal only).
        validation_draws: draws of the validation NLL.
        dropout: dropout is the method's own noise, meant in frozen parts of the network too.
        facts: goes into ``info`` (method's name, trained numbers).

    Raises:
        TrainingDiverged: nan or infinite loss, with the step's number and the last good posterior.
        ValueError: bad data, or a checkpoint of another fit.
    """
    device = checked_device(settings.device) if settings.device else model.device
    prepared = prepare(model, settings.patience, data, validation, device)
    Ranks.present().check(prepared.train)
    run = Run(model, settings, build, prepared, device, seed)
    folder = None if checkpoint is None else Path(checkpoint)
    # A constant learning rate does not look ahead: such a fit may go on to more epochs.
    free = ("epochs", "device") if settings.schedule is Schedule.CONSTANT else ("device",)
    mark = resume.fingerprint(settings, free, model, prepared, run.good["vector"], seed)
    run.ranks.check_equal(mark)
    if folder is not None and resume.exists(folder):
        run.state, run.good, run.best = resume.read(folder, mark)
        if run.state.epoch > settings.epochs:
            raise ValueError(
                f"the checkpoint in {folder} stands at epoch {run.state.epoch}, beyond "
                f"epochs={settings.epochs}; ask for at least as many epochs, or choose another folder"
            )
        run.restore(run.good)
        run.good = run.snapshot()  # no second copy of what was collected
    run.ranks.check_equal(f"{mark} {run.state.epoch}")
    warn_of_frozen(restless_frozen_parts(model, run.bound.network.train(), dropout=not dropout))
    with shown(facts["method"], settings.epochs, False if run.ranks.rank else progress) as display:
        _epochs(run, folder, mark, validation_draws, display, facts)
    if run.best is not None:
        run.restore(run.best)
    _check_end(run, facts)
    return run.posterior(_info(run, facts))


def _epochs(
    run: Run,
    folder: Path | None,
    mark: str,
    validation_draws: int,
    display: Progress,
    facts: dict[str, Any],
) -> None:
    state, settings = run.state, run.settings
    saved = time.monotonic()
    while state.epoch < settings.epochs and not state.stopped:
        began = time.perf_counter()
        try:
            record = run.epoch()
        except _NotFiniteError as failure:
            run.restore(run.good)
            message = (
                f"the loss became nan or infinite in epoch {state.epoch + 1}, step {failure.step + 1}; the "
                f"state at the end of epoch {state.epoch} is kept in this error's .posterior. Lower "
                f"learning_rate (now {settings.learning_rate}), or check the scale of inputs and labels"
            )
            raise TrainingDiverged(message, run.posterior(_info(run, facts))) from None
        state.epoch += 1
        if run.collecting is not None:
            run.collecting.end_of_epoch(state.epoch)
        if run.data.validation is not None:
            record["validation_nll"] = run.validation_loss(*run.data.validation, validation_draws)
            if record["validation_nll"] < state.best_loss:
                state.best_loss, state.best_epoch = record["validation_nll"], state.epoch
                if settings.patience is not None:
                    run.best = run.kept()
            elif settings.patience is not None and state.epoch - state.best_epoch >= settings.patience:
                state.stopped = True
        run.good = run.snapshot()
        state.seconds += time.perf_counter() - began
        state.history.append(record)
        display(state.epoch, settings.epochs, record)
        last = state.epoch == settings.epochs or state.stopped
        if (
            folder is not None
            and run.ranks.rank == 0
            and (last or time.monotonic() - saved > _CHECKPOINT_SECONDS)
        ):
            resume.save(folder, mark, state, run.good, run.best)
            saved = time.monotonic()


def _info(run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    state = run.state
    settings = {
        f.name: getattr(run.settings, f.name)
        for f in dataclasses.fields(run.settings)
        if f.name != "executor"
    }
    kept = state.best_epoch if run.best is not None else state.epoch
    return {
        **facts,
        **run.learner.facts(),
        "seconds": state.seconds,
        "epochs": state.epoch,
        "kept_epoch": kept,
        "seed": run.seed,
        "num_data": run.data.train.num_data,
        "data": run.seen(),
        "prior": run.model.describe_prior(),
        "ranks": run.ranks.size,
        "settings": settings,
        "history": list(state.history),
    }


def _check_end(run: Run, facts: dict[str, Any]) -> None:
    """The last state must predict; a fault that the user can act on is named."""
    x, _ = next(iter(run.data.train.epoch(256, run.seed, 0, shuffle=False)))
    row = run.learner.distribution().mean.unsqueeze(0)
    network = run.bound.network.eval()
    with torch.no_grad():
        outputs = evaluate(network, run.model.layout, row, to_device(x, run.device), way_for(network))[0]
    if not bool(torch.isfinite(outputs).all()):
        run.restore(run.start)
        raise TrainingDiverged(
            f"the fitted network's outputs are nan or infinite: the last step was too large. This error's "
            f".posterior holds the start. Lower learning_rate (now {run.settings.learning_rate})",
            run.posterior(_info(run, facts)),
        )
    run.model.likelihood.warn_if_degenerate(outputs, run.bound.likelihood_numbers)
    warn_if_constant(x, outputs, run.settings.temperature)
