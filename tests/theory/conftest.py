"""Small fits of low-rank networks that several tests of this folder look at."""

import warnings

import pytest
import torch
from torch import nn

import singularbayes as sb


class Words(nn.Module):
    """Token ids through an embedding that is tied to the head, attention, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.lstm(x)[0][:, -1])


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 9), nn.Linear(9, 4)
    )


def fitted(kind: str, diagonal: bool = False) -> sb.Posterior:
    """Two epochs of mean field on noise: it is the structure of the posterior that is looked at."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("ignore")
        words = kind == "words"
        network = Words() if words else images()
        x = torch.randint(0, 11, (40, 5)) if words else torch.randn(40, 2, 4, 4)
        points = ["*bias", "*A", "*B"] if diagonal else ["*bias"]
        model = sb.Model(sb.factorize(network, 3, diagonal=diagonal), sb.Categorical(), deterministic=points)
        y = torch.randint(0, 4, (40,))
        return sb.MeanField(epochs=2).fit(model, (x, y))


@pytest.fixture(scope="session")
def words() -> sb.Posterior:
    return fitted("words")


@pytest.fixture(scope="session")
def pictures() -> sb.Posterior:
    return fitted("images")


@pytest.fixture(scope="session")
def scales() -> sb.Posterior:
    """A belief about ``s`` alone."""
    return fitted("images", diagonal=True)
