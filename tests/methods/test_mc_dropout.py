"""MC dropout: the masks' law against closed forms; dropout alone is random."""

import math

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DropoutMasks, StoredDraws
from singularbayes.methods.mc_dropout import with_masks
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10.0, 0.1, 1.0])
Y = (X[:, 0] > 0).long()
METHOD = sb.MCDropout(epochs=2)


def masked(network: nn.Module, x: Tensor = X) -> Posterior:
    """The network as it is, with its dropout as drawn masks."""
    layout = Layout.of(network)
    atom = StoredDraws(layout.flatten(network).unsqueeze(0))
    return with_masks(Posterior(network, atom, sb.Gaussian(noise=1.0), layout, {}), x[:2])


def linear(p: float) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    layer = nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.2, 8.0, -2.0]]))
    x = torch.tensor([[1.0, 10.0, 0.1, 1.0], [-2.0, 3.0, 0.5, 0.0], [0.5, -4.0, 0.3, 2.0]])
    return nn.Sequential(nn.Dropout(p), layer), x


def misses(outputs: Tensor, network: nn.Module, x: Tensor, p: float) -> float:
    """Largest deviation of means, variances and the covariance from the closed form, in standard errors."""
    terms = x * network[1].weight.detach()
    mean, n = terms.sum(1) + network[1].bias.detach(), len(outputs)
    covariance = p / (1 - p) * terms @ terms.T
    centred = outputs.double() - mean
    by_mean = (centred.mean(0) / (covariance.diagonal() / n).sqrt()).abs().max().item()
    products = centred.unsqueeze(2) * centred.unsqueeze(1)
    error = products.std(0) / math.sqrt(n)
    return max(by_mean, ((products.mean(0) - covariance) / error).abs().max().item())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_one_linear_layer_has_the_closed_form_mean_and_covariance(p):
    network, x = linear(p)
    posterior = masked(network, x)
    outputs = posterior.functions(posterior.draw(8000), x).squeeze(-1)
    assert misses(outputs, linear(p)[0], x, p) < 4.5  # 12 statistics: false alarm below 1e-4


def spoilt(kind: str, posterior: Posterior) -> Tensor:
    draws = posterior.draw(8000)
    start = posterior.layout.of_kind("mask")[0].start
    masks = draws[:, start:]
    match kind:
        case "not rescaled":
            masks = masks * 0.5
        case "one mask for all features":
            masks = masks[:, :1].expand(-1, 4)
        case "kept with probability p":
            masks = (
                masks * 0 + (torch.rand(masks.shape, generator=torch.Generator().manual_seed(0)) < 0.4) / 0.5
            )
    return torch.cat([draws[:, :start], masks], 1)


@pytest.mark.parametrize("kind", ["not rescaled", "one mask for all features", "kept with probability p"])
def test_a_wrong_law_of_the_masks_misses_the_closed_form(kind):
    network, x = linear(0.5)
    posterior = masked(network, x)
    outputs = posterior.functions(spoilt(kind, posterior), x).squeeze(-1)
    assert misses(outputs, linear(0.5)[0], x, 0.5) > 8


def test_a_mask_is_one_for_all_inputs_so_a_draw_is_a_function():
    network, x = linear(0.5)
    posterior = masked(network, x)
    twice = torch.cat([x, x])
    outputs = posterior.functions(posterior.draw(20), twice)
    assert torch.allclose(outputs[:, :3], outputs[:, 3:])
    assert outputs.std(0).min() > 0


def test_each_input_has_the_law_of_torchs_own_dropout():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    x, n = X[:3], 4000
    posterior = masked(sb.Model(network, sb.Categorical()).copy_network(), x)
    ours = posterior.functions(posterior.draw(n), x).squeeze(-1)
    with torch.no_grad():
        theirs = torch.stack([network.train()(x).squeeze(-1) for _ in range(n)])
    for moment in (1, 2):
        one, two = (outputs.double() ** moment for outputs in (ours, theirs))
        error = ((one.var(0) + two.var(0)) / n).sqrt()
        assert ((one.mean(0) - two.mean(0)).abs() < 4.5 * error).all()


