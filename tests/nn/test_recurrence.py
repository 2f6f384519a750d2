"""The recurrence written out step by step from single products, slow and plain, in float64."""

import itertools

import pytest
import torch
from torch import Tensor

from singularbayes.nn import LowRankGRU, LowRankLSTM


def weight(layer, place: str) -> Tensor:
    """The sum of the components of one matrix, one outer product at a time."""
    a, b, s = (getattr(layer, f"{kind}_{place}").detach() for kind in ("A", "B", "s"))
    return sum(s[k] * torch.outer(a[:, k], b[:, k]) for k in range(len(s)))


def bias(layer, place: str) -> Tensor:
    if not layer.bias:
        return torch.zeros(layer.gates * layer.hidden_size).double()
    return getattr(layer, f"bias_{place}").detach()


def lstm_step(w_ih, w_hh, b_ih, b_hh, x, h, c, order="ifgo"):
    gates = w_ih @ x + b_ih + w_hh @ h + b_hh
    size = len(h)
    part = {name: gates[k * size : (k + 1) * size] for k, name in enumerate(order)}
    i, f, o = (torch.sigmoid(part[name]) for name in "ifo")
    c = f * c + i * torch.tanh(part["g"])
    return o * torch.tanh(c), c


def gru_step(w_ih, w_hh, b_ih, b_hh, x, h, c, order="rzn"):
    size = len(h)
    of_x, of_h = w_ih @ x + b_ih, w_hh @ h + b_hh
    place = {name: slice(k * size, (k + 1) * size) for k, name in enumerate(order)}
    r, z = (torch.sigmoid(of_x[place[name]] + of_h[place[name]]) for name in "rz")
    n = torch.tanh(of_x[place["n"]] + r * of_h[place["n"]])
    return (1 - z) * n + z * h, c


def run(layer, x: Tensor, h0: Tensor, c0: Tensor, *, directions=("", "_reverse"), order=None):
    """Outputs ``(T, B, directions * H)`` and last states of ``x (T, B, F)``, eval mode."""
    step = lstm_step if layer.gates == 4 else gru_step
    order = order or ("ifgo" if layer.gates == 4 else "rzn")
    count = 2 if layer.bidirectional else 1
    last_h, last_c = torch.zeros_like(h0), torch.zeros_like(c0)
    for number in range(layer.num_layers):
        outputs = torch.zeros(len(x), x.shape[1], count, layer.hidden_size).double()
        for direction in range(count):
            suffix = f"l{number}{directions[direction]}"
            matrices = [weight(layer, f"ih_{suffix}"), weight(layer, f"hh_{suffix}")]
            biases = [bias(layer, f"ih_{suffix}"), bias(layer, f"hh_{suffix}")]
            for row in range(x.shape[1]):
                place = number * count + direction
                h, c = h0[place, row], c0[place, row]
                times = range(len(x)) if direction == 0 else reversed(range(len(x)))
                for t in times:
                    h, c = step(*matrices, *biases, x[t, row], h, c, order)
                    outputs[t, row, direction] = h
                last_h[place, row], last_c[place, row] = h, c
        x = outputs.flatten(2)
    return x, last_h, last_c


@pytest.mark.parametrize("kind", [LowRankLSTM, LowRankGRU])
@pytest.mark.parametrize(
    "options", list(itertools.product((1, 2), (True, False), (False, True), (False, True)))
)
def test_forward_is_the_recurrence_written_out(kind, options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer = kind(7, 5, 3, *options[:3], 0.0, options[3], dtype=torch.float64, diagonal=True)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.normal_()
                if name.startswith("A"):  # badly scaled
                    parameter.mul_(torch.logspace(-1, 0, len(parameter)).double()[:, None])
        steps = torch.randn(6, 4, 7).double() * torch.logspace(-2, 1, 7)
        h0, c0 = torch.randn(2, layer.num_layers * (1 + layer.bidirectional), 4, 5).double()
    lstm, turn = kind is LowRankLSTM, (0, 1) if layer.batch_first else (0, 0)
    output, last = layer(steps.transpose(*turn), (h0, c0) if lstm else h0)

    def off(**changes) -> float:
        target, last_h, last_c = run(layer, steps, h0, c0, **changes)
        pairs = [(output.transpose(*turn), target), (last[0] if lstm else last, last_h)]
        pairs += [(last[1], last_c)] if lstm else []
        return max((a - b).abs().max().item() for a, b in pairs)

    assert off() < 1e-12
    assert off(order="figo" if lstm else "zrn") > 1e-3  # mutant: gates in another order
    if layer.bidirectional:
        assert off(directions=("_reverse", "")) > 1e-3  # mutant: the directions' factors swapped
