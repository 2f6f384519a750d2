"""The low-rank weights of a posterior: where the entries of their factors lie in its flat vector.

``W = A diag(s) B^T`` with ``A (m, r)``, ``B (n, r)``; of a convolution ``n`` counts ``in * kernel``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..nn.attention import LowRankMultiheadAttention
from ..nn.conversion import STRUCTURES
from ..parameters import Slot, owner
from ..posterior import Posterior

__all__ = ["FactorBelief", "LowRankWeight", "factor_beliefs", "low_rank_weights"]

_FACTOR = re.compile(r"A((?:_[ih]h_l\d+(?:_reverse)?)?)$")
INDEPENDENT = ("diagonal_gaussian", "diagonal_laplace")  # kinds of beliefs whose entries are


@dataclass(frozen=True, kw_only=True)
class LowRankWeight:
    """One factorised matrix of a posterior's network.

    Args:
        title: the layer's name, with the matrix's where it has several.
        network: the posterior's network, for factors that are frozen.
        names: of the parameters ``A``, ``B`` and, if there is one, ``s``.
        slots: where they lie in the flat vector; those that are missing are frozen.
    """

    title: str
    network: nn.Module
    names: tuple[str, ...]
    slots: Mapping[str, Slot]

    @property
    def rank(self) -> int:
        """Columns of the factors."""
        return self.part("A", None).shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """``(m, n)``."""
        return self.part("A", None).shape[-2], self.part("B", None).shape[-2]

    @property
    def diagonal(self) -> bool:
        """Whether there is an ``s``."""
        return len(self.names) > 2

    def part(self, factor: str, rows: Float[Tensor, "*S D"] | None) -> Tensor:
        """``A (*S, m, r)``, ``B (*S, n, r)`` or ``s (*S, r)`` as rows of the flat vector have them.

        Args:
            factor: ``"A"``, ``"B"`` or ``"s"``.
            rows: rows of the flat vector; ``None``: the network's present values.
        """
        place = "ABs".index(factor)
        module, leaf = owner(self.network, self.names[place])
        present = getattr(module, leaf)
        slot = self.slots.get(self.names[place])
        lead = () if rows is None else rows.shape[:-1]
        if slot is None or rows is None:
            kept = present.detach() if rows is None else present.detach().to(rows)
            value = kept.expand(*lead, *present.shape)
        else:
            value = rows[..., slot.start : slot.stop].reshape(*lead, *slot.shape)
        if factor == "B" and present.dim() > 2:  # a convolution's (r, in, *kernel)
            value = value.flatten(len(lead) + 1).mT
        padding = getattr(module, "padding_idx", None)
        if factor == "A" and padding is not None:
            value = value.clone()
            value[..., padding, :] = 0  # looked up as 0 whatever it holds
        return value

    def variance(self, factor: str, row: Float[Tensor, " D"]) -> Tensor:
        """What :meth:`part` gives of a belief's variances, in float64; 0 for a factor that is frozen."""
        if self.names["ABs".index(factor)] in self.slots:
            return self.part(factor, row).double()
        return torch.zeros_like(self.part(factor, None), dtype=torch.float64)

    def stored(self, factor: str, row: Float[Tensor, " D"]) -> Tensor:
        """``A (m, r)`` or ``B (n, r)`` as a row of the flat vector holds it, a padding row too."""
        slot = self.slots[self.names["ABs".index(factor)]]
        value = row[slot.start : slot.stop].view(slot.shape)
        return value.flatten(1).mT if len(slot.shape) > 2 else value

    def store(self, factor: str, value: Tensor, row: Float[Tensor, " D"]) -> None:
        """Write what :meth:`stored` gives into a row of the flat vector."""
        slot = self.slots[self.names["ABs".index(factor)]]
        turned = value.mT if len(slot.shape) > 2 else value
        row[slot.start : slot.stop] = turned.reshape(-1).to(row)

    def weights(self, rows: Float[Tensor, "*S D"]) -> Float[Tensor, "*S m n"]:
        """The matrices that rows of the flat vector stand for."""
        a, b = self.part("A", rows), self.part("B", rows)
        return (a * self.part("s", rows).unsqueeze(-2) if self.diagonal else a) @ b.mT


