"""A belief over recurrent factors: one draw for a whole sequence, a KL without the length, every method."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence

import singularbayes as sb
from singularbayes.functions import Way, way_for
from singularbayes.methods.learner import Bound
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.methods.training import _start
from singularbayes.nn import LowRankGRU, LowRankLSTM
from singularbayes.testing import check_method

STEPS, FEATURES, HIDDEN = 6, 3, 5


class LastStep(nn.Module):
    """``(B, T, F)`` in, the head on the last step's state out; with lengths, on each row's own last step."""

    def __init__(self, layer: nn.Module, outputs: int = 2) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(HIDDEN, outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return self.head(self.layer(x)[0][:, -1])
        packed = pack_padded_sequence(x, lengths.long().cpu(), batch_first=True, enforce_sorted=False)
        last = self.layer(packed)[1]
        return self.head((last[0] if isinstance(last, tuple) else last)[-1])


class AllSteps(nn.Module):
    """The first unit's state at every step, ``(B, T)``."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][..., 0]


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return make()


def network(kind=LowRankLSTM, **options) -> LastStep:
    return seeded(lambda: LastStep(kind(FEATURES, HIDDEN, 2, batch_first=True, **options)))


def stock(kind) -> LastStep:
    return seeded(lambda: LastStep(kind(FEATURES, HIDDEN, batch_first=True)))


def sequences(rows: int = 40) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    x = torch.randn(rows, STEPS, FEATURES, generator=source).cumsum(1) * torch.tensor([1.0, 5.0, 0.1])
    return x, (x[:, -1, 0] > x[:, 0, 0]).long()


def constant_gates(kind, named: dict[str, Tensor], x: Tensor, steps: int) -> Tensor:
    """States ``(B, steps)`` of unit 0: with ``W_hh = 0`` and a constant input no gate moves."""
    weight = named["layer.A_ih_l0"] @ named["layer.B_ih_l0"].T
    of_x, of_h = x @ weight.T + named["layer.bias_ih_l0"], named["layer.bias_hh_l0"]
    t = torch.arange(1, steps + 1)
    if kind is LowRankLSTM:
        i, f, g, o = ((of_x + of_h)[:, k * HIDDEN, None] for k in range(4))
        i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
        return o * torch.tanh(i * torch.tanh(g) * (1 - f**t) / (1 - f))  # c_t = f c_{t-1} + i g
    r, z = ((of_x + of_h)[:, k * HIDDEN, None].sigmoid() for k in range(2))
    n = torch.tanh(of_x[:, 2 * HIDDEN, None] + r * of_h[2 * HIDDEN])
    return n * (1 - z**t)  # h_t = (1 - z) n + z h_{t-1}


def redrawn_at_each_step(net: AllSteps, rows: list[dict[str, Tensor]], x: Tensor) -> Tensor:
    """Mutant: another draw of the weights at each time step, the state carried on."""
    outputs, state = [], None
    for t, row in enumerate(rows):
        own = {name.removeprefix("layer."): value for name, value in row.items()}
        step, state = functional_call(net.layer, own, (x[:, t : t + 1], state))
        outputs.append(step[:, 0, 0])
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("kind", [LowRankLSTM, LowRankGRU])
def test_a_draw_is_one_weight_at_every_step_of_a_sequence(kind):
    # methods.md 10: peers redraw the weights at each LSTM step.
    net = seeded(lambda: AllSteps(kind(FEATURES, HIDDEN, 2, batch_first=True, dtype=torch.float64)))
    for part in (net.layer.A_hh_l0, net.layer.B_hh_l0):
        part.requires_grad_(False)
    with torch.no_grad():
        net.layer.A_hh_l0.zero_()  # W_hh = 0
    x = sequences(12)[0][:, :1].expand(-1, STEPS, -1).double().contiguous()
    model = sb.Model(net, sb.Gaussian(noise=0.1))
    posterior = sb.MeanField(epochs=1, initial_std=0.5).fit(model, (x, torch.zeros(12, STEPS)))
    assert posterior.way is Way.LOOP
    draws = posterior.draw(STEPS, seed=1)
    outputs = posterior.functions(draws, x)
    rows = [posterior.layout.views(draw) for draw in draws]
    for output, row in zip(outputs, rows, strict=True):
        torch.testing.assert_close(output, constant_gates(kind, row, x[:, 0], STEPS), rtol=0, atol=1e-12)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-2  # draws do differ
    mutant = redrawn_at_each_step(net, rows, x)
    gaps = [(mutant - constant_gates(kind, row, x[:, 0], STEPS)).abs().max().item() for row in rows]
    assert min(gaps) > 1e-2
    same = redrawn_at_each_step(
        net, rows[:1] * STEPS, x
    )  # the mutant with one draw is right: the gap is its redraws
    torch.testing.assert_close(same, outputs[0], rtol=0, atol=1e-12)


