"""What becomes of the entries that a sampler leaves out: three answers, and the distribution of each.

With ``S`` the sampled entries, ``R`` the rest, ``q`` the variational posterior and ``m`` its means:

    Frozen        p(w_S | D, w_R = m_R),                w_R = m_R
    Redrawn       p(w_S | D, w_R),                      w_R ~ q
    SpreadAdded   p(w_S | D, w_R = m_R)  and, apart,    w_R ~ q

None is the posterior, unless ``q`` is exact on ``R`` and independent of ``S``. Under a Gaussian posterior of
precision ``L``, with ``q`` its best mean-field fit, ``V = inv(L_SS)``, ``A = V L_SR`` and ``D_R`` the
diagonal matrix of ``1 / L_ii``, ``i`` in ``R``, the covariance of ``(w_S, w_R)`` is

    Frozen        V,  0,  0
    Redrawn       V + A D_R A^T,  -A D_R,  D_R
    SpreadAdded   V,  0,  D_R

A value of ``w_R`` never changes within a chain: to redraw it between Metropolis steps, without a step of its
own that accepts or rejects, is a chain that leaves none of these distributions invariant.

References:
    arXiv 2507.14652, section 3 (``Frozen``). Plummer 2015, "Cuts in Bayesian graphical models" (what
    ``Redrawn`` is: a cut posterior, the rest not informed by the sampled entries).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Frozen", "Redrawn", "Rest", "SpreadAdded"]

Drawn = Callable[[int], Tensor]  # so many independent rows (n, D) of q


@runtime_checkable
class Rest(Protocol):
    """What becomes of the entries that are not sampled."""

    target: ClassVar[str]  # which distribution the draws have

    def before(
        self, rows: Float[Tensor, "C D"], rest: Int[Tensor, " m"], drawn: Drawn
    ) -> Float[Tensor, "C D"]:
        """The rows at which the chains start: their entries ``rest`` stay through all of sampling."""
        ...

    def after(
        self, draws: Float[Tensor, "S D"], rest: Int[Tensor, " m"], drawn: Drawn
    ) -> Float[Tensor, "S D"]:
        """The draws that are kept, from those of the chains."""
        ...


@dataclass(frozen=True)
class Frozen:
    """The rest at the variational means: the conditional posterior of the sampled entries.

    Its variance is too small, in general: what the rest leaves open is missing, and so is what the sampled
    entries would have moved along with it. (Under a Gaussian posterior and outputs linear in the weights it
    is never above the exact one.)
    """

    target: ClassVar[str] = "p(sampled | data, rest = VI means)"

    def before(self, rows: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return rows

    def after(self, draws: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return draws


@dataclass(frozen=True)
class Redrawn:
    """Each chain has its own rest, drawn once from the variational posterior.

    All chains together have draws of ``q(w_R) p(w_S | D, w_R)``: ``w_R`` as the variational fit believes it,
    and the sampled entries as they must be for it. There are as many values of ``w_R`` as chains, so take
    many short chains; that chains differ is then no sign of bad mixing.
    """

    target: ClassVar[str] = "q(rest) p(sampled | data, rest), one draw of the rest for each chain"

    def before(self, rows: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return _put(rows, rest, drawn)

    def after(self, draws: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return draws


@dataclass(frozen=True)
class SpreadAdded:
    """Sampled with the rest frozen at the means; then each draw gets variational noise on the rest.

    The sampled entries do not know of that noise: the fit to the data that they keep up at ``m_R`` is lost
    elsewhere, the more the stronger the two depend on each other. Its outputs may vary more than the
    posterior's, or less.
    """

    target: ClassVar[str] = "p(sampled | data, rest = VI means) q(rest), independent"

    def before(self, rows: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return rows

    def after(self, draws: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
        return _put(draws, rest, drawn)


def _put(rows: Tensor, rest: Tensor, drawn: Drawn) -> Tensor:
    """Rows whose entries ``rest`` are those of a draw of ``q`` each."""
    rows = rows.clone()
    rows[:, rest] = drawn(len(rows))[:, rest].to(rows)
    return rows
