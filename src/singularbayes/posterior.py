"""``Posterior``: what every method returns.

It holds a private network, a distribution over its flat vector, and a likelihood.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from . import distributions, saving
from .calibration import Calibration, Temperature, uncalibrated
from .data import as_inputs, as_source, batch_size_of, gather, take, to_device
from .distributions import StoredDraws
from .functions import call, evaluate, way_for
from .likelihoods import Likelihood
from .model import takes_integers
from .nn.merge import merge_own
from .parameters import Layout
from .predictive import Predictive
from .random import generator
from .stacked import Workspace

__all__ = ["Posterior", "load"]

_ROW_BYTES = 2 * 2**20  # of one draw's widest activation: rows of input are taken accordingly
_BLOCK_BYTES = 2**20  # of a block of draws' widest activation, within the limits below: it stays in the cache
_BLOCK_DRAWS = (4, 16)
_NOISE_DRAWS = 8


class Posterior:
    """A distribution over a network's functions.

    Args:
        network: a private copy, in eval mode; tensors that are no part of the vector are read from it.
        distribution: over the flat vector of ``layout``.
        likelihood: carries the task and the calibration temperature.
        layout: where each tensor lies in a row of draws.
        info: plain facts: ``method``, ``seconds``, ``numbers`` (trained numbers), ``epochs``, ``seed``,
            ``settings``, ...

    Example:
        >>> import singularbayes as sb
        >>> x, y = torch.randn(64, 3), torch.randint(0, 2, (64,))
        >>> posterior = sb.MeanField(epochs=2).fit(sb.Model(nn.Linear(3, 2), sb.Categorical()), (x, y))
        >>> posterior.draw(5).shape, posterior.predict(x, draws=8).mean.shape
        (torch.Size([5, 8]), torch.Size([64, 2]))
    """

    def __init__(
        self,
        network: nn.Module,
        distribution: Any,
        likelihood: Likelihood,
        layout: Layout,
        info: Mapping[str, Any],
    ) -> None:
        if distribution.size != layout.size:
            raise ValueError(f"the distribution has {distribution.size} entries and the layout {layout.size}")
        self.network = network.eval().requires_grad_(False)
        self.distribution = distribution
        self.likelihood = likelihood
        self.layout = layout
        self.info = dict(info)
        self.way = way_for(self.network)
        mean = distribution.mean
        self.dtype, self.device = mean.dtype, mean.device
        self._widths: dict[Any, int] = {}

    def __repr__(self) -> str:
        method, kind = self.info.get("method", "?"), self.distribution.kind
        at = "" if self.likelihood.temperature == 1 else f" at temperature {self.likelihood.temperature:.3g}"
        return (
            f"Posterior({method}, {kind}, {self.layout.size} entries, {type(self.likelihood).__name__}{at})"
        )

    @property
    def support(self) -> int | None:
        """How many distinct draws there are; ``None`` where there is no end of them."""
        return self.distribution.support

    # Draws

    def _noise(self, n: int, seed: int) -> Iterator[Tensor]:
        """Rows of noise, one after another from one generator: the same however they are grouped.

        The rows of a block are overwritten by those of the next.
        """
        source = generator(seed, "draws", device=self.device)
        dtype = self.dtype if self.dtype == torch.float64 else torch.float32
        buffer = torch.empty(
            min(_NOISE_DRAWS, n), self.distribution.noise_size, dtype=dtype, device=self.device
        )
        for start in range(0, n, _NOISE_DRAWS):
            rows = buffer[: n - start]
            for offset, row in enumerate(rows):
                self.distribution.noise(row, source, start + offset, n)
            yield rows

    @torch.no_grad()
    def draw(self, n: int, seed: int = 0) -> Float[Tensor, "n D"]:
        """Draws of the flat vector, one a row.

        Stored draws (an ensemble) are dealt evenly: ``n`` up to their number gives distinct ones.

        Args:
            n: number of draws.
            seed: the same seed gives the same draws; the global random state is untouched.

        Raises:
            ValueError: ``n`` below 1.
        """
        if n < 1:
            raise ValueError(f"draws must be at least 1, got {n}")
        return torch.cat([self.distribution.sample(rows) for rows in self._noise(n, seed)]).to(self.dtype)

    def at_mean(self) -> Posterior:
        """The posterior collapsed to its mean: prediction with mean weights, the same numbers every time.

        Raises:
            ValueError: a posterior of several separate networks (an ensemble): the mean of their weights is
                no network that anyone trained.
        """
        if self.distribution.kind in ("stored_draws", "mixture") and self.distribution.support != 1:
            raise ValueError(
                "this posterior holds separate networks; the mean of their weights stands for none of them "
                "(predict(x) has the mean over predictions)"
            )
        atom = StoredDraws(self.distribution.mean.detach().clone().unsqueeze(0))
        return Posterior(
            copy.deepcopy(self.network), atom, self.likelihood, self.layout, {**self.info, "at_mean": True}
        )

    @torch.no_grad()
    def merged(self, draw: Float[Tensor, "D"] | None = None) -> nn.Module:
        """One function of the posterior as a network of stock layers, for deployment.

        Its weights are the products of the factors, its state dict has torch's names: it loads into the
        network as it was before ``factorize``, without this library. It gives what the network gives
        (logits); the likelihood with its temperature and noise level stays here.

        Args:
            draw: a row of :meth:`draw`; by default the posterior's mean, as :meth:`at_mean`.

        Returns:
            A new network in eval mode, its parameters frozen as those of this posterior's network.

        Raises:
            ValueError: another shape of the row; the mean of separate networks (an ensemble); a draw that
                holds dropout masks.
        """
        row = self.at_mean().distribution.mean if draw is None else draw
        if tuple(row.shape) != (self.layout.size,):
            raise ValueError(f"a draw is one row of {self.layout.size} numbers, got the shape "
                             f"{tuple(row.shape)}; posterior.draw(1)[0] is one")  # fmt: skip
        network = copy.deepcopy(self.network)
        self.layout.write(network, row)
        return merge_own(network)

    # Prediction

    @torch.no_grad()
    def functions(
        self, draws: Float[Tensor, "S D"], x: Any, batch_size: int | None = None
    ) -> Float[Tensor, "S B *event"]:
        """Network outputs of each draw, ``(S, B, *event)``.

        Args:
            draws: rows of the flat vector.
            x: inputs: tensor, array, or a dict or tuple of them.
            batch_size: rows of ``x`` at a time; by default as many as fit the cache. It does not change the
                result.
        """
        return torch.cat(list(self._blocks([draws], self._inputs(x), batch_size)))

    def _inputs(self, x: Any) -> Any:
        return to_device(as_inputs(x, self.dtype, takes_integers(self.network)), self.device)

    def _width(self, x: Any) -> int:
        """Entries of the widest activation for one row of input, found once for each shape of input."""
        key = _shape_of_a_row(x)
        if key not in self._widths:
            widest = 1

            def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
                nonlocal widest
                if isinstance(output, Tensor):
                    widest = max(widest, output.numel())

            handles = [module.register_forward_hook(note) for module in self.network.modules()]
            try:
                output = call(self.network, take(x, slice(0, 1)))
            except RuntimeError as error:
                advice = "; one case needs a row axis: x[:1], not x[0]" if key == () else ""
                raise ValueError(
                    f"the network failed on one row of input of shape {key}: {error}{advice}"
                ) from error
            finally:
                for handle in handles:
                    handle.remove()
            self._widths[key] = max(widest, output.numel())
        return self._widths[key]

    def _blocks(self, sources: Iterable[Tensor], x: Any, batch_size: int | None) -> Iterator[Tensor]:
        """Outputs for blocks of draws: blocks outside, minibatches of inputs inside."""
        rows = batch_size_of(x)
        bytes_per_row = self._width(x) * torch.finfo(self.dtype).bits // 8
        step = max(1, _ROW_BYTES // bytes_per_row) if batch_size is None else batch_size
        if step < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        least, most = _BLOCK_DRAWS
        together = max(least, min(most, _BLOCK_BYTES // (bytes_per_row * min(step, rows))))
        batches = [x] if step >= rows else [take(x, slice(i, i + step)) for i in range(0, rows, step)]
        workspace = Workspace()
        for source in sources:
            for block in source.split(together):
                parts = [
                    evaluate(self.network, self.layout, block, batch, self.way, workspace)
                    for batch in batches
                ]
                yield parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    @torch.no_grad()
    def predict(self, x: Any, draws: int = 64, seed: int = 0, batch_size: int | None = None) -> Predictive:
        """The predictive of new inputs.

        Args:
            x: inputs, rows first.
            draws: number of posterior draws; a finite posterior (an ensemble) uses each atom once when
                ``draws`` covers them, and an even choice of them otherwise.
            seed: of the draws.
            batch_size: rows of ``x`` at a time; it does not change the draws.

        Returns:
            A ``CategoricalPredictive``, ``BernoulliPredictive`` or ``GaussianPredictive``, by the likelihood.

        Raises:
            ValueError: no rows, values that are not finite (row and column named), shapes that do not fit.
        """
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        count = draws if self.support is None else min(draws, self.support)
        inputs = self._inputs(x)
        learned = self.layout.of_kind("likelihood")
        start = learned[0].start if learned else self.layout.trained
        kept: list[Tensor] = []

        def rows() -> Any:
            for noise in self._noise(count, seed):
                block = self.distribution.sample(noise).to(self.dtype)
                if learned:
                    kept.append(block[:, start : self.layout.trained].clone())
                yield block

        outputs = torch.cat(list(self._blocks(rows(), inputs, batch_size)))
        return self.likelihood.predictive(outputs, self._likelihood_numbers(kept))

    def _likelihood_numbers(self, kept: list[Tensor]) -> dict[str, Tensor]:
        slots = self.layout.of_kind("likelihood")
        if not slots:
            return {}
        numbers, offset = torch.cat(kept), slots[0].start
        return {
            s.name.partition(".")[2]: numbers[:, s.start - offset : s.stop - offset].view(-1, *s.shape)
            for s in slots
        }

    def calibrate(
        self, validation: Any, by: Calibration | None = None, draws: int = 64, seed: int = 0
    ) -> Posterior:
        """A new posterior, calibrated on validation data: the same draws, another likelihood.

        It starts from the uncalibrated likelihood, so that calibrating again replaces what was found before.

        Args:
            validation: ``(X, y)``, a Dataset or batches; not the test set.
            by: :class:`.Temperature` (the default), :class:`.VectorScaling`, or :class:`.IsotonicIntervals`.
            draws: posterior draws.
            seed: of the draws.

        Raises:
            TypeError: ``by`` is no calibration, or not one for this likelihood.
            ValueError: no labels, or outputs that are not finite.

        Warns:
            UserWarning: the data do not tell the calibration; see its class.
        """
        by = Temperature() if by is None else by
        if isinstance(by, type) or not isinstance(by, Calibration):
            raise TypeError(f"by must be a calibration such as Temperature() or VectorScaling(), got {by!r}")
        held = gather(as_source(validation, self.dtype, takes_integers(self.network)))
        if held.y is None:
            raise ValueError("calibration needs labels: pass (X, y)")
        base = uncalibrated(self.likelihood)
        plain = Posterior(self.network, self.distribution, base, self.layout, self.info)
        rows = plain.draw(min(draws, self.support or draws), seed)
        outputs = plain.functions(rows, held.x).double()  # float32 leaves the flat valley's floor open
        broken = (~torch.isfinite(outputs)).transpose(0, 1).flatten(1).any(1).nonzero()
        if len(broken):
            raise ValueError(
                f"the network's outputs are not finite in {len(broken)} of {outputs.shape[1]} validation "
                f"rows, first in row {int(broken[0])}: it has diverged or overflows on these inputs"
            )
        labels = base.labels(outputs.shape[1:], held.y.to(self.device))
        likelihood = by.fit(base, outputs, self.layout.likelihood_views(rows), labels)
        info = {**self.info, "temperature": likelihood.temperature, "calibration": type(by).__name__}
        return Posterior(copy.deepcopy(self.network), self.distribution, likelihood, self.layout, info)

    # Files

    def save(self, folder: str | Path) -> None:
        """Write ``posterior.json`` and its tensors to ``folder``: safetensors and JSON, no pickle.

        The files are written whole or not at all.

        Raises:
            ValueError: the folder holds a mixture.
        """
        parts = saving.Parts(self.network, self.distribution, self.likelihood, self.layout, self.info)
        saving.write(folder, parts)

    def to(self, device: torch.device | str) -> Posterior:
        """The same posterior on another device."""
        tensors = {name: tensor.to(device) for name, tensor in self.distribution.tensors().items()}
        distribution = distributions.rebuild(distributions.describe(self.distribution), tensors)
        return Posterior(
            copy.deepcopy(self.network).to(device), distribution, self.likelihood, self.layout, self.info
        )


def _shape_of_a_row(x: Any) -> Any:
    if isinstance(x, Mapping):
        return tuple((name, _shape_of_a_row(value)) for name, value in sorted(x.items()))
    return tuple(map(_shape_of_a_row, x)) if isinstance(x, tuple) else tuple(x.shape[1:])


def load(folder: str | Path, network: nn.Module, likelihood: Likelihood | None = None) -> Posterior:
    """Read a posterior that :meth:`Posterior.save` wrote.

    Args:
        folder: where it was saved; it may have moved.
        network: a network of the same architecture (its values do not matter); it is copied.
        likelihood: only for a likelihood of your own.

    Raises:
        FileNotFoundError: nothing saved there.
        ValueError: a damaged file, or a network whose parameters do not fit (named).
    """
    return Posterior(*saving.read(folder, network, likelihood))
