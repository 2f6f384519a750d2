"""``sb.sample``: bad input is named before any work."""

import math

import pytest
import torch

import singularbayes as sb

METHOD = sb.HMC(warm_up=20, draws=4)


def normal(q):
    return -0.5 * q.square().sum(1)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(3), r"got shape \(3,\); for one chain give start.reshape\(1, -1\)"),
        (torch.zeros(0, 3), r"got shape \(0, 3\)"),
        (torch.zeros(2, 0), r"got shape \(2, 0\)"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), "start of chain 1 is nan at coordinate 0"),
    ],
)
def test_a_start_of_another_shape_is_refused(start, message):
    with pytest.raises(ValueError, match=message):
        sb.sample(normal, start, METHOD)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("start", "got"),
    [
        ([[0.0]], "list"),
        (torch.zeros(2, 2, dtype=torch.long), "int64"),
        (torch.zeros(2, 2).half(), "float16"),
    ],
)
def test_a_start_of_another_type_is_refused(start, got):
    with pytest.raises(TypeError, match=f"start must be a float32 or float64 tensor .*got .*{got}"):
        sb.sample(normal, start, METHOD)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("log_density", "method", "message"),
    [
        (normal, sb.HMC, r"such as HMC\(\), got the class itself"),
        (normal, "hmc", r"method must be HMC\(...\), NUTS\(...\), ..., got a str"),
        (torch.zeros(2, 2), METHOD, "must be a function of positions .*, got a Tensor"),
    ],
)
def test_what_is_no_method_or_no_function_is_refused(log_density, method, message):
    with pytest.raises(TypeError, match=message):
        sb.sample(log_density, torch.zeros(2, 2), method)


def test_a_log_density_that_is_nan_at_the_start_names_the_chain():
    with pytest.raises(ValueError, match="at the start of chain 1 is nan"):
        sb.sample(lambda q: normal(q) + torch.sqrt(q[:, 0]), torch.tensor([[1.0], [-1.0]]), METHOD)


def test_rows_that_hang_together_are_refused():
    with pytest.raises(ValueError, match="each row must be computed by itself"):
        sb.sample(lambda q: normal(q) * q.mean(), torch.ones(3, 2), METHOD)


@pytest.mark.parametrize("field", [{"group": 2}, {"executor": "pool"}])
@pytest.mark.usefixtures("unchecked")
def test_where_the_chains_of_a_fit_run_is_no_matter_of_sample(field):
    method = sb.HMC(warm_up=20, draws=4, **field)
    with pytest.raises(ValueError, match=f"{next(iter(field))} says where the chains of a fit"):
        sb.sample(normal, torch.zeros(2, 2), method)


def test_the_start_is_not_written_to_and_its_dtype_is_kept():
    start = torch.zeros(2, 3)
    method = sb.HMC(warm_up=2, draws=4, step_size=0.5)
    samples = sb.sample(normal, start.requires_grad_(), method)
    assert samples.draws.dtype == torch.float32
    assert not samples.draws.requires_grad
    assert torch.equal(start, torch.zeros(2, 3))


def test_a_method_of_the_users_own_is_run():
    class Own:
        warm_up, draws, thin = 3, 5, 1

        def sampler(self):
            return sb.HMC(step_size=0.5).sampler()

    samples = sb.sample(normal, torch.zeros(2, 3), Own())
    assert samples.draws.shape == (2, 5, 3)
    assert samples.info["method"] == "Own"
