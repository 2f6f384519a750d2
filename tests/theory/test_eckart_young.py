"""The bounds of theorems 3.6 and 3.7 hold on every planted problem, and fail where a condition is broken."""

import math

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.theory import (
    AbsoluteError,
    BinaryCrossEntropy,
    Hinge,
    SoftmaxCrossEntropy,
    SquaredError,
    eckart_young_bound,
    network_bound,
)

KINDS = (SoftmaxCrossEntropy, BinaryCrossEntropy, Hinge, AbsoluteError, SquaredError)


def best(w: torch.Tensor, rank: int) -> torch.Tensor:
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    return u[:, :rank] * s[:rank] @ vh[:rank]


def problem(seed: int) -> dict[str, float]:
    """The true changes of a mean loss and their bounds; W badly scaled, inputs where it is cut."""
    source = torch.Generator().manual_seed(seed)
    kind, rank = KINDS[seed % 5], 1 + seed // 5 % 4

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    w = normal(5, 6) * torch.logspace(1, -1, 6, dtype=torch.float64)
    x = normal(40, 6)
    x[::2] = 2.0 * torch.linalg.svd(w).Vh[rank] * normal(20, 1)
    # losses of one output see it behind a row of norm 1, which keeps their constant
    row = torch.nn.functional.normalize(normal(5), dim=0)

    def outputs(v: torch.Tensor) -> torch.Tensor:
        return x @ v.T if kind in (SoftmaxCrossEntropy, SquaredError) else x @ v.T @ row

    cut = best(w, rank)
    learned = best(cut + 0.3 * cut.abs().mean() * normal(5, 6), rank)
    f = outputs(w)
    sign = torch.randint(0, 2, (40,), generator=source)
    y = {SoftmaxCrossEntropy: torch.randint(0, 5, (40,), generator=source), BinaryCrossEntropy: sign,
         Hinge: 2 * sign - 1}.get(kind, f + 0.5 * normal(*f.shape))  # fmt: skip
    if kind is SquaredError:
        loss = SquaredError(max((outputs(v) - y).norm(dim=1).max().item() for v in (w, cut, learned)))
    else:
        loss = kind()
    change, further = (abs(loss(outputs(v), y).mean() - loss(f, y).mean()).item() for v in (cut, learned))
    radius = x.norm(dim=1).max().item()
    one = eckart_young_bound(w, rank, loss=loss, radius=radius)
    two = eckart_young_bound(w, rank, loss=loss, radius=radius, learned=learned)
    return {"change": change, "spectral": one.spectral, "frobenius": one.frobenius, "further": further,
            "learned": two.spectral, "learned frobenius": two.frobenius}  # fmt: skip


def test_the_bounds_hold_on_200_of_200_planted_problems():
    found = [problem(seed) for seed in range(200)]
    assert all(p["change"] <= p["spectral"] * (1 + 1e-9) for p in found)
    assert all(p["spectral"] <= p["frobenius"] * (1 + 1e-9) for p in found)
    assert all(
        p["further"] <= p["learned"] * (1 + 1e-9) <= p["learned frobenius"] * (1 + 1e-8) for p in found
    )


def test_the_bound_is_attained():
    # inputs of norm R along the first lost direction, absolute error of one output: equality
    w, radius = torch.diag(torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64)), 2.0
    x = radius * torch.eye(3, dtype=torch.float64)[1:2]
    change = (AbsoluteError()((x @ w.T)[:, 1], torch.zeros(1).double()).mean()
              - AbsoluteError()((x @ best(w, 1).T)[:, 1], torch.zeros(1).double()).mean())  # fmt: skip
    bound = eckart_young_bound(w, 1, loss=AbsoluteError(), radius=radius)
    assert change.item() == pytest.approx(bound.spectral, rel=1e-12)
    assert bound.spectral == 4.0
    assert bound.frobenius == pytest.approx(2 * math.sqrt(4.25), rel=1e-12)


