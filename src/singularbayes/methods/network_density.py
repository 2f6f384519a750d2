"""The posterior of a network as a density on rows, for the samplers.

    log p(D | w) / T + log p(w),    both sums, in nats

A position holds the entries that move; everything else of a row (point estimates, a learned noise level,
statistics of normalisation layers, and what a method freezes) stays bitwise as it was at the start. With the
noise level as a point estimate among sampled weights there is no fit: a noise level without a prior has an
improper posterior, for a network can interpolate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data import Tensors, batch_size_of, take, to_device
from ..model import Model, part_of
from ..priors import Normal, ScaleMixture
from .chain_columns import columns_chain
from .chain_gradient import is_plain
from .learner import prepare
from .output_gradients import gradients_for
from .output_slopes import slope_for

__all__ = ["NetworkDensity"]

_SMALL = 10_000  # rows of all chains, up to which a compiled block is quicker
_BYTES = 64 * 2**20  # that the graph of one piece of the data may take


class NetworkDensity:
    """A ``Target``: value and gradient of ``log p(D | w) / T + log p(w)`` for all chains at once.

    Values are summed in float64: an energy is a difference of sums of thousands of nats. Data go through the
    network in pieces, as many rows at a time as keep the graph of all chains within 64 MB.

    Args:
        model: its network is copied, and evaluated in eval mode.
        train: training data in any form; in memory, ``(X, y)``, they are checked and cast once, while a
            loader is read again for every gradient.
        rows: where the chains start, or one row for any number of them.
        free: which entries of a row move, in the order of a position; all believed ones by default. The
            others count in the value.
        temperature: ``T`` of the likelihood; 1 is Bayes.

    Attributes:
        dimension: length ``d`` of a position.
        num_data: number of training examples.
        start: the rows' own position, ``(C, d)``.

    Raises:
        ValueError: rows of another length or not finite, entries that have no belief or stand twice, a prior
            that is learned, outputs that do not depend on what moves; and all that ``MAP.fit`` says of data.

    Example:
        >>> import singularbayes as sb
        >>> model = sb.Model(torch.nn.Linear(1, 1), sb.Gaussian(noise=1.0))
        >>> target = NetworkDensity(model, (torch.ones(3, 1), torch.ones(3)), torch.zeros(2, 2))
        >>> value, gradient = target(torch.zeros(2, 2))
        >>> value, gradient  # 3 log N(1; 0, 1) + 2 log N(0; 0, 1)
        (tensor([-6.0947, -6.0947], dtype=torch.float64), tensor([[3., 3.],
                [3., 3.]]))
    """

    def __init__(
        self,
        model: Model,
        train: Any,
        rows: Float[Tensor, "C D"],
        free: Int[Tensor, " d"] | None = None,
        temperature: float = 1.0,
    ) -> None:
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be positive and finite, got {temperature!r}")
        _check_rows(model, rows)
        layout, device = model.layout, model.device
        _check_free(free, layout.belief)
        if any(isinstance(prior, ScaleMixture) and prior.learned for _, prior in model.prior_blocks):
            raise ValueError(
                "a learned ScaleMixture needs MeanField: a sampler needs a prior that stays; give "
                "ScaleMixture(...) with learned=False"
            )
        prepared = prepare(model, None, train, None, device)
        self.model, self.temperature = model, temperature
        self.source, self.num_data = prepared.train, prepared.train.num_data
        self.base = rows.detach().to(device=device, dtype=model.dtype).clone()
        self.free = torch.arange(layout.belief, device=device) if free is None else free.to(device)
        self.whole = free is None
        self.dimension = len(self.free)
        inside = [slot for slot in layout.of_kind("belief") if self.whole or self._touches(slot)]
        self.network = model.copy_network().to(device).eval().requires_grad_(False)
        self.gradients = gradients_for(self.network, layout, inside, prepared.probe)
        self._columns = None if self.whole else self._places(inside)
        self._blocks = [
            (place, part_of(prior, place if self.whole else self.free[place] - block.start))
            for block, prior in model.prior_blocks
            for place in (self._within(block),)
        ]
        self.constant = self._constants()
        self.slope = slope_for(model.likelihood, layout.likelihood_views(self.base))
        self._bytes_per_row = max(16, self.gradients.bytes_per_row(self.base[:1], prepared.probe))

    @property
    def start(self) -> Float[Tensor, "C d"]:
        """The position of the rows that it was made with."""
        return self.base[:, self.free]

    def rows(self, position: Float[Tensor, "C d"]) -> Float[Tensor, "C D"]:
        """Whole rows of positions, one for each chain (or several, if there is one row for all)."""
        count = len(position)
        if len(self.base) not in (1, count):
            raise ValueError(f"got positions of {count} chains; this density holds {len(self.base)} rows")
        if self.whole and self.dimension == self.base.shape[1] and position.dtype == self.base.dtype:
            return position.contiguous()  # nothing writes to rows
        rows = self.base.expand(count, -1).clone()
        if self.whole:
            rows[:, : self.dimension] = position
        else:
            rows[:, self.free] = position.to(rows)
        return rows

    def __call__(self, position: Float[Tensor, "C d"]) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """Log density of each chain, ``(C,)`` in float64, and its gradient in the dtype of the position."""
        return self._summed(position, self._pieces(len(position)), 1.0)

    def of(self, chains: Int[Tensor, " A"]) -> NetworkDensity:
        """The density of some of the chains, with their own fixed entries; see ``trees.Divisible``.

        Args:
            chains: which rows, in the order of the positions that it will be asked about.
        """
        if len(self.base) == 1:
            return self  # one row for any number of chains
        part = copy.copy(self)
        part.base, part.constant = self.base[chains], self.constant[chains]
        part.slope = slope_for(self.model.likelihood, self.model.layout.likelihood_views(part.base))
        return part

    def estimate(
        self, position: Float[Tensor, "C d"], batch: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, " C"], Float[Tensor, "C d"]]:
        """``(N / B) sum of log p(y_n | w) / T over a batch + log p(w)``, and its gradient.

        Unbiased, if the batch is; for samplers that use the gradient as a force alone. Where energies decide,
        it would sample another density.

        Args:
            position: of each chain.
            batch: rows of the training data.

        Raises:
            ValueError: data that are not in memory.
        """
        if not isinstance(self.source, Tensors):
            raise ValueError(
                "minibatches are drawn from data in memory: pass (X, y), not a Dataset or batches of your own"
            )
        piece = (take(self.source.x, batch), take(self.source.y, batch))
        return self._summed(position, iter([piece]), self.num_data / len(batch))

    def _summed(
        self, position: Tensor, pieces: Iterator[tuple[Any, Tensor]], weight: float
    ) -> tuple[Tensor, Tensor]:
        """The prior, and ``weight`` times the log likelihood of some pieces of the data."""
        rows = self.rows(position.detach())
        moved = rows[:, : self.dimension] if self.whole else rows[:, self.free]
        value, gradient = self._log_prior(moved)
        with torch.autocast(self.model.device.type, enabled=False):
            for x, y in pieces:
                outputs, pullback = self.gradients(rows, x)
                terms, slope = self._log_likelihood(outputs, y, weight / self.temperature)
                pulled = pullback(slope)
                value += terms
                gradient += pulled if self._columns is None else pulled[:, self._columns]
        return value, gradient.to(position.dtype)

    def _pieces(self, chains: int) -> Iterator[tuple[Any, Tensor]]:
        """The data, as many rows at a time as keep the graph small."""
        size = max(1, _BYTES // (chains * self._bytes_per_row))
        if isinstance(self.source, Tensors) and self.num_data <= size:
            yield self.source.x, self.source.y  # type: ignore[misc] - labels were required
            return
        for inputs, labels in self.source.epoch(size, 0, 0, shuffle=False):
            x, y = to_device(inputs, self.model.device), labels.to(self.model.device)
            for start in range(0, batch_size_of(x), size):  # a user's loader has batches of its own size
                piece = slice(start, start + size)
                yield take(x, piece), y[piece]

    def _log_likelihood(self, outputs: Tensor, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """``weight sum log p(y | outputs)`` of each chain, in float64, and its gradient in the outputs."""
        if not isinstance(self.source, Tensors):  # those in memory are checked
            y = self.model.likelihood.labels(outputs.shape[1:], y)
        return self.slope(outputs, y, weight)

    def columns(self, chains: int) -> Callable[[Tensor], Tensor]:
        """The log density of positions that are columns, to be compiled; see ``Traceable``.

        Raises:
            NotImplementedError: the network is no plain chain of layers, the data are read from a loader,
                noise levels differ between chains, or batched products are quicker.
        """
        network, layout = self.network, self.model.layout
        if not is_plain(network):
            raise NotImplementedError("the network is not a chain of linear layers and elementwise functions")
        if (
            not isinstance(self.source, Tensors)
            or not isinstance(self.source.x, Tensor)
            or self.source.x.dim() != 2
            or self.source.y is None
        ):
            raise NotImplementedError("the data must be one table in memory, (X, y)")
        work = chains * self.num_data
        if work > _SMALL:
            raise NotImplementedError(
                f"{chains} chains on {self.num_data} rows are past {_SMALL} rows in all, where the "
                f"uncompiled batched products are quicker"
            )
        base = self.base.T.expand(-1, chains).contiguous()
        numbers = layout.likelihood_views(self.base)
        if not all(bool((value == value[:1]).all()) for value in numbers.values()):
            raise NotImplementedError("learned noise levels differ between chains")
        own = {name: value[0] for name, value in numbers.items()}
        x, y, likelihood = self.source.x, self.source.y, self.model.likelihood
        assert y is not None  # noqa: S101 - labels were required
        labels = y.unsqueeze(1).expand(-1, chains, *y.shape[1:]).flatten(0, 1)

        def density(position: Tensor) -> Tensor:
            if self.whole:
                whole = torch.cat([position, base[self.dimension :]])
            else:
                whole = base.index_copy(0, self.free, position)
            tensors = {
                alias: whole[slot.start : slot.stop].view(*slot.shape, chains)
                for slot in layout.slots
                if slot.kind != "likelihood"
                for alias in slot.aliases
            }
            outputs = columns_chain(network, tensors, x).permute(1, 2, 0)
            terms = likelihood.log_prob(outputs.reshape(len(labels), -1), labels, own)
            total = terms.view(-1, chains).sum(0, dtype=torch.float64) / self.temperature
            for block, prior in self.model.prior_blocks:
                total = total + prior.log_prob(whole[block].T).sum(1, dtype=torch.float64)  # chains first
            return total

        return density

    # The prior: closed gradients, constants of the entries that do not move

    def _log_prior(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.constant.expand(len(moved)).clone(), torch.empty_like(moved)
        for place, prior in self._blocks:
            w = moved[:, place]
            if isinstance(prior, Normal):  # fewer passes; its constant is in what is fixed
                precision = prior.std**-2
                value.add_(w.square().sum(1, dtype=torch.float64), alpha=-0.5 * precision)
                gradient[:, place] = w * -precision
                continue
            value += prior.log_prob(w).sum(1, dtype=torch.float64)
            gradient[:, place] = -prior.negative_score(w).to(gradient.dtype)
        return value, gradient

    def _constants(self) -> Tensor:
        """The prior of the entries that do not move, and what normal priors add for those that do."""
        total = self.base.new_zeros(len(self.base), dtype=torch.float64)
        held = torch.ones(self.model.layout.belief, dtype=torch.bool, device=self.base.device)
        held[self.free] = False
        for block, prior in self.model.prior_blocks:
            w = self.base[:, block][:, held[block]]
            total += part_of(prior, held[block]).log_prob(w).sum(1, dtype=torch.float64)
            if isinstance(prior, Normal):
                moving = int((~held[block]).sum())
                total -= moving * (math.log(prior.std) + 0.5 * math.log(2 * math.pi))
        return total

    def _within(self, block: slice) -> slice | Tensor:
        """Where in a position the entries of a block of the belief are."""
        if self.whole:
            return block
        return ((self.free >= block.start) & (self.free < block.stop)).nonzero().squeeze(1)

    # Which tensors the entries that move lie in

    def _touches(self, slot: Any) -> bool:
        return bool(((self.free >= slot.start) & (self.free < slot.stop)).any())

    def _places(self, slots: list[Any]) -> Tensor:
        """Where the entries that move are among those of the slots, side by side."""
        entries = torch.cat([torch.arange(s.start, s.stop, device=self.free.device) for s in slots])
        return torch.searchsorted(entries, self.free)


def _check_rows(model: Model, rows: Tensor) -> None:
    layout = model.layout
    if rows.dim() != 2 or len(rows) == 0 or rows.shape[1] != layout.size:
        raise ValueError(
            f"rows have shape {tuple(rows.shape)}, expected (chains, {layout.size}): whole rows of the "
            f"model's flat vector, model.layout.flatten(network)"
        )
    wrong = (~torch.isfinite(rows)).nonzero()
    if len(wrong):
        chain, entry = wrong[0].tolist()
        name = next(slot.name for slot in layout.slots if slot.start <= entry < slot.stop)
        raise ValueError(
            f"{name} of the network that chain {chain} starts at holds {rows[chain, entry].item()}; start "
            f"from weights that are finite"
        )


def _check_free(free: Tensor | None, belief: int) -> None:
    if free is None:
        return
    if free.dim() != 1 or len(free) == 0:
        raise ValueError(f"free must hold at least one entry, (d,), got shape {tuple(free.shape)}")
    if bool(((free < 0) | (free >= belief)).any()):
        raise ValueError(f"free must lie in 0..{belief - 1}, the believed entries, got {free.tolist()[:8]}")
    if len(free.unique()) < len(free):
        raise ValueError("free names an entry twice; every entry moves once")