def test_the_kl_does_not_know_the_length_of_the_sequences():
    # Peers whose layer adds its KL at each step have ten times the KL at 50 steps that they have at 5.
    values = []
    for steps in (5, 50):
        net = seeded(
            lambda: LastStep(LowRankLSTM(FEATURES, HIDDEN, 2, batch_first=True, dtype=torch.float64)).double()
        )
        model = sb.Model(net, sb.Categorical(), prior=sb.ScaleMixture())
        build, cpu = BuildMeanField(sb.MeanField(epochs=1)), torch.device("cpu")
        start, gradient = _start(model, cpu), torch.zeros(build.size(model), dtype=torch.float64)
        bound = Bound(model, cpu, gradient, start)
        learner = build(bound, start, gradient)
        learner.draw(torch.Generator().manual_seed(0))
        before = learner.regulariser()
        bound.network(torch.ones(4, steps, FEATURES, dtype=torch.float64)).sum().backward()
        assert learner.regulariser() == before
        gradient.zero_()
        learner.finish(1.0, 1.0)  # the KL's gradient alone
        values.append((before, gradient.clone()))
    assert values[0][0] == values[1][0] > 0
    assert torch.equal(values[0][1], values[1][1])


@pytest.mark.parametrize(
    ("method", "make"),
    [
        (sb.MeanField(epochs=2), lambda: network(num_layers=2, diagonal=True)),
        (sb.MeanField(epochs=1), lambda: network(LowRankGRU)),
        (sb.MAP(epochs=1), network),
        (sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)), network),
        (sb.MeanField(epochs=1), lambda: stock(nn.LSTM)),
    ],
    ids=["lstm", "gru", "map", "ensemble", "stock"],
)
def test_the_contract_of_methods_holds_on_recurrent_networks(method, make):
    check_method(method, network=make(), likelihood=sb.Categorical(), data=sequences())


@pytest.mark.filterwarnings("ignore:.*saves no parameters")
@pytest.mark.parametrize("kind", [LowRankLSTM, LowRankGRU])
def test_draws_are_a_loop_and_equal_the_stock_layers_with_the_drawn_weights(kind):
    # Trap 21: vmap over a fused recurrent kernel raises, or falls back with one draw's weights for all.
    net = network(kind)
    assert way_for(net) is Way.LOOP
    x, y = sequences()
    posterior = sb.MeanField(epochs=1).fit(sb.Model(net, sb.Categorical()), (x, y))
    draws = posterior.draw(4)
    outputs = posterior.functions(draws, x)
    for draw, output in zip(draws, outputs, strict=True):
        net.load_state_dict(posterior.layout.views(draw), strict=False)
        expected = net.head(net.layer.to_layer()(x)[0][:, -1])
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4


@pytest.mark.parametrize(
    "make", [network, lambda: network(LowRankGRU, bidirectional=False), lambda: stock(nn.LSTM)]
)
def test_sequences_of_several_lengths_packed_inside_forward(make):
    x, y = sequences(30)
    lengths = torch.arange(30) % STEPS + 1
    posterior = sb.MeanField(epochs=1).fit(sb.Model(make(), sb.Categorical()), ((x, lengths), y))
    draws = posterior.draw(3)
    together = posterior.functions(draws, (x, lengths))
    for row in range(0, 30, 7):  # each as if alone, cut to its length
        alone = posterior.functions(draws, x[row : row + 1, : lengths[row]])
        torch.testing.assert_close(together[:, row], alone[:, 0], rtol=1e-5, atol=1e-5)
    assert posterior.predict((x, lengths), draws=3).mean.shape == (30, 2)


def test_a_forgotten_batch_first_is_found_before_training():
    net = seeded(lambda: LastStep(LowRankLSTM(FEATURES, HIDDEN, 2)))  # reads (B, T, F) as (T, B, F)
    with pytest.raises(ValueError, match="batch_first=True"):
        sb.MAP(epochs=1).fit(sb.Model(net, sb.Categorical()), sequences())


def test_dropout_inside_a_layer_is_named_by_mc_dropout():
    net = nn.Sequential()
    net.layer = network(num_layers=2, dropout=0.2)
    net.drop, net.head = nn.Dropout(0.1), nn.Linear(2, 2)
    with pytest.warns(UserWarning, match=r"dropout inside layer\.layer is used in training but is off"):
        sb.MCDropout(epochs=1).fit(sb.Model(net, sb.Categorical()), sequences())