def test_inputs_beyond_the_radius_break_the_bound():
    w = torch.diag(torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64))
    x = 5.0 * torch.eye(3, dtype=torch.float64)[1:2]
    change = ((x @ w.T)[:, 1].abs() - (x @ best(w, 1).T)[:, 1].abs()).item()
    assert change > eckart_young_bound(w, 1, loss=AbsoluteError(), radius=2.0).frobenius


def test_a_squared_error_beyond_the_residual_breaks_the_bound():
    w = torch.diag(torch.tensor([3.0, 2.0], dtype=torch.float64))
    x, y = torch.eye(2, dtype=torch.float64)[1:2], torch.tensor([-50.0], dtype=torch.float64)
    loss = SquaredError(residual=1.0)
    change = abs(loss((x @ w.T)[:, 1], y) - loss((x @ best(w, 1).T)[:, 1], y)).item()
    assert change > eckart_young_bound(w, 1, loss=loss, radius=1.0).frobenius
    honest = SquaredError(residual=52.0)
    assert change <= eckart_young_bound(w, 1, loss=honest, radius=1.0).spectral


def test_without_the_learned_term_the_bound_fails():
    found = [problem(seed) for seed in range(200)]
    assert sum(p["further"] > p["spectral"] for p in found) > 5  # 11 with these seeds, of 200
    w = torch.diag(torch.tensor([3.0, 0.1], dtype=torch.float64))
    learned = torch.diag(torch.tensor([-3.0, 0.0], dtype=torch.float64))
    x = torch.eye(2, dtype=torch.float64)[:1]
    change = abs(AbsoluteError()((x @ w.T)[:, 0], torch.tensor([9.0]).double())
                 - AbsoluteError()((x @ learned.T)[:, 0], torch.tensor([9.0]).double())).item()  # fmt: skip
    assert change > eckart_young_bound(w, 1, loss=AbsoluteError(), radius=1.0).frobenius
    assert change <= eckart_young_bound(w, 1, loss=AbsoluteError(), radius=1.0, learned=learned).spectral


