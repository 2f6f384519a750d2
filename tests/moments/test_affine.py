"""What autograd's graph says of affine functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from singularbayes.moments.affine import is_affine

X = torch.randn(5, 4)
A, B = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

AFFINE = {
    "a linear layer": lambda: F.linear(X.tanh(), A, B[0]),
    "of three axes": lambda: F.linear(X.view(5, 1, 4), A),
    "a sum of two": lambda: X @ A - 2 * (X @ B).mean(0) / 3,
    "shapes": lambda: torch.cat([(X @ A).reshape(-1, 1), torch.stack([X @ B]).view(-1, 1)]).squeeze()[:3],
    "a convolution": lambda: F.conv1d(X.unsqueeze(1), A.view(4, 4, 1)[:, :1], B[0]),
    "batched": lambda: torch.baddbmm(B.unsqueeze(0), X.view(1, 5, 4)[:, :4], A.unsqueeze(0)),
    "one factor of a product": lambda: X @ (A @ B.detach()),
    "no dependence": lambda: X,
}  # fmt: skip
CURVED = {
    "a function of it": lambda: torch.tanh(X @ A),
    "a product of two": lambda: X @ (A @ B),
    "a square": lambda: (X @ A) * (X @ A),
    "a quotient": lambda: X[0] / A,
    "a layer after a layer": lambda: F.linear(F.linear(X, A), B),
    "a bias that enters twice": lambda: F.linear(F.linear(X, A.detach(), B[0]), A),
    "a convolution of itself": lambda: F.conv1d((X @ B).unsqueeze(1), A.view(4, 4, 1)[:, :1]),
    "a maximum": lambda: (X @ A).amax(0),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_known(name):
    assert is_affine(AFFINE[name]())


@pytest.mark.parametrize("name", CURVED)
def test_other_functions_are_not(name):
    result: Tensor = CURVED[name]()
    assert not is_affine(result)
