"""What a user's log density must give at the start; every refusal says what to do."""

import math

import pytest
import torch

import singularbayes as sb
from singularbayes.sampling.leapfrog import evaluated
from singularbayes.sampling.sampler import Target, named
from singularbayes.sampling.target import (
    AlikeRows,
    AutogradTarget,
    check_rows,
    check_start,
    rows_are_alike,
    warn_of_rounding,
)
from singularbayes.sampling.trees import Divisible

START = torch.tensor([[0.5, -1.0], [2.0, 3.0], [0.1, 0.2]], dtype=torch.float64)


def normal(q):
    return -0.5 * q.square().sum(1)


def test_value_and_gradient_are_those_of_the_function():
    target = AutogradTarget(lambda q: torch.sin(q[:, 0]) * q[:, 1], 2)
    value, gradient = target(START)
    x, y = START.T
    torch.testing.assert_close(value, torch.sin(x) * y)
    torch.testing.assert_close(gradient, torch.stack([torch.cos(x) * y, torch.sin(x)], 1))
    assert isinstance(target, Target)


def test_gradients_do_not_accumulate_and_keep_no_graph():
    """Peers added the gradients of one step to those of the next."""
    weight = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    target = AutogradTarget(lambda q: (q * weight).sum(1), 2)
    position = START.clone().requires_grad_()
    first, second = target(position), target(position)
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[1], weight.detach().expand(3, 2))
    assert weight.grad is None
    assert position.grad is None
    assert not any(part.requires_grad for part in first)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode):
    with mode():
        assert torch.equal(AutogradTarget(normal, 2)(START)[1], -START)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda q: normal(q).sum(), r"\(\)"),
        (lambda q: normal(q)[:, None], r"\(3, 1\)"),
        (lambda q: -0.5 * q.square(), r"\(3, 2\)"),
        (lambda q: -0.5 * q.square().sum(0), r"\(2,\)"),
    ],
)
def test_a_wrong_shape_is_refused(function, shape):
    with pytest.raises(
        ValueError, match=rf"shape \(3,\) for positions \(3, 2\), got {shape}.*torch.vmap\(f\)"
    ):
        AutogradTarget(function, 2)(START)


def test_vmap_of_a_function_of_one_row_is_taken():
    target = AutogradTarget(torch.vmap(lambda row: -0.5 * row @ row), 2)
    assert torch.equal(target(START)[1], -START)


@pytest.mark.parametrize(
    "function",
    [
        lambda q: normal(q).detach(),
        lambda q: normal(q.detach()),
        lambda q: torch.from_numpy(q.detach().numpy()[:, 0]),
        lambda q: torch.ones(len(q), requires_grad=True) * 2,
    ],
)
def test_a_value_without_gradient_is_refused(function):
    with pytest.raises(ValueError, match=r"log_density has no gradient.*without detach"):
        AutogradTarget(function, 2)(START)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda q: q.detach().numpy(), "ndarray"),
        (lambda q: None, "NoneType"),
        (lambda q: q.sum(1) > 0, "torch.bool"),
        (lambda q: q.sum(1).long(), "torch.int64"),
        (lambda q: q.sum(1).bfloat16(), "torch.bfloat16"),
        (lambda q: q.sum(1) + 0j, "torch.complex128"),
    ],
)
def test_what_is_no_real_tensor_is_refused(function, got):
    with pytest.raises(TypeError, match=f"a float32 or float64 tensor \\(C,\\), got {got}"):
        AutogradTarget(function, 2)(START)


def test_a_value_on_another_device_is_refused():
    with pytest.raises(ValueError, match="returned a tensor on meta for positions on cpu; move what it uses"):
        AutogradTarget(lambda q: normal(q).to("meta"), 2)(START)


