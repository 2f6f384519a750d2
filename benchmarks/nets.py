"""The networks of the timed tables: MLPs, the Transformer and the LSTM of arXiv 2602.00387.

Beside them lazy Adam, which moves only those rows of an embedding table that the step looked up. It is here
for comparison alone: under a KL it regularises badly, see ``methods/rows.py``.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, LENGTH = 30_522, 256, 4, 512, 4, 64
POINTS = ("*bias", "*position", "*head.*")  # of the Transformer: what has no distribution there


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise(sizes):
        layers += [nn.Linear(m, n), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Transformer(nn.Module):
    """SST-2: word pieces, pre-norm encoder, the first token's features, a head; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.position[: ids.shape[1]]
        return self.head(self.norm(self.encoder(x)[:, 0]))


class Recurrent(nn.Module):
    """Beijing PM2.5: two LSTM layers of 64 over 24 hours of 15 features, the last hour's state, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(15, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class LazyAdam:
    """Adam on the rows of one table that the last backward pass reached, one count of steps for all rows.

    Args:
        table: ``(V, k)``, its moments kept beside it.
        rows: gives the ids of the step.
        learning_rate: step size.
    """

    def __init__(self, table: Tensor, rows: Callable[[], Tensor], learning_rate: float) -> None:
        self.table, self.rows, self.learning_rate = table, rows, learning_rate
        self.first, self.second, self.count = torch.zeros_like(table), torch.zeros_like(table), 0

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self.count += 1
        rows = self.rows()
        g = gradient[rows]
        first = self.first[rows].mul_(0.9).add_(g, alpha=0.1)
        second = self.second[rows].mul_(0.999).addcmul_(g, g, value=0.001)
        self.first[rows], self.second[rows] = first, second
        scale = (second / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
        self.table.index_put_(
            (rows,), -self.learning_rate / (1 - 0.9**self.count) * first / scale, accumulate=True
        )


def words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids with the frequencies of a language (Zipf's), and labels."""
    weights = 1 / torch.arange(1, VOCABULARY + 1)
    return torch.multinomial(weights, batch * length, replacement=True).view(batch, length), torch.arange(
        batch
    ) % 2
