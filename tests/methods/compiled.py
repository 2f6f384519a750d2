"""Compiled fits and predictions against eager ones, for ``test_precision.py``: ``compiled.py BACKEND``.

A process of its own: the checks of annotations that tests put around every function are not for dynamo.
"""

import functools
import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.nn import LowRankLinear
from singularbayes.nn.embedding import LowRankEmbedding

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(24, 6, generator=SOURCE) * torch.tensor([1.0, 3.0, 0.1, 1.0, 1.0, 1.0])
IDS = torch.randint(0, 30, (24, 5), generator=SOURCE)
Y = (X[:, 0] > 0).long()


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(LowRankLinear(6, 16, 3), nn.Tanh(), nn.Linear(16, 2))


class Words(nn.Module):
    """A low-rank table and head around a stock encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = LowRankEmbedding(30, 8, 2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = LowRankLinear(8, 2, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(ids)).mean(1))


class Series(nn.Module):
    """A stock recurrent layer, which torch leaves out of its graphs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), LowRankLinear(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(-1))[0][:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "chain": (chain, X),
    "words": (Words, IDS),
    "series": (Series, X),
}


# Its table draws all rows when compiled: the same numbers need the same KL and noise.
METHODS = {
    "MeanField": functools.partial(sb.MeanField, epochs=2, batch_size=8, kl=sb.KL.MONTE_CARLO),
    "MAP": functools.partial(sb.MAP, epochs=2, batch_size=8),
}


def fit(method, network: nn.Module, x: Tensor) -> sb.Posterior:
    return method.fit(sb.Model(network, sb.Categorical(), prior=sb.ScaleMixture()), (x, Y), seed=3)


def differences() -> dict[str, float]:
    found = {}
    for name, (make, x) in NETWORKS.items():
        for kind, method in METHODS.items():
            eager, compiled = fit(method(), make(), x), fit(method(compile=True), make(), x)
            # Of functions, not of weights: attention's key bias has a gradient of rounding errors alone, and
            # Adam makes steps of them.
            one, two = (fitted.functions(fitted.draw(3), x) for fitted in (eager, compiled))
            found[f"{name}, {kind}"] = (one - two).abs().max().item()
    posterior = fit(sb.MeanField(epochs=1), chain(), X)
    draws = posterior.draw(4)
    functions = torch.compile(posterior.functions)
    found["prediction"] = (functions(draws, X) - posterior.functions(draws, X)).abs().max().item()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.compile = functools.partial(torch.compile, backend=sys.argv[1])
    print(json.dumps(differences()))
