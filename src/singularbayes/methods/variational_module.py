"""Mean-field VI for a training loop of your own: an ordinary ``nn.Module`` with two flat parameters.

    loss = mean batch NLL + (T / N) KL(q || p),    q = prod_i Normal(mean_i, softplus(rho_i)^2)

Objective, estimators and gradients are those of ``MeanField``, whose ``fit`` brings its loop along. This one
is trained by any optimizer, under DistributedDataParallel, Hugging Face's Trainer or Lightning.

References:
    Blundell et al. 2015, arXiv 1505.05424, section 3.2. arXiv 2602.00387, algorithm 1 (on factors).
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, TypeGuard

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import take
from ..distributions import DiagonalGaussian, DiagonalLaplace, positive, standard_laplace_
from ..divergence import KL, Family, log_density
from ..functions import call, reduce_output
from ..model import BlockPrior, Model, check_model
from ..parameters import Slot, owner
from ..posterior import Posterior
from ..priors import ScaleMixture
from ..probing import check_network
from ..random import generator
from .diagonal import initial_scales, inverse_softplus
from .drawn import Drawn, in_backward
from .gradients import DeterministicKL, Draw, NegativeLogPrior, Positive
from .mean_field import MeanField
from .rows import find_tables
from .stretches import Stretch, cut

__all__ = ["VariationalModule"]


class VariationalModule(nn.Module):
    """A network with a mean-field belief over its parameters, as a module to train in your own loop.

    In train mode every call draws one set of weights, for the whole batch; in eval mode it uses the mean
    weights, the same numbers every time. A draw's noise follows from ``(seed, rank, number of the draw)``:
    processes of a distributed run draw differently, the global random state is left alone, and the number is
    a buffer, so that ``state_dict()`` of module and optimizer resumes to the same numbers.

    Under DistributedDataParallel and the like call the wrapped module, then :meth:`objective`::

        outputs = ddp(x)
        loss = ddp.module.objective(outputs, y)

    Use an optimizer without weight decay: the prior is in the loss. Activation checkpointing belongs inside
    the network, with one forward pass before each backward pass; around this module it would draw again, and
    raises an error.

    Args:
        model: network, likelihood, prior. It is not written to.
        num_data: ``N``, the number of training examples in all (of all processes together).
        kl: estimator of the KL, as in ``MeanField``: ``None`` is closed where it exists, else Monte Carlo at
            the draw of the last forward pass; for embedding tables that are not tied closed or the bound.
        family: ``gaussian`` or ``laplace`` q.
        initial_std: start standard deviation in units of each tensor's own root mean square.
        temperature: weight ``T`` of the KL; an attribute that a loop may change (a warm-up).
        seed: of the draws.

    Attributes:
        mean: means of the believed parameters, flat ``(d,)``.
        rho: ``(d,)``; standard deviations (or Laplace scales) are ``softplus(rho)``.
        point: point estimates and the likelihood's learned numbers, flat, or ``None``.
        prior_numbers: numbers of learned priors, three each, or ``None``.
        drawn_count: number of draws so far, a buffer.

    Raises:
        ValueError: ``num_data`` below 1, half-precision parameters, an estimator that the prior lacks.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> module = VariationalModule(sb.Model(net, sb.Gaussian(noise=0.1)), num_data=32)
        >>> optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     module.loss(x, x).backward()
        ...     optimizer.step()
        >>> module.posterior().predict(x, draws=16).epistemic.shape
        torch.Size([32])
    """

    mean: nn.Parameter
    rho: nn.Parameter
    point: nn.Parameter | None
    prior_numbers: nn.Parameter | None
    drawn_count: Tensor

    def __init__(
        self,
        model: Model,
        *,
        num_data: int,
        kl: KL | None = None,
        family: Family = Family.GAUSSIAN,
        initial_std: float = 0.1,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_model(model)
        if isinstance(num_data, bool) or not isinstance(num_data, Integral) or num_data < 1:
            raise ValueError(f"num_data is the number of training examples, at least 1; got {num_data!r}")
        if model.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"the network's parameters are {model.dtype}, too coarse for small steps; keep them in "
                f"float32 (network.float()) and run the forward pass under torch.autocast"
            )
        generator(seed)  # refused before any work
        method = MeanField(kl=kl, family=family, initial_std=initial_std, temperature=temperature)
        self.estimators = _estimators(model, method)
        self.model, self.family, self.seed = model, method.family, seed
        self.num_data, self.temperature = int(num_data), temperature
        layout = model.layout
        start = layout.flatten(model.network, model.likelihood.parameters)[: layout.trained]
        scales = initial_scales(model, start, initial_std) / math.sqrt(self.family.unit_variance)
        self.mean = nn.Parameter(start[: layout.belief].clone())
        self.rho = nn.Parameter(inverse_softplus(scales))
        point = start[layout.belief :].clone()
        self.register_parameter("point", nn.Parameter(point) if len(point) else None)
        learned = [prior.unconstrained().to(start) for _, prior in model.prior_blocks if _is_learned(prior)]
        self.register_parameter("prior_numbers", nn.Parameter(torch.cat(learned)) if learned else None)
        self.register_buffer("drawn_count", torch.zeros((), dtype=torch.int64, device=start.device))
        self._noise: tuple[Any, Tensor] | None = None
        self._checked = False
        self._attach(Drawn(model))
        self.train(model.network.training)

    def _attach(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.kept = drawn.kept()
        self._rest()

    @property
    def network(self) -> nn.Module:
        """The private copy of the network, with the weights of the last call."""
        return self.drawn.network

    # Draws

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The network's outputs, whatever it returns: at one draw in train mode, at the mean in eval mode.

        Args:
            inputs: given to the network.
            named: given to the network.

        Raises:
            RuntimeError: called inside a backward pass (activation checkpointing around this module).
        """
        self._write_weights()  # type: ignore[call-arg] - torch's annotation of the decorator
        return self.drawn.network(*inputs, **named)

    @torch.compiler.disable
    def _write_weights(self) -> None:
        """Put the weights of this call into the network."""
        if in_backward():
            raise RuntimeError(
                "activation checkpointing around a VariationalModule would draw other weights in the "
                "backward pass; checkpoint layers inside the network instead"
            )
        with torch.autocast(self.mean.device.type, enabled=False):
            if not self.training:
                self.drawn.put(self._with_point(self.mean))
                return
            self.drawn_count += 1
            w = self._with_point(self._weights())
            self.drawn.recomputed.follow(w, int(self.drawn_count))
            self.drawn.put(w)

    def _with_point(self, belief: Tensor) -> Tensor:
        """The drawn tensors of the network, flat: belief, then point estimates."""
        if self.point is None:
            return belief
        learned = sum(slot.size for slot in self.model.layout.of_kind("likelihood"))
        return torch.cat([belief, self.point[: len(self.point) - learned]])

    def _weights(self) -> Tensor:
        """The believed parameters at the present draw."""
        return Draw.apply(self.mean, self.rho, self._present_noise())

    def _present_noise(self) -> Tensor:
        """Noise ``(d,)`` of the present draw; drawn again after a load or a cast."""
        number, rank = int(self.drawn_count), _rank()
        key = (self.seed, rank, number, self.mean.dtype, self.mean.device)
        if self._noise is None or self._noise[0] != key:
            noise = torch.empty_like(self.mean, requires_grad=False)
            source = generator(self.seed, "noise", rank, number, device=self.mean.device)
            if self.family is Family.GAUSSIAN:
                noise.normal_(generator=source)
            else:
                standard_laplace_(noise, source)
            self._noise = key, noise
        return self._noise[1]

    # The objective

    def kl(self) -> Tensor:
        """KL in nats, a sum over all believed parameters, with its gradient.

        The same in train and eval mode, and before the first forward pass. With the Monte Carlo estimator it
        is at the draw of the last forward pass in train mode.
        """
        scale, total, learned = Positive.apply(self.rho), self.mean.new_zeros(()), 0
        with torch.autocast(self.mean.device.type, enabled=False):
            for block, prior, kl in self.estimators:
                if kl is not KL.MONTE_CARLO:
                    total = total + DeterministicKL.apply(self.mean[block], scale[block], self.family, prior)
                    continue
                noise, numbers = self._present_noise()[block], None
                if _is_learned(prior) and self.prior_numbers is not None:
                    numbers = self.prior_numbers[learned : learned + 3]
                    learned += 3
                w = Draw.apply(self.mean[block], self.rho[block], noise)
                total = total + log_density(self.family, noise, scale[block]).sum()
                total = total + NegativeLogPrior.apply(w, numbers, prior)
        return total

    def objective(self, outputs: Any, y: Tensor) -> Tensor:
        """``mean batch NLL + (T / N) KL`` of outputs that this module gave, per datum, in nats.

        Args:
            outputs: what the forward pass returned (a tensor, or an object with ``.logits``).
            y: labels, in any form that the likelihood takes.

        Raises:
            ValueError: labels that do not fit the outputs or the likelihood.
        """
        outputs = reduce_output(outputs)
        likelihood = self.model.likelihood
        y = likelihood.labels(outputs.shape, y)
        nll = likelihood.loss(outputs, y, self._likelihood_numbers())
        return nll + (self.temperature / self.num_data) * self.kl()

    def loss(self, x: Any, y: Tensor) -> Tensor:
        """:meth:`objective` of one forward pass on a batch.

        Args:
            x: inputs; a dict is given to the network by name, a tuple by position.
            y: labels.

        Raises:
            ValueError: at the first call, a network that a posterior cannot carry (see ``check_network``):
                the batch is not its first axis, its output is random in eval mode, ...
        """
        if not self._checked:
            copy = self.model.copy_network().to(self.mean.device, self.mean.dtype).eval()
            check_network(self.model, copy, take(x, slice(0, 2)))
            self._checked = True
        return self.objective(call(self, x), y)

    def _likelihood_numbers(self) -> dict[str, Tensor]:
        slots, layout = self.model.layout.of_kind("likelihood"), self.model.layout
        if self.point is None:
            return {}
        return {
            s.name.partition(".")[2]: self.point[s.start - layout.belief : s.stop - layout.belief].view(
                s.shape
            )
            for s in slots
        }

    # The posterior

    @torch.no_grad()
    def posterior(self) -> Posterior:
        """The posterior at the present state, on a network of its own."""
        layout, network = self.model.layout, self.model.copy_network().to(self.mean.device, self.mean.dtype)
        kept = self.kept.state_dict()
        network.load_state_dict(kept, strict=False)
        trained = torch.cat([self.mean, *([] if self.point is None else [self.point])])
        statistics = [getattr(*owner(network, slot.name)).reshape(-1) for slot in layout.of_kind("statistic")]
        row = torch.cat([trained, *[s.to(trained) for s in statistics]])
        layout.write(network, row)
        scale = F.pad(positive(self.rho), (0, len(row) - layout.belief))
        kind = DiagonalGaussian if self.family is Family.GAUSSIAN else DiagonalLaplace
        return Posterior(network, kind(row, scale), self.model.likelihood, layout, self._info())

    def _info(self) -> dict[str, Any]:
        learned = []
        for _, prior, _ in self.estimators:
            if _is_learned(prior) and self.prior_numbers is not None:
                numbers = self.prior_numbers[3 * len(learned) : 3 * len(learned) + 3]
                learned.append(prior.with_unconstrained(numbers).to_dict())
        return {
            "method": "VariationalModule",
            "numbers": sum(p.numel() for p in (self.mean, self.rho, self.point) if p is not None),
            "num_data": self.num_data,
            "seed": self.seed,
            "draws": int(self.drawn_count),
            "settings": {"temperature": self.temperature, "family": str(self.family)},
            **({"learned_priors": learned} if learned else {}),
        }

    # What torch does with modules

    def _rest(self) -> None:
        """The mean weights, outside any graph."""
        with torch.no_grad():
            self.drawn.put(self._with_point(self.mean.detach()).detach())

    def train(self, mode: bool = True) -> VariationalModule:
        """Train mode draws, eval mode uses the mean; the network's own layers follow."""
        super().train(mode)
        self.drawn.network.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> VariationalModule:
        super()._apply(fn, recurse)
        self._rest()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without what is rebuilt: the present noise, and the view of what the network keeps."""
        modules = {name: module for name, module in self._modules.items() if name != "kept"}
        return {**self.__dict__, "_modules": modules, "_noise": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._attach(self.drawn)


def _estimators(model: Model, method: MeanField) -> list[tuple[slice, BlockPrior, KL]]:
    """Stretches of the belief with their prior and estimator; tables have those of ``MeanField``."""
    slots = model.layout.of_kind("belief")
    tables = find_tables(model.network, slots)

    def table(slot: Slot, prior: BlockPrior) -> Stretch | None:
        kl = method.table_estimator(prior)
        if slot.name not in tables or kl is method.estimator(prior):
            return None
        return Stretch(slice(slot.start, slot.stop), prior, kl)

    stretches = cut(model.prior_blocks, slots, method.estimator, table)
    return [(each.block, each.prior, each.kl) for each in stretches]


def _is_learned(prior: BlockPrior) -> TypeGuard[ScaleMixture]:
    return isinstance(prior, ScaleMixture) and prior.learned


def _rank() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0
