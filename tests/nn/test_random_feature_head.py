"""Random features against the kernel that they stand for."""

import math

import pytest
import torch
from torch import Tensor

from singularbayes.nn import RandomFeatureHead
from singularbayes.parameters import Layout

H = (
    torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    * torch.tensor([1.0, 0.3, 2.0]).double()
)


def kernel(h: Tensor, length_scale: float) -> Tensor:
    return torch.exp(-torch.cdist(h, h).square() / (2 * length_scale**2))


def head(features: int, length_scale: float = 1.5, layer_norm: bool = False) -> RandomFeatureHead:
    torch.manual_seed(0)
    return RandomFeatureHead(3, 2, features, length_scale, layer_norm, dtype=torch.float64)


def misses(phi: Tensor, expected: Tensor) -> float:
    """Largest deviation of the Gram matrix, in standard errors: one feature's product has sd below 1.23."""
    return ((phi @ phi.T - expected).abs() / (1.23 / math.sqrt(phi.shape[1]))).max().item()


def test_the_gram_matrix_of_many_features_is_the_rbf_kernel():
    own = head(20_000)
    phi = own.phi(H)
    assert misses(phi, kernel(H, 1.5)) < 4  # 21 numbers: false alarm below 1.4e-3
    assert misses(phi / math.sqrt(2), kernel(H, 1.5)) > 20  # without the 2
    assert misses(phi * math.sqrt(10_000), kernel(H, 1.5)) > 20  # without sqrt(2 / m)
    assert misses(phi, kernel(H, 1.5**2)) > 20


def test_more_features_are_nearer():
    few, many = (((own := head(m)).phi(H) @ own.phi(H).T - kernel(H, 1.5)).abs().max() for m in (50, 20_000))
    assert many < few / 4


def test_layer_norm_leaves_out_the_length():
    normed, plain = head(64, layer_norm=True), head(64)
    assert torch.allclose(normed.phi(H), normed.phi(3 * H), atol=1e-4)
    assert not torch.allclose(plain.phi(H), plain.phi(3 * H), atol=1e-1)
    assert torch.allclose(normed.phi(H), plain.phi(torch.nn.functional.layer_norm(H, (3,))))


def test_outputs_are_linear_in_the_weight_without_a_bias():
    own = head(64)
    assert torch.allclose(own(H), own.phi(H) @ own.weight.T)
    assert own(H.view(2, 3, 3)).shape == (2, 3, 2)


def test_frequencies_and_phases_are_part_of_a_draw():
    layout = Layout.of(head(4))
    assert [(slot.name, slot.kind) for slot in layout.slots] == [
        ("weight", "belief"),
        ("frequencies", "statistic"),
        ("phases", "statistic"),
    ]


def test_features_keep_their_digits_under_autocast():
    own = RandomFeatureHead(3, 2, 64)
    h = 30 * H.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(own.phi(h), own.phi(h.clone()))
        drawn = own.phi(h)
    assert torch.equal(drawn, own.phi(h))


@pytest.mark.parametrize(("sizes", "message"), [
    ((3, 2, 0), "sizes must be at least 1, got 3, 2, 0"), ((3, 2, 4, -1.0), "length_scale must be positive")
])  # fmt: skip
def test_bad_sizes_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        RandomFeatureHead(*sizes)


def test_another_length_scale_keeps_the_features_in_its_units():
    torch.manual_seed(0)
    head, h = RandomFeatureHead(3, 2, features=50, length_scale=2.0), torch.randn(5, 3)
    other = head.at_length_scale(0.5)
    assert torch.allclose(other.phi(h / 4), head.phi(h), atol=1e-6)
    assert not torch.allclose(other.phi(h), head.phi(h), atol=1e-2)
    assert (head.length_scale, other.length_scale) == (2.0, 0.5)
    assert torch.equal(other.weight, head.weight)
    with pytest.raises(ValueError, match="length_scale must be positive"):
        head.at_length_scale(0.0)
