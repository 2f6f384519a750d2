"""Compiled leapfrog blocks are the plain integrator; what cannot be compiled says so and goes on without."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.methods import network_density
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.sampling import compiled
from singularbayes.sampling.compiled import CompiledLeapfrog
from singularbayes.sampling.leapfrog import Leapfrog, evaluated
from singularbayes.sampling.low_rank_mass import LowRankMass
from singularbayes.sampling.mass import DiagonalMetric, UnitMass, UnitMetric
from singularbayes.sampling.target import AutogradTarget

CHAINS = 3


def gaussian(position: Tensor) -> Tensor:
    """Correlated, and badly scaled."""
    scaled = position / position.new_tensor([1.0, 10.0, 0.1])
    return -0.5 * (scaled.square().sum(1) + 0.8 * scaled[:, 0] * scaled[:, 1])


def network_target(free: Tensor | None = None) -> NetworkDensity:
    dtype = torch.float64
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))
    network = sb.factorize(network, rank={"2": 2}, diagonal=True).to(dtype)
    model = sb.Model(
        network, sb.Categorical(), deterministic="0.bias",
        prior=sb.PerParameter({"*bias": sb.Normal(3.0), "*.B": sb.Laplace(0.4), "*": sb.ScaleMixture()}),
    )  # fmt: skip
    row = model.layout.flatten(network)
    rows = row + 0.3 * torch.randn(CHAINS, len(row), dtype=dtype)
    x, y = torch.randn(9, 2, dtype=dtype), torch.arange(9) % 3
    return NetworkDensity(model, (x, y), rows, free, temperature=1.5)


def function_and_start() -> tuple[Any, Tensor]:
    source = torch.Generator().manual_seed(0)
    return AutogradTarget(gaussian, 3), torch.randn(CHAINS, 3, generator=source, dtype=torch.float64)


def network_and_start(free: Tensor | None = None) -> tuple[Any, Tensor]:
    target = network_target(free=free)
    return target, target.start


TARGETS: dict[str, Callable[[], tuple[Any, Tensor]]] = {
    "function": function_and_start,
    "network": network_and_start,
    "some weights of a network": lambda: network_and_start(torch.tensor([7, 2, 12])),
}


def trajectories(target: Any, position: Tensor, block: int) -> list[tuple[Any, Tensor]]:
    source = torch.Generator().manual_seed(2)
    momentum = torch.randn(position.shape, generator=source, dtype=position.dtype)
    metric = DiagonalMetric(torch.rand(position.shape, generator=source, dtype=position.dtype) + 0.5)
    size = torch.tensor([0.01, 0.02, 0.005], dtype=torch.float64)
    steps = torch.tensor([7, 1, 5])
    start = evaluated(target, position)
    return [
        way(target, start, momentum, size, metric, steps)
        for way in (CompiledLeapfrog(block=block), Leapfrog())
    ]


def check(pair: list[tuple[Any, Tensor]], tolerance: float) -> None:
    (found, pushed), (right, plain) = pair
    for part, wanted in (
        (found.position, right.position), (found.gradient, right.gradient),
        (found.log_density, right.log_density), (pushed, plain),
    ):  # fmt: skip
        assert part.dtype == wanted.dtype
        assert part.is_contiguous()
        torch.testing.assert_close(part, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced block as it is: what would be compiled."""
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, arguments: graph)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("block", [1, 3, 5])
def test_the_traced_block_is_the_plain_integrator(name: str, block: int):
    check(trajectories(*TARGETS[name](), block), 1e-10)


def test_the_compiled_block_is_the_plain_integrator():
    torch.manual_seed(1)
    model = sb.Model(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), sb.Gaussian(noise=0.5))
    rows = torch.randn(CHAINS, model.layout.size)
    target = NetworkDensity(model, (torch.randn(9, 2), torch.randn(9)), rows)
    check(trajectories(target, target.start, 2), 1e-4)


def broken(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand much more")


def test_without_a_compiler_it_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "compile_graph", broken)
    target, position = TARGETS["function"]()
    with pytest.warns(UserWarning, match="has no effect here: InvalidCxxCompiler: No working") as seen:
        check(trajectories(target, position, 3), 0.0)
    assert len(seen) == 1
    assert "much more" not in str(seen[0].message)


@pytest.mark.usefixtures("traced_only")
def test_targets_without_a_form_to_compile_say_why(monkeypatch: pytest.MonkeyPatch):
    class Opaque:
        dimension = 3

        def __call__(self, position: Tensor) -> tuple[Tensor, Tensor]:
            return AutogradTarget(gaussian, 3)(position)

    position = torch.randn(CHAINS, 3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="Opaque has no form that can be compiled"):
        check(trajectories(Opaque(), position, 3), 0.0)
    model = sb.Model(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), sb.Categorical())
    data = (torch.randn(4, 2), torch.arange(4) % 2)
    target = NetworkDensity(model, data, model.layout.flatten(model.network).repeat(CHAINS, 1))
    with pytest.warns(UserWarning, match="not a chain of linear layers"):
        trajectories(target, target.start, 3)
    monkeypatch.setattr(network_density, "_SMALL", 10)
    target = network_target()
    with pytest.warns(UserWarning, match="3 chains on 9 rows are past 10 rows in all"):
        trajectories(target, target.start, 3)


@pytest.mark.usefixtures("traced_only")
def test_a_density_with_randomness_or_branches_is_refused():
    branching = AutogradTarget(lambda q: gaussian(q) * (1.0 if traced(q) else 2.0), 3)

    def traced(position: Tensor) -> bool:
        return type(position) is not Tensor or not position.is_leaf or bool(position.stride(0) == 1)

    with pytest.raises(ValueError, match=r"the compiled .* after one step is not the plain one"):
        trajectories(branching, torch.randn(CHAINS, 3, dtype=torch.float64), 2)


@pytest.mark.usefixtures("traced_only")
def test_a_chain_that_waits_or_is_lost_does_not_touch_the_others():
    target = AutogradTarget(lambda q: gaussian(q) + torch.log(3.0 - q[:, 0]), 3)  # nan from 3 on
    position = torch.randn(CHAINS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    start, momentum = evaluated(target, position), torch.ones(CHAINS, 3, dtype=torch.float64)
    momentum[1] = 1e6
    size, steps = torch.full((CHAINS,), 0.01, dtype=torch.float64), torch.tensor([4, 4, 2])
    metric = UnitMetric(torch.ones_like(position))
    found, pushed = CompiledLeapfrog(block=3)(target, start, momentum, size, metric, steps)
    right, plain = Leapfrog()(target, start, momentum, size, metric, steps)
    assert torch.isnan(right.log_density).tolist() == [False, True, False]
    for part, wanted in (
        (found.position, right.position),
        (found.log_density, right.log_density),
        (pushed, plain),
    ):
        torch.testing.assert_close(part, wanted, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_only_diagonal_masses_are_compiled():
    with pytest.raises(ValueError, match=r"needs DiagonalMass\(\) or UnitMass\(\)"):
        sb.HMC(compile=True, mass=LowRankMass(rank=2))


@pytest.mark.usefixtures("traced_only")
def test_hmc_draws_the_same_compiled():
    start = torch.zeros(CHAINS, 3, dtype=torch.float64)
    settings = {"step_size": 0.05, "warm_up": 0, "draws": 5, "mass": UnitMass()}
    plain, quick = (sb.sample(gaussian, start, sb.HMC(compile=way, **settings)) for way in (False, True))
    torch.testing.assert_close(quick.draws, plain.draws, rtol=1e-10, atol=1e-10)
