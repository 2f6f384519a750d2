"""Settings of the training loop, shared by every method that trains."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral, Real

from ..probing import checked_device

__all__ = ["OneOfSeveral", "Schedule", "Training", "check_whole"]


def check_whole(**numbers: object) -> None:
    """Refuse settings that are not whole numbers of at least 1.

    Raises:
        ValueError: naming the first that is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


class Schedule(StrEnum):
    """How the learning rate moves over a fit."""

    CONSTANT = "constant"
    COSINE = "cosine"

    def factor(self, progress: float) -> float:
        """Multiple of the learning rate at ``progress`` in [0, 1)."""
        return 1.0 if self is Schedule.CONSTANT else 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop, shared by every method that trains.

    Args:
        epochs: passes over the training data.
        batch_size: examples a step, of all ranks together where several train (a user's own loader keeps its
            batches).
        learning_rate: Adam's step size.
        schedule: ``constant`` or ``cosine`` (to zero at the last step).
        patience: stop after this many epochs without a better validation NLL and keep the best epoch; needs
            ``validation``. ``None`` trains all epochs and keeps the last.
        temperature: weight ``T`` of prior or KL; 1 is Bayes, below is a cold posterior.
        autocast: run the forward pass in bfloat16 where torch finds it safe; sums stay in float32.
        device: where to train, e.g. ``"cuda"``; by default where the network is. The posterior lives there.
        compile: compile the network's forward pass with ``torch.compile``.
    """

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    schedule: Schedule = Schedule.CONSTANT
    patience: int | None = None
    temperature: float = 1.0
    autocast: bool = False
    device: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        check_whole(epochs=self.epochs, batch_size=self.batch_size)
        if self.patience is not None and not (isinstance(self.patience, Integral) and self.patience >= 1):
            raise ValueError(f"patience must be at least 1 epoch or None, got {self.patience!r}")
        for name in ("learning_rate", "temperature"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 or positive, got {self.temperature}")
        if self.device is not None:
            checked_device(self.device)
        object.__setattr__(self, "schedule", Schedule(self.schedule))


@dataclass(frozen=True, kw_only=True)
class OneOfSeveral(Training):
    """The loop's settings of one fit of a method that does more than it.

    Its checkpoint is of another fit where these differ; the method's other settings may.

    Args:
        depends_on: all else that the fit depends on, as text.
    """

    depends_on: str

    @classmethod
    def of(cls, method: Training, *depends_on: object) -> OneOfSeveral:
        """The method's own fields of ``Training``; of its other ones those whose values are given count."""
        general = {field.name: getattr(method, field.name) for field in dataclasses.fields(Training)}
        return cls(**general, depends_on=repr((type(method).__name__, *depends_on)))
