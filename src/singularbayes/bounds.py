"""PAC-Bayes bounds: from empirical risk and KL to a risk that holds with confidence ``1 - delta``.

With ``n`` points, losses in [0, 1], a prior that does not depend on the points, and
``c = KL(q || p) + ln(2 sqrt(n) / delta)``, for all ``q`` at once:

    KLInverse      L <= kl^-1(Lhat, c / n)
    McAllester     L <= Lhat + sqrt(c / 2n)
    Lambda(l)      L <= Lhat / (1 - l/2) + c / (n l (1 - l/2)),   0 < l < 2, all l at once
    Quadratic      L <= (sqrt(Lhat + c / 2n) + sqrt(c / 2n))^2,   equal to the best l
    Catoni(C)      L <= (1 - exp(-C Lhat - (KL + ln(1/delta)) / n)) / (1 - exp(-C)),   C fixed beforehand

``kl^-1(q, a)`` is the largest ``p`` with ``kl(q || p) <= a``, the binary KL. What has to hold for these to
say anything is in :func:`singularbayes.theory.certify`.

References:
    Maurer 2004, arXiv cs/0411099 (kl, the 2 sqrt(n)); McAllester 1999; Thiemann et al. 2017, arXiv 1608.05610
    (lambda); Perez-Ortiz et al. 2021, arXiv 2007.12911 (quadratic); Catoni 2007, theorem 1.2.1.
    Langford and Caruana 2001 (draws); Maurer and Pontil 2009, arXiv 0907.3740, theorem 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bound",
    "Catoni",
    "DrawsBound",
    "EmpiricalBernstein",
    "KLInverse",
    "Lambda",
    "McAllester",
    "Objective",
    "Quadratic",
    "RelativeEntropy",
    "check_confidence",
    "kl_inverse",
]


def check_confidence(**values: float) -> None:
    """Refuse a delta that is no probability of failure.

    Raises:
        ValueError: naming the first outside (0, 1).
    """
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} is a probability of failure strictly between 0 and 1, got {value}")


def _binary_kl(q: float, p: float) -> float:
    """``kl(q || p)`` for ``0 <= q <= p < 1``."""
    first = q * math.log(q / p) if q else 0.0
    return first + (1 - q) * (math.log1p(-q) - math.log1p(-p)) if q < 1 else first


def kl_inverse(q: float, c: float) -> float:
    """The largest ``p`` in [0, 1] with ``kl(q || p) <= c``, in nats: the upper end of float64 bisection.

    Args:
        q: in [0, 1].
        c: 0 or more; infinity gives 1.

    Raises:
        ValueError: out of range.

    Example:
        >>> kl_inverse(0.0, 0.01) - (1 - math.exp(-0.01)) < 1e-15
        True
    """
    if not 0 <= q <= 1:
        raise ValueError(f"q is a risk and must lie in [0, 1], got {q}")
    if not c >= 0:
        raise ValueError(f"c is a divergence in nats and must be 0 or positive, got {c}")
    if q == 1 or c == math.inf:
        return 1.0
    if q == 0:
        return -math.expm1(-c)
    low, high = q, 1.0
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return high
        if _binary_kl(q, middle) > c:
            high = middle
        else:
            low = middle


def _check(empirical: float, kl: float, n: int, delta: float) -> None:
    check_confidence(delta=delta)
    if not 0 <= empirical <= 1:
        raise ValueError(
            f"the empirical risk must lie in [0, 1], got {empirical}; bound the loss (ZeroOne, "
            f"BoundedCrossEntropy, ClippedLoss)"
        )
    if not kl >= 0:
        raise ValueError(f"a KL divergence is 0 or positive, got {kl}: a term of it is missing")
    if n < 1:
        raise ValueError(f"n counts the certified points and must be at least 1, got {n}")


def _complexity(kl: float, n: int, delta: float) -> float:
    """``c / n``."""
    return (kl + math.log(2 * math.sqrt(n) / delta)) / n


@runtime_checkable
class Bound(Protocol):
    """From empirical risk and KL to a bound on the risk."""

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        """The bound; 1 or more says nothing (*vacuous*).

        Args:
            empirical: risk on the ``n`` points, in [0, 1].
            kl: in nats.
            n: number of certified points.
            delta: probability that the bound fails.

        Raises:
            ValueError: anything out of range.
        """
        ...


@runtime_checkable
class Objective(Bound, Protocol):
    """A bound that is smooth enough to train to."""

    def slopes(self, empirical: float, kl: float, n: int, delta: float) -> tuple[float, float]:
        """Derivatives of :meth:`value` for the empirical risk and for the KL."""
        ...


@dataclass(frozen=True)
class KLInverse:
    """``kl^-1(Lhat, c / n)``: the tightest of those without a constant to choose.

    Example:
        >>> round(KLInverse().value(0.05, 50.0, 10_000, 0.05), 9)
        0.077072093
    """

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        _check(empirical, kl, n, delta)
        return kl_inverse(empirical, _complexity(kl, n, delta))


@dataclass(frozen=True)
class McAllester:
    """``Lhat + sqrt(c / 2n)``."""

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        _check(empirical, kl, n, delta)
        return empirical + math.sqrt(_complexity(kl, n, delta) / 2)


@dataclass(frozen=True)
class Quadratic:
    """``(sqrt(Lhat + c / 2n) + sqrt(c / 2n))^2``."""

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        _check(empirical, kl, n, delta)
        half = _complexity(kl, n, delta) / 2
        return (math.sqrt(empirical + half) + math.sqrt(half)) ** 2

    def slopes(self, empirical: float, kl: float, n: int, delta: float) -> tuple[float, float]:
        _check(empirical, kl, n, delta)
        half = _complexity(kl, n, delta) / 2
        outer, inner = math.sqrt(empirical + half), math.sqrt(half)
        total = outer + inner
        return total / outer, total * (1 / outer + 1 / inner) / (2 * n)


@dataclass(frozen=True)
class Lambda:
    """``Lhat / (1 - l/2) + c / (n l (1 - l/2))``.

    Args:
        trade_off: ``l`` in (0, 2); ``None`` takes the best one each time (the bound holds for all at once),
            which makes it :class:`Quadratic`.
    """

    trade_off: float | None = None

    def __post_init__(self) -> None:
        if self.trade_off is not None and not 0 < self.trade_off < 2:
            raise ValueError(f"trade_off must lie strictly between 0 and 2, or be None, got {self.trade_off}")

    def best(self, empirical: float, kl: float, n: int, delta: float) -> float:
        """The ``l`` at which the bound is least."""
        _check(empirical, kl, n, delta)
        return 2 / (math.sqrt(2 * empirical / _complexity(kl, n, delta) + 1) + 1)

    def _used(self, empirical: float, kl: float, n: int, delta: float) -> float:
        return self.best(empirical, kl, n, delta) if self.trade_off is None else self.trade_off

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        _check(empirical, kl, n, delta)
        used = self._used(empirical, kl, n, delta)
        return (empirical + _complexity(kl, n, delta) / used) / (1 - used / 2)

    def slopes(self, empirical: float, kl: float, n: int, delta: float) -> tuple[float, float]:
        used = self._used(empirical, kl, n, delta)  # at the best one its own slope is 0
        _check(empirical, kl, n, delta)
        return 1 / (1 - used / 2), 1 / (n * used * (1 - used / 2))


@dataclass(frozen=True)
class Catoni:
    """``(1 - exp(-C Lhat - (KL + ln(1/delta)) / n)) / (1 - exp(-C))``.

    Args:
        C: positive, fixed before the data were seen (else divide delta by the number of values tried).
    """

    C: float

    def __post_init__(self) -> None:
        if not (self.C > 0 and math.isfinite(self.C)):
            raise ValueError(f"Catoni.C must be positive and finite, got {self.C}")

    def value(self, empirical: float, kl: float, n: int, delta: float) -> float:
        _check(empirical, kl, n, delta)
        exponent = -self.C * empirical - (kl + math.log(1 / delta)) / n
        return math.expm1(exponent) / math.expm1(-self.C)


# The empirical risk itself, from finitely many draws of the weights


@runtime_checkable
class DrawsBound(Protocol):
    """From the risks of independent draws to a bound on their expectation."""

    def upper(self, risks: NDArray[np.float64], delta: float) -> float:
        """A bound on the expected risk that fails with probability ``delta`` at most.

        Args:
            risks: of the draws ``(m,)``, independent, in [0, 1].
            delta: probability that the bound fails.
        """
        ...


def _check_risks(risks: NDArray[np.float64], least: int) -> None:
    if risks.ndim != 1 or len(risks) < least:
        raise ValueError(f"the risks of at least {least} draws are needed, got the shape {risks.shape}")
    if not bool(((risks >= 0) & (risks <= 1)).all()):
        raise ValueError(f"losses must lie in [0, 1], got some from {risks.min()} to {risks.max()}")


@dataclass(frozen=True)
class RelativeEntropy:
    """``kl^-1(mean, ln(2 / delta) / m)``: as loose as if each draw's risk were 0 or 1."""

    def upper(self, risks: NDArray[np.float64], delta: float) -> float:
        check_confidence(delta=delta)
        _check_risks(risks, 1)
        return kl_inverse(min(float(risks.mean()), 1.0), math.log(2 / delta) / len(risks))


@dataclass(frozen=True)
class EmpiricalBernstein:
    """``mean + sqrt(2 V ln(2 / delta) / m) + 7 ln(2 / delta) / (3 (m - 1))``, ``V`` the draws' variance.

    Far tighter than :class:`RelativeEntropy` where every draw is judged on many points, as the risks of the
    draws then hardly differ.
    """

    def upper(self, risks: NDArray[np.float64], delta: float) -> float:
        check_confidence(delta=delta)
        _check_risks(risks, 2)
        m, log_term = len(risks), math.log(2 / delta)
        deviation = math.sqrt(2 * risks.var(ddof=1) * log_term / m)
        return min(1.0, float(risks.mean()) + deviation + 7 * log_term / (3 * (m - 1)))
