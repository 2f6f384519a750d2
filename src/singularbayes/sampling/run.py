"""The one loop of all samplers: warm-up, draws, thinning, progress, checkpoints.

All randomness comes from one generator, whose state is saved with the chains: a run that was killed goes on
to the same numbers, bit for bit, on the same machine and number of threads.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..progress import Progress, shown
from ..random import generator
from .chain_state import rebuilt, tensors_of
from .journal import Journal
from .sampler import Info, Sampler, Target, named
from .samples import FEW, Samples, Statistics
from .target import check_start

__all__ = ["ChainWarning", "ChainsStuck", "run", "warn_of"]

_SAVE_SECONDS = 5.0
_SAVE_SHARE = 0.05  # of the time so far: long runs save less often, and have tens of blocks
_SHOW_SECONDS = 0.2
_STUCK_STEPS = 100
_LOW_ACCEPTANCE = 0.4
_MANY_DIVERGENCES = 0.01
_SAME = {torch.float32: 1e-4, torch.float64: 1e-9}  # relative: threads and machines round sums differently


class ChainsStuck(RuntimeError):  # noqa: N818 - a state, like TrainingDiverged
    """No chain has ever accepted a proposal; ``samples`` is what was kept until then, perhaps no draw.

    Args:
        message: what happened, and what to do.
        samples: of the steps until then.
    """

    def __init__(self, message: str, samples: Samples) -> None:
        super().__init__(message)
        self.samples = samples


class ChainWarning(UserWarning):
    """Draws that may not stand for the density: chains that never moved, low acceptance, divergences."""


@dataclass(frozen=True, eq=False)
class _Last:
    """After a whole step: replaced in one assignment, so that an interrupt finds the one or the next."""

    done: int
    state: Any
    source: Tensor
    moved: Tensor


class _Run:
    """One run in progress."""

    def __init__(
        self,
        sampler: Sampler,
        target: Target,
        position: Float[Tensor, "C d"],
        warm_up: int,
        draws: int,
        thin: int,
        seed: int,
    ) -> None:
        chains, dimension = position.shape
        self.sampler, self.target = sampler, target
        self.warm_up, self.draws, self.thin = warm_up, draws, thin
        self.steps = warm_up + draws * thin
        self.origin = check_start(target, position)
        self.source = generator(seed, "chains", device=position.device)
        state = sampler.start(target, position, self.source)
        moved = torch.zeros(chains, dtype=torch.bool, device=position.device)
        self.last = _Last(0, state, self.source.get_state(), moved)
        self.statistics = Statistics.empty(chains, self.steps, position.device)
        self.kept = position.new_zeros(chains, draws, dimension)
        self.log_density = torch.zeros(chains, draws, dtype=torch.float64, device=position.device)
        self.saved, self.seconds = 0, 0.0

    def step(self) -> None:
        """One step of all chains, recorded."""
        last, number = self.last, self.last.done
        if number < self.warm_up:
            state, info = self.sampler.warm_up(last.state, number, self.warm_up, self.target, self.source)
        else:
            state, info = self.sampler.step(last.state, self.target, self.source)
        point = self.sampler.point(state)
        self._record(number, info)
        after = number + 1 - self.warm_up
        if after > 0 and after % self.thin == 0:
            self.kept[:, after // self.thin - 1] = point.position
            self.log_density[:, after // self.thin - 1] = point.log_density
        moved = last.moved | (point.position != self.sampler.point(last.state).position).any(1)
        self.last = _Last(number + 1, state, self.source.get_state(), moved)

    def _record(self, number: int, info: Info) -> None:
        for field in fields(Statistics):
            getattr(self.statistics, field.name)[:, number] = getattr(info, field.name)

    def facts(self) -> dict[str, float]:
        """Of the present phase, for the display."""
        done = self.last.done
        part = self.statistics.between(0 if done <= self.warm_up else self.warm_up, done)
        acceptance = part.acceptance.mean().item() if done else 0.0
        return {"acceptance": acceptance, "divergences": int(part.divergent.sum())}

    # What was drawn so far

    def drawn(self, done: int) -> int:
        """Draws of each chain that are kept after ``done`` steps."""
        return max(0, done - self.warm_up) // self.thin

    def samples(self, info: dict[str, Any]) -> Samples:
        """Of the steps so far."""
        done, drawn = self.last.done, self.drawn(self.last.done)
        return Samples(
            self.kept[:, :drawn],
            self.log_density[:, :drawn],
            self.statistics.between(self.warm_up, done),
            self.statistics.between(0, min(done, self.warm_up)),
            self.sampler.facts(self.last.state),
            info,
        )

    # Checkpoints

    def save(self, journal: Journal) -> None:
        """All steps since the last save, and the state."""
        last, first = self.last, self.saved
        if last.done == first and journal.blocks:
            return
        drawn = slice(self.drawn(first), self.drawn(last.done))
        block = self.statistics.between(first, last.done).tensors()
        block |= {"draws": self.kept[:, drawn], "log_density": self.log_density[:, drawn]}
        state = tensors_of(last.state) | {"source": last.source, "moved": last.moved}
        state |= {"start": self.origin.position, "start_log_density": self.origin.log_density}
        journal.write(block, first, state, {"done": last.done, "seconds": self.seconds})
        self.saved = last.done

    def restore(self, journal: Journal) -> None:
        """Go on from the checkpoint, if there is one."""
        found = journal.read()
        if found is None:
            return
        tensors, content = found
        done = int(content["done"])
        if done > self.steps:
            raise ValueError(
                f"the checkpoint in {journal.folder} holds {self.drawn(done)} draws of each chain, more "
                f"than draws={self.draws}; ask for at least as many, or choose another folder"
            )
        self._check_origin(tensors, journal)
        for number in range(journal.blocks):
            block, first = journal.block(number)
            last = first + block["acceptance"].shape[1]
            for name, whole in self.statistics.tensors().items():
                whole[:, first:last] = block[name]
            drawn = slice(self.drawn(first), self.drawn(last))
            self.kept[:, drawn], self.log_density[:, drawn] = block["draws"], block["log_density"]
        self.source.set_state(tensors["source"].cpu())
        state = rebuilt(self.last.state, tensors)
        self.last = _Last(done, state, tensors["source"], tensors["moved"].to(self.kept.device))
        self.saved, self.seconds = done, float(content["seconds"])

    def _check_origin(self, tensors: dict[str, Tensor], journal: Journal) -> None:
        """A function has no fingerprint; its values at the start tell most others apart."""
        position, value = self.origin.position, self.origin.log_density
        start, before = (tensors[name].to(position.device) for name in ("start", "start_log_density"))
        if start.dtype != position.dtype:
            reason = f"its chains are {start.dtype}, these {position.dtype}"
        elif start.shape != position.shape or not torch.equal(start, position):
            reason = "its chains started elsewhere"
        else:
            away = (before - value).abs() > 1e-6 + _SAME[position.dtype] * value.abs()
            if not bool(away.any()):
                return
            chain = int(away.nonzero()[0])
            reason = (
                f"its log density at the start of chain {chain} was {before[chain]:.10g}, now "
                f"{value[chain]:.10g}"
            )
        raise ValueError(
            f"{journal.folder} holds a checkpoint of another run: {reason}. Choose another folder or remove "
            f"it"
        )


@torch.no_grad()
def run(
    sampler: Sampler,
    target: Target,
    position: Float[Tensor, "C d"],
    *,
    warm_up: int,
    draws: int,
    thin: int,
    seed: int,
    checkpoint: str | Path | None,
    progress: bool | None,
    label: str,
    mark: str = "",
) -> Samples:
    """Run ``C`` chains side by side.

    Args:
        sampler: the kernel.
        target: what it samples.
        position: where the chains start; float32 or float64, which the draws follow.
        warm_up: steps that are not kept, in which the sampler adapts.
        draws: kept, of each chain.
        thin: steps between kept draws.
        seed: of all randomness.
        checkpoint: folder to save to every few seconds and on an interrupt, and to go on from; a finished run
            may be given more ``draws``. ``None`` saves nothing.
        progress: show acceptance and divergences (``None``: on a terminal only).
        label: of the display, and the method's name.
        mark: what else must be equal for a checkpoint to be of the same run (data, network), as text.

    Raises:
        ChainsStuck: no chain moved in warm-up (or in the first 100 steps).
        OSError: a checkpoint folder that cannot be written to, before any step.
        ValueError: a start without density, or a checkpoint of another run.

    Warns:
        ChainWarning: chains that never moved, a low acceptance, many divergences; with the chains' numbers.
        UserWarning: a checkpoint that could not be saved later on; the run goes on and tries again.
    """
    going = _Run(sampler, target, position, warm_up, draws, thin, seed)
    journal = None
    if checkpoint is not None:
        settings = f"{label} {sampler!r} warm_up={warm_up} thin={thin} seed={seed} {mark}".strip()
        if len(settings) > 600:
            settings = f"{label} {hashlib.sha256(settings.encode()).hexdigest()}"
        journal = Journal(checkpoint, settings)
        going.restore(journal)
    try:
        with shown(label, going.steps, progress, unit="step") as display:
            _advance(going, journal, display, label, seed)
    except BaseException as failure:
        # ChainsStuck has saved
        if journal is not None and not isinstance(failure, ChainsStuck) and _saved(going, journal):
            failure.add_note(
                f"{label}: the chains after step {going.last.done} of {going.steps} are kept in "
                f"{journal.folder}; the same call goes on from there"
            )
        raise
    samples = going.samples(_info(going, label, seed))
    warn_of(samples)
    return samples


def _advance(going: _Run, journal: Journal | None, display: Progress, label: str, seed: int) -> None:
    began, before = time.monotonic(), going.seconds
    saved = shown_at = began
    _check_moving(going, journal, label, seed)  # of a run that is read
    while going.last.done < going.steps:
        going.step()
        now = time.monotonic()
        going.seconds = before + now - began
        done = going.last.done
        if done == going.steps or now - shown_at > _SHOW_SECONDS:
            display(done, going.steps, going.facts())
            shown_at = now
        _check_moving(going, journal, label, seed)
        wait = max(_SAVE_SECONDS, _SAVE_SHARE * going.seconds)
        if journal is not None and (done == going.steps or now - saved > wait):
            _saved(going, journal)
            saved = time.monotonic()


def _saved(going: _Run, journal: Journal) -> bool:
    """Save; a full disk must not lose the draws of a long run."""
    try:
        going.save(journal)
    except OSError as error:
        warnings.warn(f"the chains could not be saved in {journal.folder}: {error}", stacklevel=6)
        return False
    return True


def _check_moving(going: _Run, journal: Journal | None, label: str, seed: int) -> None:
    if bool(going.last.moved.any()):
        return
    if going.last.done < max(FEW, min(going.steps, max(going.warm_up, _STUCK_STEPS))):
        return
    kept = f"; they are kept in {journal.folder}" if journal is not None and _saved(going, journal) else ""
    done = going.last.done
    part = going.statistics.between(0, done)
    raise ChainsStuck(
        f"{named(~going.last.moved)} never accepted a proposal in {done} steps (mean acceptance "
        f"{part.acceptance.mean():.2g}, {int(part.divergent.sum())} divergent){kept}. Give a smaller "
        f"step_size, start where the density is higher, and check that the gradient is the log density's",
        going.samples(_info(going, label, seed)),
    )


def _info(going: _Run, label: str, seed: int) -> dict[str, Any]:
    chains, _, dimension = going.kept.shape
    done = going.last.done
    kept = going.statistics.between(going.warm_up, max(done, going.warm_up))
    return {
        "method": label,
        "chains": chains,
        "draws_per_chain": going.drawn(done),
        "dimension": dimension,
        "warm_up": going.warm_up,
        "thin": going.thin,
        "seed": seed,
        "seconds": going.seconds,
        "acceptance": kept.acceptance.mean(1).tolist(),
        "divergences": kept.divergent.sum(1).tolist(),
        "gradients": going.statistics.gradients[:, :done].sum(1).tolist(),
        "never_accepted": (~going.last.moved).nonzero()[:, 0].tolist(),
    }


def warn_of(samples: Samples, stacklevel: int = 5) -> None:
    """Of what a user can act on; stuck chains are not named again for their acceptance.

    Args:
        samples: of a whole run, with its ``info``.
        stacklevel: of the warnings; by default the caller of :func:`run`'s caller.

    Warns:
        ChainWarning: with the numbers of the chains.
    """
    unmoved = torch.zeros_like(samples.stuck)
    unmoved[samples.info["never_accepted"]] = True
    stuck = samples.stuck | unmoved
    if bool(stuck.any()):
        warnings.warn(
            f"{named(stuck)} never accepted a proposal after warm-up: their draws are one point. Leave them "
            f"out, lower step_size, or start them elsewhere",
            ChainWarning,
            stacklevel=stacklevel,
        )
    judged = samples.statistics.acceptance.shape[1] >= FEW
    low = (samples.acceptance < _LOW_ACCEPTANCE) & ~stuck & judged
    if bool(low.any()):
        warnings.warn(
            f"{named(low)}: mean acceptance {samples.acceptance[low].min():.2f} to "
            f"{samples.acceptance[low].max():.2f}, below {_LOW_ACCEPTANCE}: few draws differ. Lower "
            f"step_size, or warm up longer",
            ChainWarning,
            stacklevel=stacklevel,
        )
    share = samples.statistics.divergent.double().mean(1)
    many = (share > _MANY_DIVERGENCES) & ~stuck
    if bool(many.any()):
        warnings.warn(
            f"{named(many)}: {samples.divergences[many].sum()} divergent steps after warm-up (up to "
            f"{share.max():.1%} of a chain's): draws may miss where the density is narrow. Lower step_size, "
            f"raise the target acceptance, or change the parametrization",
            ChainWarning,
            stacklevel=stacklevel,
        )