def test_batch_norm_is_in_eval_mode_and_untouched():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))
    model = sb.Model(network, sb.Categorical())
    posterior = METHOD.fit(model, (X, Y))
    point = sb.MAP(epochs=2).fit(model, (X, Y))
    before = {name: tensor.clone() for name, tensor in posterior.network.state_dict().items()}
    posterior.predict(X, draws=30)
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.network.state_dict().items())
    draws = posterior.draw(10)
    for slot in posterior.layout.of_kind("statistic"):
        assert (draws[:, slot.start : slot.stop] == draws[0, slot.start : slot.stop]).all()
        assert torch.equal(draws[0, slot.start : slot.stop], point.draw(1)[0, slot.start : slot.stop])
    assert not posterior.network.training


def test_at_the_mean_the_network_is_the_one_without_dropout():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))
    model = sb.Model(network, sb.Categorical())
    mean = METHOD.fit(model, (X, Y)).at_mean().predict(X).mean
    assert torch.allclose(mean, sb.MAP(epochs=2).fit(model, (X, Y)).predict(X).mean, atol=1e-6)


def test_one_dropout_module_at_two_places_of_a_chain_has_two_masks():
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)
    network = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), drop, nn.Linear(6, 6), nn.ReLU(), drop, nn.Linear(6, 2)
    )
    posterior = METHOD.fit(sb.Model(network, sb.Categorical()), (X, Y))
    masks = {
        slot.name: posterior.draw(50)[:, slot.start : slot.stop] for slot in posterior.layout.of_kind("mask")
    }
    assert sorted(masks) == ["2.mask", "5.mask"]
    assert not torch.equal(masks["2.mask"], masks["5.mask"])
    assert network[2] is network[5]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.first, self.second = nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.first(self.drop(x))))


def test_one_dropout_module_called_twice_is_refused():
    with pytest.raises(ValueError, match="dropout module drop is used at more than one place"):
        METHOD.fit(sb.Model(Twice(), sb.Categorical()), (X, Y))


@pytest.mark.parametrize("drop", [nn.Dropout1d(0.5), nn.Dropout(0.5)])
def test_channels_are_dropped_whole_where_torch_does(drop):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 1), drop, nn.Flatten(), nn.Linear(12, 2))
    posterior = METHOD.fit(sb.Model(network, sb.Categorical()), (X, Y))
    shape = posterior.layout.of_kind("mask")[0].shape
    assert shape == ((3, 1) if isinstance(drop, nn.Dropout1d) else (3, 4))
    assert posterior.predict(X, draws=20).epistemic.min() > 0


def test_a_network_without_dropout_is_refused():
    with pytest.raises(ValueError, match=r"needs a network with nn\.Dropout"):
        METHOD.fit(sb.Model(nn.Linear(4, 2), sb.Categorical()), (X, Y))
    with pytest.raises(ValueError, match=r"needs a network with nn\.Dropout"):
        METHOD.fit(sb.Model(nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 2)), sb.Categorical()), (X, Y))


def test_dropping_everything_is_refused():
    with pytest.raises(ValueError, match="p = 1 drops everything"):
        METHOD.fit(sb.Model(nn.Sequential(nn.Dropout(1.0), nn.Linear(4, 2)), sb.Categorical()), (X, Y))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


def test_dropout_inside_attention_is_named_and_the_rest_is_drawn():
    x = torch.randn(20, 3, 4)
    with pytest.warns(UserWarning, match=r"dropout inside layer\.self_attn"):
        posterior = METHOD.fit(sb.Model(Attention(), sb.Categorical()), (x, Y[:20]))
    names = {slot.name for slot in posterior.layout.of_kind("mask")}
    assert names == {"layer.dropout.mask", "layer.dropout1.mask", "layer.dropout2.mask"}
    assert posterior.predict(x, draws=10).epistemic.min() > 0


def test_a_saved_posterior_draws_the_same_masks(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    posterior = METHOD.fit(sb.Model(network, sb.Categorical()), (X, Y))
    posterior.save(tmp_path)
    loaded = sb.load(tmp_path, network)
    assert torch.equal(loaded.draw(5), posterior.draw(5))
    assert torch.equal(loaded.predict(X).log_probs, posterior.predict(X).log_probs)
    assert isinstance(loaded.distribution, DropoutMasks)
