"""Statistics follow the drawn weights: torch's update_bn as the oracle, and nothing else in train mode."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import update_bn

import singularbayes as sb
from singularbayes.data import as_source
from singularbayes.normalization import ShuffledPass, has_statistics, refreshed
from singularbayes.parameters import Layout

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(48, 4, generator=SOURCE) @ torch.randn(4, 4, generator=SOURCE) * torch.tensor([1, 10, 0.1, 1])
BATCHES = [(x, x) for x in X.split(12)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 5), nn.BatchNorm1d(5)
    )


def rows(layout: Layout, net: nn.Module, count: int = 3) -> Tensor:
    """Draws that share the network's statistics."""
    start = layout.flatten(net).repeat(count, 1)
    noise = torch.randn(count, layout.trained, generator=torch.Generator().manual_seed(1))
    start[:, : layout.trained] += noise
    return start


def by_torch(net: nn.Module, layout: Layout, row: Tensor) -> Tensor:
    """``update_bn`` with dropout taken out of the network."""
    own = copy.deepcopy(net)
    layout.write(own, row)
    for module in own.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    update_bn([x for x, _ in BATCHES], own)
    return layout.flatten(own)


def misses(net: nn.Module, layout: Layout, found: Tensor) -> float:
    """Largest gap to torch's own, relative to the size of each entry."""
    exact = torch.stack([by_torch(net, layout, row) for row in found])
    return ((found - exact).abs() / (exact.abs() + 1e-3)).max().item()


def test_statistics_are_those_that_torch_finds_for_the_drawn_weights():
    net = network()
    layout = Layout.of(net)
    start = rows(layout, net)
    assert misses(net, layout, refreshed(net, layout, start, BATCHES)) < 1e-4


def test_statistics_shared_by_all_draws_miss():
    net = network()
    layout = Layout.of(net)
    start = rows(layout, net)
    shared = start.clone()  # refreshed once, at the mean: seen in public code
    shared[:, layout.trained :] = refreshed(net, layout, start.mean(0, keepdim=True), BATCHES)[
        0, layout.trained :
    ]
    assert misses(net, layout, shared) > 0.5
    assert misses(net, layout, start) > 0.5  # not refreshed at all


def test_dropout_stays_off():
    net = network()
    layout = Layout.of(net)
    start = rows(layout, net)
    without = copy.deepcopy(net)
    without[3].p = 0.0
    found = refreshed(net, layout, start, BATCHES)
    assert torch.equal(found, refreshed(without, layout, start, BATCHES))
    with_dropout = copy.deepcopy(net).train()  # what train mode everywhere would give
    layout.write(with_dropout, start[0])
    update_bn([x for x, _ in BATCHES], with_dropout)
    assert not torch.allclose(found[0], layout.flatten(with_dropout), rtol=0.05)


def test_nothing_given_is_written_to():
    net = network().train()
    layout = Layout.of(net)
    start = rows(layout, net)
    before, state = start.clone(), copy.deepcopy(net.state_dict())
    found = refreshed(net, layout, start, BATCHES)
    assert torch.equal(start, before)
    assert torch.equal(found[:, : layout.trained], start[:, : layout.trained])
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert net.training
    assert net[1].training
    assert net[1].momentum == 0.1
    assert not net[1]._forward_pre_hooks


def test_batches_count_by_their_rows():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    layout = Layout.of(net)
    start = layout.flatten(net).unsqueeze(0)
    parts = X.split([30, 10, 8])
    found = refreshed(net, layout, start, [(x, x) for x in parts])[0]
    with torch.no_grad():
        hidden = [net[0](x) for x in parts]
    mean, var = layout.trained, layout.trained + 3
    assert torch.allclose(found[mean:var], torch.cat(hidden).mean(0), rtol=1e-4, atol=1e-5)
    weighted = sum(len(h) * h.var(0) for h in hidden) / 48
    assert torch.allclose(found[var:], weighted, rtol=1e-4)


def test_a_statistic_that_is_not_finite_does_not_outlive_the_pass():
    net = network()
    layout = Layout.of(net)
    start = rows(layout, net)
    clean = refreshed(net, layout, start, BATCHES)
    start[:, layout.trained :] = torch.nan
    assert torch.equal(refreshed(net, layout, start, BATCHES), clean)


