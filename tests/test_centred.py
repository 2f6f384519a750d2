"""The prior about a point of its own: densities, gradients and KLs as torch has them, in every method."""

import pytest
import torch
import torch.distributions as td
from torch import nn

import singularbayes as sb
from singularbayes import divergence
from singularbayes.divergence import Family
from singularbayes.methods import diagonal
from singularbayes.model import part_of

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
MEAN = torch.linspace(-3, 4, 6, dtype=torch.float64)
STD = torch.logspace(-2, 1, 6, dtype=torch.float64)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    full = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    return sb.factorize(full, rank={"2": 2})


def fitted() -> sb.Posterior:
    return sb.MAP(epochs=3).fit(sb.Model(network(), sb.Categorical()), (X, Y))


def test_density_and_score_are_torchs():
    prior, w = sb.Centred(MEAN, STD), torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    exact = td.Normal(MEAN, STD).log_prob(w)
    assert torch.allclose(prior.log_prob(w), exact)
    assert torch.allclose(prior.negative_score(w), -torch.autograd.grad(exact.sum(), w)[0])
    noise = torch.randn(2, 6, dtype=torch.float64)
    assert torch.allclose(prior.sample(noise, noise), MEAN + STD * noise)


@pytest.mark.parametrize("family", Family)
def test_the_closed_kl_and_its_gradient_are_those_about_the_point(family):
    prior = sb.Centred(MEAN, STD)
    mean = torch.randn(6, dtype=torch.float64, requires_grad=True)
    scale = torch.logspace(-1, 0.5, 6, dtype=torch.float64).requires_grad_()
    value = divergence.closed(family, prior, mean, scale)
    if family is Family.GAUSSIAN:
        assert torch.allclose(value, td.kl_divergence(td.Normal(mean, scale), td.Normal(MEAN, STD)))
    at_zero = divergence.closed(family, sb.Normal(1.0), (mean - MEAN) / STD, scale / STD)
    assert torch.allclose(value, at_zero)
    exact = torch.autograd.grad(value.sum(), (mean, scale))
    for found, expected in zip(
        divergence.closed_gradient(family, prior, mean.detach(), scale.detach()), exact, strict=True
    ):
        assert torch.allclose(found, expected)
    cross = divergence.cross_entropy(family, prior, mean, scale) - divergence.entropy(family, scale)
    assert torch.allclose(cross, value)


def test_a_part_has_its_own_numbers():
    prior = sb.Centred(MEAN, STD)
    assert torch.equal(prior.part(slice(2, 4)).mean, MEAN[2:4])
    assert torch.equal(prior.part(torch.tensor([5, 0])).std, STD[[5, 0]])
    assert part_of(sb.Normal(2.0), slice(0, 3)) == sb.Normal(2.0)


def test_mean_field_pulls_every_weight_to_its_own_point():
    # no likelihood to speak of: one point at a temperature of 1e4
    size = sb.Model(network(), sb.Categorical()).layout.belief
    prior = sb.Centred(torch.linspace(-1, 1, size), torch.linspace(0.05, 0.2, size))
    model = sb.Model(network(), sb.Categorical(), prior=prior)
    q = (
        sb.MeanField(epochs=1500, batch_size=60, learning_rate=0.01, temperature=1e4)
        .fit(model, (X, Y))
        .distribution
    )
    assert (q.mean[:size] - prior.mean).abs().max() < 0.02
    assert ((q.std[:size] / prior.std).log().abs()).max() < 0.1


def test_the_prior_of_every_stretch_and_chunk_is_its_own_part(monkeypatch):
    model = sb.Model(network(), sb.Categorical())
    size = model.layout.belief
    prior = sb.Centred(torch.linspace(-1, 1, size), torch.full((size,), 0.1))
    fits = []
    for chunk in (2**17, 7):
        monkeypatch.setattr(diagonal, "_CHUNK", chunk)
        fit = sb.MeanField(epochs=2).fit(sb.Model(network(), sb.Categorical(), prior=prior), (X, Y))
        fits.append(fit.distribution.mean)
    assert torch.allclose(*fits, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [sb.MAP(epochs=2), sb.StructuredVI(epochs=2), sb.HMC(chains=2, warm_up=60, draws=20)],
    ids=lambda m: type(m).__name__,
)
def test_other_methods_take_it(method):
    point = fitted()
    prior = sb.Centred.at(point, 0.1)
    model = sb.Model(network(), sb.Categorical(), prior=prior)
    assert torch.isfinite(method.fit(model, (X, Y)).predict(X, draws=2).mean).all()


@pytest.mark.parametrize(
    "method", [sb.IVON(), sb.LaplaceApproximation(), sb.AnchoredEnsemble()], ids=lambda m: type(m).__name__
)
def test_methods_that_need_a_normal_prior_say_so(method):
    with pytest.raises(ValueError, match="Normal"):
        method.fit(sb.Model(network(), sb.Categorical(), prior=sb.Centred.at(fitted(), 0.1)), (X, Y))


def test_it_knows_what_data_its_point_has_seen():
    prior = sb.Centred.at(fitted(), 0.1)
    assert prior.seen is not None
    assert prior.seen.shared(X, Y) == 60
    assert prior.seen.shared(X + 1, Y) == 0


def test_data_of_the_start_and_of_validation_were_seen_too():
    model, other = sb.Model(network(), sb.Categorical()), (X + 1, Y)
    again = sb.MAP(epochs=1).fit(model.started_at(fitted()), other, (X + 2, Y))
    seen = sb.Centred.at(again, 0.1).seen
    assert [seen.shared(X + shift, Y) for shift in range(4)] == [60, 60, 60, 0]


def test_of_a_loader_it_says_that_it_does_not_know_unless_told():
    batches = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    point = sb.MAP(epochs=1).fit(sb.Model(network(), sb.Categorical()), batches)
    assert sb.Centred.at(point, 0.1).seen is None
    assert sb.Centred.at(point, 0.1, data=(X, Y)).seen.shared(X, Y) == 60


def test_save_and_load_keep_all(tmp_path):
    prior = sb.Centred.at(fitted(), 0.1)
    prior.save(tmp_path)
    again = sb.Centred.load(tmp_path)
    assert again == prior
    assert again.seen == prior.seen
    with pytest.raises(FileNotFoundError):
        sb.Centred.load(tmp_path / "nothing")


@pytest.mark.usefixtures("unchecked")
def test_impossible_priors_are_refused():
    ones = torch.ones(3)
    for mean, std, message in [
        (ones, torch.ones(2), "needs a mean"),
        (ones, torch.zeros(3), "positive"),
        (ones / 0, ones, "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            sb.Centred(mean, std)
    with pytest.raises(ValueError, match="believes in"):
        sb.Model(network(), sb.Categorical(), prior=sb.Centred(ones, ones))
    with pytest.raises(ValueError, match="one for each"):
        sb.Centred.at(fitted(), torch.ones(4))