@dataclass(frozen=True, eq=False)
class FactorBelief:
    """Means and standard deviations of independent factors; the arguments of :func:`.weight_covariance`.

    Args:
        title: of the matrix.
        mean_a: ``(m, r)``.
        std_a: ``(m, r)``.
        mean_b: ``(n, r)``.
        std_b: ``(n, r)``.
    """

    title: str
    mean_a: Float[Tensor, "m r"]
    std_a: Float[Tensor, "m r"]
    mean_b: Float[Tensor, "n r"]
    std_b: Float[Tensor, "n r"]

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four in order: ``weight_covariance(*belief.factors)``."""
        return self.mean_a, self.std_a, self.mean_b, self.std_b

    def block(self, rows: slice, columns: slice) -> FactorBelief:
        """Some rows and columns of the matrix, for layers that are not small."""
        a, b = (self.mean_a[rows], self.std_a[rows]), (self.mean_b[columns], self.std_b[columns])
        return FactorBelief(self.title, *a, *b)


def low_rank_weights(posterior: Posterior) -> list[LowRankWeight]:
    """Every factorised matrix of a posterior's network, tied ones once.

    Raises:
        ValueError: there is none.
    """
    network = posterior.network
    slots = {slot.name: slot for slot in posterior.layout.of_kind("belief", "point")}
    found = []
    for name, _ in network.named_parameters():
        path, _, leaf = name.rpartition(".")
        match = _FACTOR.match(leaf)
        module = network.get_submodule(path)
        if match is None or not isinstance(module, STRUCTURES):
            continue
        suffix = match.group(1)
        own = dict(module.named_parameters(recurse=False))
        leaves = [f"{part}{suffix}" for part in "ABs" if f"{part}{suffix}" in own]
        names = tuple(f"{path}.{x}".lstrip(".") for x in leaves)
        title = f"{path}.weight{suffix}".lstrip(".") if suffix else path or "(root)"
        parent, _, last = path.rpartition(".")
        if isinstance(network.get_submodule(parent), LowRankMultiheadAttention):
            title += ".weight" if last == "out_proj" else "_weight"  # torch's names
        found.append(LowRankWeight(title=title, network=network, names=names, slots=slots))
    if not found:
        raise ValueError("the posterior's network has no low-rank layer; factorise it before the fit: "
                         "sb.factorize(network, rank)")  # fmt: skip
    return found


@torch.no_grad()
def factor_beliefs(posterior: Posterior) -> dict[str, FactorBelief]:
    """Means and standard deviations of every factorised matrix, by title, in float64.

    They are the arguments of the closed forms; of a corner of a layer, for :func:`.correlation_pictures`:
    ``weight_correlation(*belief.block(slice(8), slice(8)).factors)``.

    Raises:
        ValueError: no low-rank layer; factors that are not independent (another kind of posterior), for which
            the closed forms of :mod:`.correlation` do not hold; a belief about ``s``.

    Example:
        >>> import singularbayes as sb
        >>> x, y = torch.randn(32, 6), torch.randint(0, 2, (32,))
        >>> net = sb.factorize(torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 2)), {"0": 2})
        >>> belief = factor_beliefs(sb.MeanField(epochs=1).fit(sb.Model(net, sb.Categorical()), (x, y)))["0"]
        >>> sb.theory.weight_correlation(*belief.block(slice(3), slice(2)).factors).shape
        torch.Size([6, 6])
    """
    distribution = posterior.distribution
    if distribution.kind not in INDEPENDENT and posterior.support != 1:
        raise ValueError(
            f"the closed forms are for independent factors; this posterior is a "
            f"{type(distribution).__name__}. Estimate the covariance from posterior.draw(n)"
        )
    mean, variance = distribution.mean.double(), distribution.variance.double()
    found = {}
    for weight in low_rank_weights(posterior):
        mean_a, mean_b = weight.part("A", mean).double(), weight.part("B", mean).double()
        std_a, std_b = (weight.variance(part, variance).sqrt() for part in "AB")
        if weight.diagonal:
            s, std_s = weight.part("s", mean).double(), weight.variance("s", variance).sqrt()
            mean_a, std_a = _with_s(weight.title, mean_a, std_a, s, std_s)
        found[weight.title] = FactorBelief(weight.title, mean_a, std_a, mean_b, std_b)
    return found


def _with_s(title: str, mean_a: Tensor, std_a: Tensor, s: Tensor, std_s: Tensor) -> tuple[Tensor, Tensor]:
    """``A diag(s)`` as one factor, where ``s`` is a point."""
    if bool((std_s > 0).any()):
        raise ValueError(
            f"{title}: W = A diag(s) B^T with a belief about s makes whole components vary together, and the "
            f"closed forms are for two independent factors; estimate the covariance from posterior.draw(n)"
        )
    return mean_a * s, std_a * s.abs()