def test_some_of_the_chains_have_the_numbers_that_they_have_among_all():
    target, some = AlikeRows(normal, 2), torch.tensor([2, 0])
    assert isinstance(target, Divisible)
    assert not isinstance(AutogradTarget(normal, 2), Divisible)
    for part, whole in zip(target.of(some)(START[some]), target(START), strict=True):
        assert torch.equal(part, whole[some])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_start_without_density_names_the_chain(value):
    def broken(q):
        return torch.where(q[:, 0] > 1, q[:, 0] * 0 + value, normal(q))

    with pytest.raises(ValueError, match=f"at the start of chain 1 is {value}; a chain must start where"):
        check_start(AutogradTarget(broken, 2), START)


def test_a_gradient_that_is_not_finite_names_chain_and_coordinate():
    target = AutogradTarget(lambda q: q[:, 0] - q[:, 1].abs().sqrt(), 2)
    start = START.clone()
    start[2, 1] = 0
    with pytest.raises(ValueError, match=r"start of chain 2 is not finite \(chain 2, coordinate 1: nan\)"):
        check_start(target, start)


def test_log_densities_are_kept_in_float64():
    point = check_start(AutogradTarget(normal, 2), START.float())
    assert point.log_density.dtype == torch.float64
    assert point.gradient.dtype == torch.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda q: normal(q) - normal(q).mean(),  # only the value tells
        lambda q: normal(q) * q[:, 0].mean(),
        lambda q: normal(q - q.mean(0)),
    ],
)
def test_rows_that_hang_together_are_refused(function):
    target = AutogradTarget(function, 2)
    with pytest.raises(ValueError, match="chain 0 changes when the other chains move"):
        check_rows(target, evaluated(target, START))


@pytest.mark.parametrize(
    ("function", "alike"),
    [
        (normal, True),
        (lambda q: normal(q) * torch.arange(1, 1 + len(q)), False),
        (lambda q: normal(q) * torch.tensor([1.0, 1.0, 1.0]), False),  # fits three rows alone
        (lambda q: normal(q) * torch.tensor([1.0, 2.0, 3.0])[: len(q)], False),
    ],
)
def test_rows_with_data_of_their_own_are_known_and_sampled_together(function, alike):
    """NUTS asks about some of the rows alone, if they are alike."""
    target = AutogradTarget(function, 2)
    assert rows_are_alike(target, evaluated(target, START)) == alike
    check_rows(target, evaluated(target, START))
    samples = sb.sample(function, START, sb.NUTS(warm_up=20, draws=5, max_depth=4))
    assert samples.draws.isfinite().all()


def test_a_big_sum_in_single_precision_warns():
    """Before, sums of 1e9 nats in float32, known to 119 nats, were sampled without a word."""
    with pytest.warns(UserWarning, match=r"is 1e\+09 in torch.float32, known to 1.2e\+02 nats: .* float64"):
        warn_of_rounding(AutogradTarget(lambda q: normal(q).float() - 1e9, 2), START.float())
    warn_of_rounding(AutogradTarget(lambda q: normal(q) - 1e9, 2), START)
    warn_of_rounding(AutogradTarget(lambda q: normal(q).float() - 1e5, 2), START)


def test_a_gradient_alone_that_hangs_together_is_refused():
    class Mixed:
        dimension = 2

        def __call__(self, position):
            return normal(position), -position + position.mean(0)

    with pytest.raises(ValueError, match="chain 0 changes"):
        check_rows(Mixed(), evaluated(Mixed(), START))


@pytest.mark.parametrize("start", [START, START[:1], torch.zeros(3, 2), 1e-7 * START.float()])
def test_rows_that_stand_alone_pass(start):
    target = AutogradTarget(normal, 2)
    check_rows(target, evaluated(target, start))


def test_chains_are_named():
    assert named(torch.tensor([False, True])) == "chain 1"
    assert named(torch.tensor([True, False, True])) == "chains 0, 2"
    assert named(torch.ones(13, dtype=torch.bool)) == "chains 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"
