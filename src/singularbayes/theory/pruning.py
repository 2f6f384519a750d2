"""``prune``: components of low-rank layers that a fit has shrunk are taken out; a smaller posterior is left.

A fit with more columns than it needs spreads what it has learned over all of them; turned into order
(:mod:`.canonical`) the components that are not needed are small. Of the component ``a_k b_k^T``

    energy of the mean = |mu_ak|^2 |mu_bk|^2 (s_k^2),    relevance = that / (the layer's largest)

Taking one out moves the layer's mean by at most ``|mu_ak| |mu_bk|`` (Frobenius), and takes its noise with it.

References:
    MacKay 1994 (automatic relevance determination). Nakajima and Sugiyama 2011 (variational matrix
    factorisation shrinks singular components that the noise explains).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from .. import distributions
from ..nn import factorize, merge
from ..nn.factors import quiet_ranks
from ..parameters import Layout, owner
from ..posterior import Posterior
from .canonical import canonical
from .factor_beliefs import LowRankWeight, low_rank_weights

__all__ = ["Pruned", "component_relevance", "prune"]

_MARGINAL = ("diagonal_gaussian", "diagonal_laplace", "low_rank_gaussian")


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """A smaller posterior, and why it is smaller.

    Args:
        posterior: the marginal over the components that were kept; see :func:`.canonical` for what is dropped
            where they were turned into order first.
        table: one row a component: layer, component, energy, relevance, signal, kept.
        ranks: of every low-rank matrix afterwards, by title.
        moved: how far the mean of each matrix may have moved (Frobenius norm, an upper bound), by title.
    """

    posterior: Posterior
    table: pd.DataFrame
    ranks: dict[str, int]
    moved: dict[str, float]

    @property
    def network(self) -> nn.Module:
        """The smaller network at the posterior's mean; ``sb.load`` of the saved posterior takes it."""
        return self.posterior.network

    def __str__(self) -> str:
        kept = self.table.groupby("layer", sort=False)["kept"].agg(["sum", "size"])
        lines = [
            f"{layer}: {row['sum']} of {row['size']} components kept, mean moved by at most "
            f"{self.moved[str(layer)]:.3g}"
            for layer, row in kept.iterrows()
        ]
        return "\n".join([*lines, f"{self.posterior.layout.size:,} entries left"])


@torch.no_grad()
def component_relevance(posterior: Posterior) -> pd.DataFrame:
    """How much each component of every low-rank matrix matters, as the columns are.

    Of a fit as it comes the columns are mixtures; :func:`.canonical` turns them into order.

    Args:
        posterior: of one network with low-rank layers.

    Returns:
        One row a component: ``layer``, ``component``, ``energy`` of its mean, ``relevance`` (energy over the
        layer's largest, in [0, 1]) and ``signal``, the share of its expected squared norm that is its mean's
        (1: certain; 0: all noise).

    Raises:
        ValueError: no low-rank layer; separate networks (an ensemble), whose components have no common order.
    """
    return _relevance(posterior, low_rank_weights(_checked(posterior)))


def _checked(posterior: Posterior) -> Posterior:
    kind = posterior.distribution.kind
    if kind not in _MARGINAL and posterior.support != 1:
        raise ValueError(
            f"components are known of one network with a Gaussian, Laplace or point belief, not of a "
            f"{type(posterior.distribution).__name__}; fit MeanField, or prune one member"
        )
    if any(slot.kind == "mask" for slot in posterior.layout.slots):
        raise ValueError("the posterior draws dropout masks; prune a posterior without them")
    return posterior


def _relevance(posterior: Posterior, weights: list[LowRankWeight]) -> pd.DataFrame:
    mean, variance = posterior.distribution.mean.double(), posterior.distribution.variance.double()
    rows = []
    for weight in weights:
        energy, expected = torch.ones(weight.rank), torch.ones(weight.rank)
        for part in "ABs"[: len(weight.names)]:
            own, spread = weight.part(part, mean).double().square(), weight.variance(part, variance)
            if part != "s":
                own, spread = own.sum(0), spread.sum(0)
            energy, expected = energy * own.cpu(), expected * (own + spread).cpu()
        largest = float(energy.max())
        for k in range(weight.rank):
            e, x = float(energy[k]), float(expected[k])
            rows.append({"layer": weight.title, "component": k, "energy": e,
                         "relevance": e / largest if largest > 0 else 0.0,
                         "signal": e / x if x > 0 else 0.0})  # fmt: skip
    return pd.DataFrame(rows)


