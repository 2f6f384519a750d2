"""``Model``: ``p(y | f(x; w)) p(w)``: a network, a likelihood, a prior, and what is believed about."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .centred import Centred
from .functions import call
from .likelihoods import Likelihood
from .parameters import Layout, Patterns, Slot, match_names
from .priors import Laplace, Normal, PerParameter, ScaleMixture
from .provenance import DataSketch

__all__ = ["BlockPrior", "Model", "check_model", "part_of"]

BlockPrior = Normal | Laplace | ScaleMixture | Centred


def part_of(prior: BlockPrior, entries: slice | Tensor) -> BlockPrior:
    """The prior of some entries of a block: itself, unless it has numbers of its own for every entry."""
    return prior.part(entries) if isinstance(prior, Centred) else prior


class Model:
    """A probabilistic model over a network's parameters. It never writes to the network.

    Args:
        network: any ``nn.Module`` that returns one tensor (or ``.logits``); it is the start of training.
        likelihood: ``Categorical()``, ``Bernoulli()``, ``Gaussian()``, ``HeteroscedasticGaussian()``, or your
            own.
        prior: on every Bayesian parameter; ``PerParameter`` chooses by name, ``Centred`` has numbers of its
            own for every weight.
        bayesian: name patterns of the parameters that are believed about; all others stay as they are, as do
            all with ``requires_grad=False``.
        deterministic: patterns, among those, that are trained as point estimates (e.g. ``"*bias"``).
        normalization: treat the affine parameters of BatchNorm, LayerNorm, ... as Bayesian too. By default
            they are point estimates: a prior around 0 is wrong for a gain of 1.

    Raises:
        ValueError: patterns that match nothing, lazy or compiled networks, mixed dtypes (see ``Layout.of``).

    Example:
        >>> model = Model(nn.Linear(3, 2), __import__("singularbayes").Categorical(), prior=Normal(2.0))
        >>> model.layout.size
        8
    """

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        *,
        prior: BlockPrior | PerParameter | None = None,
        bayesian: Patterns = "*",
        deterministic: Patterns = (),
        normalization: bool = False,
    ) -> None:
        if isinstance(likelihood, type) or not hasattr(likelihood, "log_prob"):
            raise TypeError(f"likelihood must be an object such as Categorical(), got {likelihood!r}")
        self.network = network
        self.likelihood = likelihood
        self.prior: BlockPrior | PerParameter = Normal() if prior is None else prior
        if isinstance(self.prior, type) or not isinstance(self.prior, BlockPrior | PerParameter):
            raise TypeError(
                f"prior must be Normal(1.0), Laplace(1.0), ScaleMixture(), Centred(...) or "
                f"PerParameter(...), got {self.prior!r}"
            )
        self.layout = Layout.of(
            network,
            bayesian=bayesian,
            deterministic=deterministic,
            normalization=normalization,
            likelihood=likelihood.parameters,
        )
        self._warn_of_loose_ends()
        parameter = next(p for p in network.parameters() if p.requires_grad)
        self.dtype, self.device = parameter.dtype, parameter.device
        self.prior_blocks = tuple(self._blocks())
        #: Of data that the network, as the start of training, was fitted to before; see ``started_at``.
        self.seen: DataSketch | None = None

    def __repr__(self) -> str:
        layout, total = self.layout, sum(p.numel() for p in self.network.parameters())
        point = sum(slot.size for slot in layout.of_kind("point"))
        numbers = f"{layout.belief:,} of {total:,} numbers believed, {point:,} point estimates"
        return f"Model({type(self.network).__name__}, {self.likelihood}, {self.prior}: {numbers})"

    def _warn_of_loose_ends(self) -> None:
        """In a network whose owner froze some parameters, the others are meant to be trained."""
        if all(p.requires_grad for p in self.network.parameters()):
            return
        inside = {name for slot in self.layout.slots for name in slot.aliases}
        loose = [n for n, p in self.network.named_parameters() if p.requires_grad and n not in inside]
        if loose:
            more = f" and {len(loose) - 2} more" if len(loose) > 2 else ""
            warnings.warn(
                f"{', '.join(loose[:2])}{more} can be trained (requires_grad=True), but no pattern of "
                f"bayesian= matches: they stay as they are. Add them to bayesian=, and to deterministic= for "
                f"point estimates; or freeze them with requires_grad_(False)",
                stacklevel=3,
            )

    @property
    def takes_integers(self) -> bool:
        """Whether whole-number inputs are token ids, to be left as they are."""
        return takes_integers(self.network)

    def _blocks(self) -> Iterator[tuple[slice, BlockPrior]]:
        """Contiguous stretches of the belief with one prior each."""
        slots = self.layout.of_kind("belief")
        if isinstance(self.prior, Centred):
            if len(self.prior.mean) != self.layout.belief:
                raise ValueError(
                    f"the prior is centred at {len(self.prior.mean)} weights and the model believes in "
                    f"{self.layout.belief}; centre it at a posterior of the same network and patterns"
                )
            yield slice(0, self.layout.belief), self.prior
            return
        chosen = self._chosen([slot.aliases for slot in slots])
        start, current = 0, None
        for slot in slots:
            prior = chosen[slot.name]
            if current is not None and prior != current:
                yield slice(start, slot.start), current
                start = slot.start
            current = prior
        assert current is not None  # noqa: S101 - a layout always has a belief
        yield slice(start, self.layout.belief), current

    def _chosen(self, names: list[tuple[str, ...]]) -> dict[str, BlockPrior]:
        """The prior of every believed parameter, by first name."""
        if not isinstance(self.prior, PerParameter):
            assert not isinstance(self.prior, Centred)  # noqa: S101 - a prior of the whole belief
            return dict.fromkeys((aliases[0] for aliases in names), self.prior)
        chosen: dict[str, BlockPrior] = {}
        for pattern, prior in self.prior.priors.items():
            for name in match_names(pattern, names, "prior"):
                chosen.setdefault(name, prior)
        for aliases in names:
            if aliases[0] not in chosen:
                raise ValueError(
                    f"no prior for parameter {aliases[0]}; add a pattern that matches it, or '*' at the end"
                )
        return chosen

    def prior_of(self, slot: Slot) -> BlockPrior:
        """The prior of one believed tensor."""
        block, prior = next(pair for pair in self.prior_blocks if pair[0].start <= slot.start < pair[0].stop)
        return part_of(prior, slice(slot.start - block.start, slot.stop - block.start))

    def describe_prior(self) -> list[dict[str, Any]]:
        """The prior block by block in plain types, for a posterior's ``info``."""
        return [
            {"start": block.start, "stop": block.stop, "kind": type(prior).__name__, **prior.to_dict()}
            for block, prior in self.prior_blocks
        ]

    def log_prior(self, w: Tensor) -> Tensor:
        """Log prior density of rows ``(..., D)``, summed over the believed entries, in nats."""
        return torch.stack([prior.log_prob(w[..., block]).sum(-1) for block, prior in self.prior_blocks]).sum(
            0
        )

    def started_at(self, posterior: Any) -> Model:
        """The same model, started at the mean of a posterior of this model, or of one with equal parameters.

        The methods that begin with a trained network begin with the model's: fit ``MAP``, then any of them.

        Args:
            posterior: of one network (not of separate ones, as an ensemble has).

        Raises:
            ValueError: parameters of other names or shapes; separate networks.

        Example:
            >>> import singularbayes as sb
            >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
            >>> model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.1))
            >>> trained = model.started_at(sb.MAP(epochs=2).fit(model, (x, x)))
            >>> torch.equal(trained.network.weight, model.network.weight)
            False
        """
        layout = self.layout
        theirs = tuple(slot for slot in posterior.layout.slots if slot.kind != "mask")  # masks come last
        if theirs != layout.slots:
            odd = sorted({slot.name for slot in layout.slots} ^ {slot.name for slot in theirs})
            at = f" (first: {odd[0]})" if odd else "; shapes differ, or what is believed about"
            raise ValueError(
                f"the posterior's parameters are not this model's{at}; start from a posterior that was "
                f"fitted to a model of the same network and patterns"
            )
        try:
            row = posterior.at_mean().distribution.mean[: layout.size]
        except ValueError as error:
            raise ValueError(
                f"{error}; a model starts at one network: start at a posterior of one (MAP()), or put the "
                f"whole in the ensemble: DeepEnsemble(member=Pretrained(member=...))"
            ) from error
        started = copy.copy(self)
        started.network = self.copy_network()
        layout.write(started.network, row)
        numbers = layout.likelihood_views(row)
        started.likelihood = self.likelihood.started_at(numbers) if numbers else self.likelihood
        known = posterior.info.get("data")
        if known:
            seen = DataSketch.from_dict(known)
            started.seen = seen if self.seen is None else self.seen.joined(seen)
        return started

    def copy_network(self) -> nn.Module:
        """A private copy: training and prediction happen on copies alone."""
        try:
            return copy.deepcopy(self.network)
        except RuntimeError as error:  # non-leaf tensors kept on a module
            raise ValueError(
                f"the network cannot be copied ({error}); remove tensors that its forward pass stores on it"
            ) from error

    def outputs(self, network: nn.Module, x: Any) -> Tensor:
        """The network's output as one tensor, with an error that names shapes when the input does not fit."""
        try:
            return call(network, x)
        except (RuntimeError, IndexError) as error:  # IndexError: a token id beyond the embedding
            raise ValueError(f"the network failed on inputs of shape {_shape(x)}: {error}") from error


def _shape(x: Any) -> Any:
    if isinstance(x, Tensor):
        return tuple(x.shape)
    return {k: _shape(v) for k, v in x.items()} if isinstance(x, dict) else [_shape(v) for v in x]


def takes_integers(network: nn.Module) -> bool:
    """Whether a network begins with an embedding, so that whole numbers are ids and must not be cast."""
    return any("Embedding" in type(module).__name__ for module in network.modules())


def check_model(model: object) -> None:
    """What a method fits is a ``Model``.

    Raises:
        TypeError: a bare network, or anything else.
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"a method fits an sb.Model, got {type(model).__name__}; write sb.Model(network, "
            f"sb.Categorical()), or with the likelihood of your task"
        )
