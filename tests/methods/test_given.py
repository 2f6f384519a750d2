"""Networks that were trained before, as rows: what a bare network cannot hold."""

import copy

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.methods.given import given_rows

X = torch.linspace(-1, 1, 24).unsqueeze(1)


def test_a_learned_noise_comes_from_posteriors_alone() -> None:
    torch.manual_seed(0)
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian())
    with pytest.raises(ValueError, match=r"learns likelihood.log_noise, which network 0, a bare network"):
        given_rows(model, [model.network, copy.deepcopy(model.network)], "network")
    posterior = sb.MAP(epochs=3, learning_rate=0.1).fit(model, (X, X))
    rows = given_rows(model, [posterior, posterior], "network")
    assert torch.equal(rows[0], posterior.draw(1)[0])
    assert rows[0, -1] != 0  # the trained level, not the start's log 1
    fixed = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5))
    assert given_rows(fixed, fixed.network, "network").shape == (1, 2)