@torch.no_grad()
def prune(posterior: Posterior, relevance: float = 1e-3, *, turn: bool = True) -> Pruned:
    """Take out the components whose mean is below a share of the layer's strongest: the rank needs no hand.

    Fit with a rank that is surely enough, prune, and fit on from what is left: a model of ``pruned.network``
    starts at its mean. The strongest component of a layer always stays.

    Args:
        posterior: of one network with low-rank layers: a diagonal Gaussian or a point; with ``turn=False`` a
            low-rank Gaussian or a Laplace too.
        relevance: a component stays if its mean's energy is at least this share of the largest, in (0, 1).
        turn: turn the components into order first, see :func:`.canonical`; ``False`` takes the columns as
            they are (for layers with an ``s``, which names them).

    Raises:
        ValueError: a relevance outside (0, 1), no low-rank layer, separate networks; with ``turn`` a
            posterior that cannot be turned.

    Example:
        >>> import singularbayes as sb
        >>> x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        >>> net = sb.factorize(torch.nn.Linear(8, 8), 3)
        >>> with torch.no_grad():
        ...     _ = net.A[:, 1].mul_(0)
        >>> point = sb.MAP(epochs=1, learning_rate=1e-9).fit(sb.Model(net, sb.Gaussian(noise=1.0)), (x, x))
        >>> prune(point).ranks
        {'(root)': 2}
    """
    if not 0 < relevance < 1:
        raise ValueError(f"relevance must lie in (0, 1), a share of the layer's largest energy, got "
                         f"{relevance!r}")  # fmt: skip
    posterior = canonical(_checked(posterior)) if turn else _checked(posterior)
    weights = low_rank_weights(posterior)
    table = _relevance(posterior, weights)
    nothing = table.groupby("layer")["energy"].transform("max") == 0  # a layer of zeros keeps its first
    table["kept"] = (table["relevance"] >= relevance) | (nothing & (table["component"] == 0))
    kept = {
        str(title): torch.tensor(group.loc[group["kept"], "component"].to_numpy())
        for title, group in table.groupby("layer", sort=False)
    }
    out = table[~table["kept"]]
    moved = {w.title: float(out.loc[out["layer"] == w.title, "energy"].pow(0.5).sum()) for w in weights}
    smaller = _smaller(posterior, weights, kept)
    return Pruned(posterior=smaller, table=table, ranks={t: len(k) for t, k in kept.items()}, moved=moved)


def _smaller(posterior: Posterior, weights: list[LowRankWeight], kept: dict[str, Tensor]) -> Posterior:
    layout = posterior.layout
    columns = {name: kept[w.title] for w in weights for name in w.names}
    index, shapes = [], {}
    for slot in layout.slots:
        positions = torch.arange(slot.start, slot.stop).view(slot.shape)
        if slot.name in columns:
            positions = positions.index_select(_axis(slot.name, slot.shape), columns[slot.name])
        shapes[slot.name] = list(positions.shape)
        index.append(positions.reshape(-1))
    rows = torch.cat(index).to(posterior.device)
    content = [item | {"shape": shapes[item["names"][0]]} for item in layout.to_dict()]
    smaller = Layout.from_dict(content)
    distribution = _marginal(posterior.distribution, rows)
    network = _network(posterior, weights, kept)
    smaller.write(network, distribution.mean)
    each = 1 if posterior.distribution.kind == "stored_draws" else len(posterior.distribution.tensors())
    info = dict(posterior.info)
    if isinstance(info.get("numbers"), int):
        info["numbers"] -= each * (layout.belief - smaller.belief)
    info["pruned"] = {title: len(k) for title, k in kept.items()}
    return Posterior(network, distribution, posterior.likelihood, smaller, info)


def _axis(name: str, shape: tuple[int, ...]) -> int:
    """Where the components of a factor lie: first for ``s`` and a convolution's ``B``, else second."""
    leaf = name.rpartition(".")[2]
    return 0 if leaf[0] == "s" or len(shape) > 2 else 1


def _marginal(distribution: Any, rows: Tensor) -> Any:
    axis = 1 if distribution.kind == "stored_draws" else 0
    tensors = {name: tensor.index_select(axis, rows) for name, tensor in distribution.tensors().items()}
    return distributions.rebuild(distributions.describe(distribution), tensors)


def _network(posterior: Posterior, weights: list[LowRankWeight], kept: dict[str, Tensor]) -> nn.Module:
    """The same network with fewer columns: stock layers, factorised anew, then the kept columns."""
    ranks = {("*" if w.title == "(root)" else w.title): len(kept[w.title]) for w in weights}
    diagonal = {w.diagonal for w in weights}
    if len(diagonal) > 1:
        raise ValueError("some low-rank layers have an s between their factors and others do not; prune "
                         "takes networks of one kind")  # fmt: skip
    with quiet_ranks():
        network = factorize(merge(posterior.network), ranks, init="svd", diagonal=diagonal.pop())
    for weight in weights:
        for name in weight.names:
            module, leaf = owner(network, name)
            old = getattr(*owner(posterior.network, name))
            new = getattr(module, leaf)
            new.copy_(old.index_select(_axis(name, tuple(old.shape)), kept[weight.title].to(old.device)))
    return network.requires_grad_(False)
