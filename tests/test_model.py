"""A model: what is believed about, under which prior; the user's network stays as it is."""

import copy
import pickle

import pytest
import torch
from torch import nn

import singularbayes as sb
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def test_the_log_prior_is_the_sum_over_believed_entries_alone():
    prior = PerParameter({"0.weight": Laplace(0.3), "*.bias": Normal(5.0), "*": ScaleMixture(pi=0.25)})
    model = sb.Model(mlp(torch.float64), sb.Categorical(), prior=prior, deterministic="2.bias")
    w = torch.randn(5, model.layout.size, dtype=torch.float64)
    views = model.layout.views(w)
    expected = (
        torch.distributions.Laplace(0.0, 0.3).log_prob(views["0.weight"]).flatten(1).sum(1)
        + torch.distributions.Normal(0.0, 5.0).log_prob(views["0.bias"]).sum(1)
        + ScaleMixture(pi=0.25).log_prob(views["2.weight"]).flatten(1).sum(1)
    )
    assert torch.allclose(model.log_prior(w), expected, rtol=0, atol=1e-6)


def test_neighbours_of_one_prior_are_one_block():
    model = sb.Model(mlp(), sb.Categorical(), prior=PerParameter({"0.*": Normal(2.0), "*": Normal(1.0)}))
    assert model.prior_blocks == ((slice(0, 16), Normal(2.0)), (slice(16, 26), Normal(1.0)))
    assert len(sb.Model(mlp(), sb.Categorical()).prior_blocks) == 1


def test_the_first_pattern_that_matches_counts():
    model = sb.Model(mlp(), sb.Categorical(), prior=PerParameter({"0.weight": Normal(3.0), "*": Normal(1.0)}))
    assert model.prior_blocks[0][1] == Normal(3.0)


@pytest.mark.parametrize("order", [["0.*", "*", "typo*"], ["typo*", "*", "0.*"]])
def test_a_prior_pattern_that_matches_nothing_is_refused_wherever_it_stands(order):
    with pytest.raises(ValueError, match=r"prior pattern 'typo\*' matches no parameter"):
        sb.Model(mlp(), sb.Categorical(), prior=PerParameter(dict.fromkeys(order, Normal())))


def test_a_parameter_without_prior_is_named():
    with pytest.raises(ValueError, match=r"no prior for parameter 2\.weight"):
        sb.Model(mlp(), sb.Categorical(), prior=PerParameter({"0.*": Normal()}))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prior", [Normal, sb.Categorical(), 1.0])
def test_a_prior_that_is_none_is_refused(prior):
    with pytest.raises(TypeError, match="prior must be"):
        sb.Model(mlp(), sb.Categorical(), prior=prior)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("likelihood", [sb.Categorical, "categorical", None])
def test_a_likelihood_that_is_none_is_refused(likelihood):
    with pytest.raises(TypeError, match="likelihood must be an object"):
        sb.Model(mlp(), likelihood)


def test_dtype_and_learned_numbers_follow_the_network():
    model = sb.Model(mlp(torch.float64), sb.Gaussian())
    assert model.dtype == torch.float64
    assert model.layout.flatten(model.network, model.likelihood.parameters).dtype == torch.float64
    assert model.layout.of_kind("likelihood")[0].name == "likelihood.log_noise"


def test_an_input_that_does_not_fit_is_told_with_its_shape():
    model = sb.Model(mlp(), sb.Categorical())
    with pytest.raises(ValueError, match=r"the network failed on inputs of shape \(5, 7\)"):
        model.outputs(model.network, torch.zeros(5, 7))
    words = sb.Model(nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)), sb.Categorical())
    assert words.takes_integers
    with pytest.raises(ValueError, match="the network failed on inputs of shape"):
        words.outputs(words.network, torch.full((2, 2), 9))


def test_a_network_that_keeps_activations_is_refused_when_it_is_copied():
    network = mlp()
    network.kept = network(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="cannot be copied"):
        sb.Model(network, sb.Categorical()).copy_network()


def test_a_model_can_be_copied_and_pickled_after_a_backward_pass():
    network = mlp()
    network(torch.zeros(2, 3)).sum().backward()
    model = sb.Model(network, sb.Gaussian(), prior=PerParameter({"*": ScaleMixture()}))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.layout == model.layout
        assert other.prior_blocks == model.prior_blocks


def test_trainable_parameters_that_no_pattern_matches_are_named_beside_frozen_ones():
    body, head = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)
    adapter = nn.Linear(4, 4)
    network = nn.Sequential(body, adapter, head)
    with pytest.warns(UserWarning, match=r"2\.weight, 2\.bias can be trained .* no pattern of bayesian="):
        sb.Model(network, sb.Categorical(), bayesian="1.*")
    sb.Model(
        network, sb.Categorical(), bayesian=["1.*", "2.*"], deterministic="2.*"
    )  # no warning: an error here
    sb.Model(
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), sb.Categorical(), bayesian="1.*"
    )  # nobody froze


def test_a_model_says_what_is_believed():
    text = repr(sb.Model(nn.Linear(3, 2), sb.Categorical(), deterministic="bias"))
    assert text.startswith("Model(Linear, Categorical(")
    assert text.endswith("6 of 8 numbers believed, 2 point estimates)")


def test_a_model_starts_at_a_fitted_posterior_with_its_learned_noise() -> None:
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 1))
    model = sb.Model(network, sb.Gaussian())
    posterior = sb.MCDropout(epochs=3, learning_rate=0.05).fit(model, (x, 2 * x))
    started = model.started_at(posterior)
    row = started.layout.flatten(started.network, started.likelihood.parameters)
    assert torch.allclose(row, posterior.distribution.mean[: len(row)])
    assert not torch.allclose(row, model.layout.flatten(network, model.likelihood.parameters))


def test_a_model_does_not_start_at_another_networks_posterior() -> None:
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    posterior = sb.MAP(epochs=1).fit(sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.1)), (x, x))
    with pytest.raises(ValueError, match=r"not this model's \(first: 0.bias\)"):
        sb.Model(nn.Sequential(nn.Linear(1, 1)), sb.Gaussian(noise=0.1)).started_at(posterior)
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1))
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.1))
    with pytest.raises(ValueError, match="separate networks"):
        model.started_at(ensemble.fit(model, (x, x)))


def test_no_model_starts_at_an_ensemble():
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=0.5))
    ensemble = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model, (x, x))
    with pytest.raises(ValueError, match=r"a model starts at one network.*DeepEnsemble\(member=Pretrained"):
        model.started_at(ensemble)