class Resting(nn.Sequential):
    """A body that stays in eval mode."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


def test_a_body_that_stays_in_eval_mode_keeps_its_statistics():
    torch.manual_seed(0)
    body = Resting(nn.Linear(4, 6), nn.BatchNorm1d(6))
    body[1].running_mean += 2
    body.requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(6, 3), nn.BatchNorm1d(3))
    layout = Layout.of(net)
    start = layout.flatten(net).repeat(2, 1)
    found = refreshed(net, layout, start, BATCHES)
    slots = {slot.name: slice(slot.start, slot.stop) for slot in layout.of_kind("statistic")}
    assert torch.equal(found[:, slots["0.1.running_mean"]], start[:, slots["0.1.running_mean"]])
    assert not torch.equal(found[:, slots["2.running_mean"]], start[:, slots["2.running_mean"]])
    assert has_statistics(net, layout)
    head = nn.Sequential(body, nn.Linear(6, 3))
    own = Layout.of(head)
    assert own.of_kind("statistic")
    assert not has_statistics(head, own)
    row = own.flatten(head).unsqueeze(0)
    assert torch.equal(refreshed(head, own, row, []), row)


def test_instance_norm_and_the_librarys_own_layer_follow_too():
    torch.manual_seed(0)
    images = torch.randn(24, 2, 5, 5) * 3 + 1
    for net, x in (
        (nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, track_running_stats=True)), images),
        (nn.Sequential(sb.nn.DirectionalLinear(4, 3)), X),
    ):
        layout = Layout.of(net)
        start = layout.flatten(net).unsqueeze(0).repeat(2, 1)
        start[1, : layout.trained] *= 2
        found = refreshed(net, layout, start, [(part, part) for part in x.split(12)])
        # a whole batch in train mode with momentum 1, batch by batch, averaged by hand
        for row in found:
            states = []
            for part in x.split(12):
                own = copy.deepcopy(net).train()
                layout.write(own, row)
                own[-1].momentum = 1.0
                own(part)
                states.append(layout.flatten(own)[layout.trained :])
            assert torch.allclose(row[layout.trained :], torch.stack(states).mean(0), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found[0, layout.trained :], found[1, layout.trained :], rtol=0.2)


def test_spectral_norms_vectors_come_near_those_of_the_drawn_weight():
    torch.manual_seed(0)
    net = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 2))
    layout = Layout.of(net)
    start = rows(layout, net, 1)
    # 160 power iterations; without them the divisor is that of another matrix
    found = refreshed(net, layout, start, BATCHES * 40)
    own = copy.deepcopy(net).eval()
    with torch.no_grad():
        for row, near in ((found[0], True), (start[0], False)):
            layout.write(own, row)
            size = torch.linalg.matrix_norm(own[0].weight, 2)
            assert bool((size - 1).abs() < 1e-3) == near


def test_a_layer_used_twice_counts_all_its_inputs():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(self.first(x)) + 5)

    net = Twice()
    layout = Layout.of(net)
    found = refreshed(net, layout, layout.flatten(net).unsqueeze(0), BATCHES)
    assert misses(net, layout, found) < 1e-4


def test_batches_of_one_row_are_left_out_and_no_other_is_an_error():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    layout = Layout.of(net)
    start = layout.flatten(net).unsqueeze(0)
    one = (X[:1], X[:1])
    found = refreshed(net, layout, start, [one, *BATCHES, one])
    assert torch.equal(found, refreshed(net, layout, start, BATCHES))
    for batches in ([one], []):
        with pytest.raises(ValueError, match="at least 2 rows"):
            refreshed(net, layout, start, batches)


def test_a_pass_is_shuffled_and_the_same_each_time():
    order = torch.arange(40.0).unsqueeze(1)
    data = ShuffledPass(as_source((order, order.squeeze(1)), torch.float32, False), 10, 3)
    once, again = (torch.cat([y for _, y in data]) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, order.squeeze(1))
    assert torch.equal(once.sort().values, order.squeeze(1))
