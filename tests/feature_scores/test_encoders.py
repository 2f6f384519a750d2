"""Where features come from: the last hidden layer found by watching, named parts, frozen encoders."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import StoredDraws
from singularbayes.feature_scores import Energy, Frozen, Inputs, Mahalanobis, NearestNeighbours, Penultimate
from singularbayes.feature_scores import encoders as encoders_module
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10.0, 0.1, 1.0])


class Backwards(nn.Module):
    """The head is declared first and called last; one layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.unused = nn.Linear(5, 3), nn.Linear(4, 5), nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.body(x))))


def test_the_last_linear_layer_that_is_called_is_found(monkeypatch):
    monkeypatch.setattr(encoders_module, "_ROWS", 7)  # several batches
    torch.manual_seed(0)
    network = Backwards()
    features = Penultimate(network)
    found = features(X)
    assert features.found == "head"
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), torch.tanh(network.body(X)))
    assert network.training  # the user's network keeps its mode; dropout was off


def test_a_factorised_head_is_found():
    network = sb.factorize(nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 8)), rank=2)
    features = Penultimate(network)
    torch.testing.assert_close(features(X).float(), network[:2](X))
    assert features.found == "2"


def test_a_named_part_gives_its_output():
    network = nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2))
    found = Penultimate(network, module="0")(X.unsqueeze(1))
    torch.testing.assert_close(found.float(), network[0](X.unsqueeze(1)).flatten(1))
    with pytest.raises(ValueError, match="no part 'layer4'; it has 0, 1, 2, 3"):
        Penultimate(network, module="layer4")


def test_a_posterior_is_taken_at_its_mean_and_left_alone():
    model = sb.Model(Backwards(), sb.Categorical())
    posterior = sb.MeanField(epochs=1).fit(model, (X, torch.randint(0, 3, (30,))))
    before = {name: tensor.clone() for name, tensor in posterior.network.state_dict().items()}
    network = model.copy_network().eval()
    with torch.no_grad():
        posterior.layout.write(network, posterior.distribution.mean)
    torch.testing.assert_close(Penultimate(posterior)(X).float(), torch.tanh(network.body(X)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in posterior.network.state_dict().items())


def test_the_mean_counts_and_not_what_the_posteriors_network_happens_to_hold():
    network = Backwards()
    layout = Layout.of(network)
    row = layout.flatten(network) + 1.0
    posterior = Posterior(network, StoredDraws(row.unsqueeze(0)), sb.Categorical(), layout, {})
    expected = torch.tanh(X @ (network.body.weight + 1).T + network.body.bias + 1)
    torch.testing.assert_close(Penultimate(posterior)(X).float(), expected)


def test_an_ensemble_has_no_mean_network_and_says_so():
    data = (X, torch.randint(0, 3, (30,)))
    posterior = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(
        sb.Model(Backwards(), sb.Categorical()), data
    )
    with pytest.raises(ValueError, match="separate networks"):
        Penultimate(posterior)
    Energy(posterior).score(X)
    Mahalanobis().fit(Frozen(Backwards()), data)


def test_mc_dropout_is_taken_without_dropout():
    data = (X, torch.randint(0, 3, (30,)))
    posterior = sb.MCDropout(epochs=1).fit(sb.Model(Backwards(), sb.Categorical()), data)
    features = Penultimate(posterior)
    assert torch.equal(features(X), features(X))
    assert features(X)[:, 0].abs().min() > 0


def test_a_frozen_encoder_is_a_copy_in_eval_mode_or_any_function():
    encoder = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    frozen = Frozen(encoder)
    torch.testing.assert_close(frozen(X).float(), encoder[0](X))
    assert encoder.training
    with torch.no_grad():
        encoder[0].weight.zero_()
    assert frozen(X).std() > 0.1
    assert torch.equal(Frozen(lambda x: x.numpy()[:, 0])(X), X[:, :1].double())
    with pytest.raises(ValueError, match="for 30 rows"):
        Frozen(lambda x: x.sum())(X)


def test_inputs_are_flattened_in_float64():
    assert torch.equal(Inputs()(np.ones((3, 2, 2), np.float32)), torch.ones(3, 4).double())
    with pytest.raises(TypeError, match="one tensor"):
        Inputs()({"a": X})


def test_what_is_not_finite_is_named():
    with pytest.raises(ValueError, match="features of row 2 are not finite"):
        Frozen(lambda x: x / torch.tensor([1.0, 1.0, 0.0]).unsqueeze(1))(torch.ones(3, 1))


def test_no_linear_layer_asks_for_a_name():
    with pytest.raises(ValueError, match="name the part"):
        Penultimate(nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten()))(X.unsqueeze(1))


def test_rows_that_are_not_the_first_axis_are_refused():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(30, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.T.expand(4, 30) if len(x) == 1 else x.T)[:1].expand(len(x), 2)

    with pytest.raises(ValueError, match="expected the rows first"):
        Penultimate(Turned())(X)


def test_fitted_scores_are_copied_and_pickled():
    fitted = NearestNeighbours(k=2).fit(Penultimate(Backwards()), X)
    for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert torch.equal(other.score(X), fitted.score(X))


def test_the_features_of_a_random_feature_head_are_its_input():
    """By its linear layers alone it would be the input of the first one: the data themselves."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    posterior = sb.SNGP(features=8, epochs=1).fit(sb.Model(net, sb.Categorical()), (x, (x[:, 0] > 0).long()))
    features = Penultimate(posterior)
    expected = posterior.network[:2](x)  # its weights are the mean's
    assert torch.allclose(features(x).float(), expected)
    assert features.found == "2"


@pytest.mark.usefixtures("unchecked")
def test_posteriors_of_several_networks_are_told_what_to_give():
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    data, model = (x, (x[:, 0] > 0).long()), sb.Model(nn.Linear(3, 2), sb.Categorical())
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model, data)
    with pytest.raises(ValueError, match=r"separate networks.*features are those of one network"):
        Mahalanobis().fit(ensemble, data)
    mixture = sb.Mixture(members=(ensemble, ensemble)).join()
    for fit in (lambda: Mahalanobis().fit(mixture, data), lambda: Energy(mixture)):
        with pytest.raises(TypeError, match=r"one of (its )?\.members"):
            fit()
