"""``Certificate``: a risk, the confidence that it holds with, and everything that this rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import checkpoint

__all__ = ["Certificate", "Condition"]

_STEM = "certificate"


@dataclass(frozen=True)
class Condition:
    """One condition of a certificate.

    Attributes:
        text: what has to hold.
        checked: it was checked here; else it is the user's to know.
    """

    text: str
    checked: bool

    def __str__(self) -> str:
        return f"[{'checked' if self.checked else 'stated '}] {self.text}"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """With probability ``1 - delta - delta_draws`` over points and draws, the risk is below ``risk``.

    Attributes:
        risk: the certified risk of the Gibbs classifier, at most 1.
        value: of the bound before it is cut at 1.
        empirical: mean loss of the draws on the certified points (on random subsets of them).
        empirical_upper: a bound on that mean over all draws and points, which fails with ``delta_draws``.
        kl: ``KL(q || p)`` in nats, or an upper bound.
        n: number of certified points.
        delta: failure probability of the bound, after division by ``candidates``.
        delta_draws: of the estimate from finitely many draws, likewise.
        candidates: how many priors or bounds were tried on the certified points; both deltas as given were
            divided by it.
        draws: number of draws of the weights.
        subset: rows that each was judged on.
        bound: name and numbers.
        loss: name and numbers.
        unit: what a loss of 1 stands for (nats, units of y), or 1.
        numbers: how many the posterior stores.
        conditions: each checked or stated.
        seconds: spent on the draws.
    """

    risk: float
    value: float
    empirical: float
    empirical_upper: float
    kl: float
    n: int
    delta: float
    delta_draws: float
    candidates: int
    draws: int
    subset: int
    bound: str
    loss: str
    unit: float
    numbers: int
    conditions: tuple[Condition, ...]
    seconds: float

    @property
    def vacuous(self) -> bool:
        """It says nothing: no loss in [0, 1] is above 1."""
        return self.value >= 1

    @property
    def confidence(self) -> float:
        """``1 - candidates (delta + delta_draws)``."""
        return 1 - self.candidates * (self.delta + self.delta_draws)

    def __str__(self) -> str:
        risk = "vacuous (1, which says nothing)" if self.vacuous else f"{self.risk:.4f}"
        unit = (
            "" if self.unit == 1 or self.vacuous else f" = {self.risk * self.unit:.4g} in units of the loss"
        )
        judged = f"({self.draws:,} draws, each on {self.subset:,} rows, {self.seconds:.0f} s)"
        deltas = (
            f"delta {self.delta:.4g}, delta of the draws {self.delta_draws:.4g}, candidates {self.candidates}"
        )
        lines = [
            f"certified risk {risk}{unit} with confidence {self.confidence:.4g}",
            f"  loss {self.loss}, bound {self.bound}, {self.n:,} certified points",
            f"  empirical risk {self.empirical:.4f}, at most {self.empirical_upper:.4f} {judged}",
            f"  KL {self.kl:.5g} nats, {self.numbers:,} posterior numbers, {deltas}",
            *(f"  {condition}" for condition in self.conditions),
        ]
        return "\n".join(lines)

    def save(self, folder: str | Path) -> None:
        """Write ``certificate.json``."""
        checkpoint.write_json(Path(folder) / f"{_STEM}.json", asdict(self) | {"library": "singularbayes"})

    @classmethod
    def load(cls, folder: str | Path) -> Certificate:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: nothing saved there.
            ValueError: a damaged file.
        """
        content: Mapping[str, Any] = checkpoint.read_json(Path(folder), _STEM)
        fields = {name: value for name, value in content.items() if name != "library"}
        try:
            fields["conditions"] = tuple(Condition(**each) for each in fields["conditions"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{Path(folder) / _STEM}.json is damaged: {error}") from error