@pytest.mark.parametrize(
    ("loss", "constant"),
    [(SoftmaxCrossEntropy(), math.sqrt(2)), (BinaryCrossEntropy(), 1.0), (Hinge(), 1.0),
     (AbsoluteError(), 1.0),     (SquaredError(3.0), 6.0)],
)  # fmt: skip
def test_lipschitz_constants_are_the_published_ones_and_are_reached(loss, constant):
    assert loss.lipschitz == pytest.approx(constant, rel=1e-12)
    if isinstance(loss, SoftmaxCrossEntropy):  # sure of one class while the label is another
        f, y = torch.tensor([[30.0, -30.0]], dtype=torch.float64), torch.tensor([1])
    elif isinstance(loss, SquaredError):
        f, y = torch.tensor([3.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    else:
        f, y = torch.tensor([-30.0], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    f.requires_grad_()
    slope = torch.autograd.grad(loss(f, y).sum(), f)[0].norm().item()
    assert slope == pytest.approx(constant, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rank": 0}, "rank 0 is outside 1..2"), ({"rank": 3}, "outside 1..2"), ({"radius": math.inf}, "radius"),
     ({"radius": -1.0}, "radius"), ({"learned": torch.eye(3)[:2]}, "learned has rank 2, above 1"),
     ({"weights": torch.full((2, 3), math.nan)}, "not finite")],
)  # fmt: skip
def test_what_the_theorems_do_not_cover_is_refused(arguments, message):
    asked = {"weights": torch.ones(2, 3), "rank": 1, "loss": Hinge(), "radius": 1.0} | arguments
    with pytest.raises(ValueError, match=message):
        eckart_young_bound(**asked)


@pytest.mark.usefixtures("unchecked")
def test_a_learned_matrix_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"learned has shape \(2, 2\), the weights \(2, 3\)"):
        eckart_young_bound(torch.ones(2, 3), 1, loss=Hinge(), radius=1.0, learned=torch.ones(2, 2))


def test_a_residual_that_is_no_bound_is_refused():
    with pytest.raises(ValueError, match="residual must be positive"):
        SquaredError(residual=0.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_a_whole_chain_holds_for_every_cut(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(8, 10), nn.Tanh(), nn.Sequential(nn.Linear(10, 9), nn.LeakyReLU()), nn.Linear(9, 4)
    )
    x, y = torch.randn(60, 8) * torch.logspace(-1, 1, 8), torch.randint(0, 4, (60,))
    loss = SoftmaxCrossEntropy()
    for ranks in ({"0": 2, "2.0": 3, "3": 1}, {"2.0": 1}, {"0": 8, "2.0": 9, "3": 4}):
        bound = network_bound(network, ranks, x, loss)
        low = sb.merge(network)
        for name, rank in ranks.items():
            layer = low.get_submodule(name)
            layer.weight.data = best(layer.weight.data.double(), rank).float()
        change = abs(loss(low(x), y).mean() - loss(network(x), y).mean()).item()
        assert change <= bound.total + 1e-5
        assert bound.total == pytest.approx(sum(bound.layers.values()))
    assert bound.total == 0.0  # nothing was cut


def test_without_the_norms_behind_a_layer_the_bound_of_a_chain_fails():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Identity(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        network[0].weight.copy_(torch.diag(torch.tensor([2.0, 1.0])))
        network[2].weight.copy_(torch.tensor([[0.0, 10.0]]))
    x = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    bound = network_bound(network, {"0": 1}, x, AbsoluteError())
    change = (
        20.0  # the outputs fall from 10 and 30 to 0: with the mean of the norms, 2, the bound is attained
    )
    assert bound.total == pytest.approx(change)
    steeper = network_bound(network, {"0": 1}, x, SquaredError(residual=3.0))
    assert steeper.total == pytest.approx(6.0 * change)
    alone = eckart_young_bound(network[0].weight.detach(), 1, loss=AbsoluteError(), radius=2.0)
    assert change > alone.frobenius  # the first layer's own bound, its loss not the one behind it


def test_the_bound_of_a_chain_holds_for_rows_that_are_put_side_by_side():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Flatten(), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        network[0].weight.copy_(torch.diag(torch.tensor([2.0, 1.0])))
        network[2].weight.copy_(torch.tensor([[0.0, 1.0] * 4]))
    x = torch.tensor([0.0, 3.0]).expand(5, 4, 2)
    # four rows of norm 3, added up by a head of norm 2: outputs fall from 12 to 0, the bound is attained
    bound = network_bound(network, {"0": 1}, x, AbsoluteError())
    assert bound.total == pytest.approx(12.0)
    assert 2.0 * x.norm(dim=-1).mean() < 12.0  # the mean norm of single rows would promise less


def test_activations_that_write_in_place_leave_the_inputs_alone():
    network = nn.Sequential(nn.LeakyReLU(0.5, inplace=True), nn.Linear(3, 3)).double()
    x = -torch.ones(2, 3, dtype=torch.float64)
    network_bound(network, {"1": 1}, x, AbsoluteError())
    assert x.eq(-1).all()


@pytest.mark.parametrize(
    "part", [nn.GELU(), nn.LSTM(4, 4), nn.LeakyReLU(3.0), nn.ELU(2.0), nn.BatchNorm1d(4)]
)
def test_a_network_that_is_no_chain_of_contractions_is_refused_by_name(part):
    network = nn.Sequential(nn.Linear(4, 4), part)
    with pytest.raises(ValueError, match=f"1 is a {type(part).__name__}"):
        network_bound(network, {"0": 1}, torch.ones(2, 4), Hinge())


def test_ranks_of_layers_that_are_not_there_are_refused():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match="no linear layer '1'; there are 0"):
        network_bound(network, {"1": 1}, torch.ones(2, 4), Hinge())
    with pytest.raises(ValueError, match=r"0: rank 5 is outside 1\.\.4"):
        network_bound(network, {"0": 5}, torch.ones(2, 4), Hinge())
