"""Rank-one VI: the step against autograd, the optimum against the conjugate posterior, their mutants."""

import math

import pytest
import torch
import torch.distributions as td
from torch import Tensor, nn

import singularbayes as sb
from singularbayes import KL
from singularbayes.distributions import DiagonalGaussian, MixtureDistribution, StoredDraws
from singularbayes.methods.learner import Bound
from singularbayes.methods.rank_one import BuildRankOne, RankOneLearner, restricted
from singularbayes.nn import RankOneLinear, rank_one
from singularbayes.testing import check_method


def network(dtype=torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)
        return rank_one(nn.Sequential(*layers), ["0", "2"]).to(dtype)


def learner_of(method: sb.RankOne, model: sb.Model, seed: int = 0) -> RankOneLearner:
    start = model.layout.flatten(model.network, model.likelihood.parameters)
    build = BuildRankOne(method, seed)
    gradient = torch.zeros(build.size(model), dtype=start.dtype)
    return build(Bound(model, torch.device("cpu"), gradient, start), start, gradient)


# What is believed, what is trained, what stays


def test_the_papers_network_has_23257_numbers():
    layers = nn.Linear(44, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    net = rank_one(nn.Sequential(*layers), ["0", "2"])
    x, y = torch.randn(8, 44), torch.arange(8) % 2
    model = sb.Model(net, sb.Bernoulli(), prior=sb.ScaleMixture())
    posterior = sb.RankOne(epochs=1).fit(model, (x, y))
    assert posterior.info["numbers"] == 23_257  # 22,401 + twice the 428 entries of s and t
    assert posterior.layout.belief == 428
    assert (
        sb.RankOne(epochs=1, components=4).fit(model, (x, y)).info["numbers"] == 22_401 - 428 + 8 * 428 + 428
    )
    frozen = sb.Model(net, sb.Bernoulli(), bayesian=["*.s", "*.t"])
    assert sb.RankOne(epochs=1).fit(frozen, (x, y)).info["numbers"] == 856


def test_the_belief_is_about_s_and_t_alone_whatever_the_model_said():
    own = restricted(sb.Model(network(), sb.Categorical()))
    assert [s.name for s in own.layout.of_kind("belief")] == ["0.s", "0.t", "2.s", "2.t"]
    points = {s.name for s in own.layout.of_kind("point")}
    assert points == {"0.weight0", "0.bias", "2.weight0", "2.bias", "4.weight", "4.bias"}
    half = restricted(sb.Model(network(), sb.Categorical(), deterministic="*.t"))
    assert [s.name for s in half.layout.of_kind("belief")] == ["0.s", "2.s"]
    assert {"0.t", "2.t"} < {s.name for s in half.layout.of_kind("point")}
    priors = sb.PerParameter({"*.s": sb.Normal(0.1), "*.t": sb.ScaleMixture()})
    points = ["*weight*", "*bias"]
    own = restricted(sb.Model(network(), sb.Categorical(), prior=priors, deterministic=points))
    kinds = {s.name: prior for b, prior in own.prior_blocks for s in own.layout.slots if s.start == b.start}
    assert kinds["0.s"] == kinds["2.s"] == sb.Normal(0.1)
    assert kinds["0.t"] == kinds["2.t"] == sb.ScaleMixture()


def test_the_base_weight_is_trained_as_a_point_or_left_bitwise_alone():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    start = network().state_dict()
    for choice, moves in (({}, True), ({"bayesian": ["*.s", "*.t"]}, False)):
        posterior = sb.RankOne(epochs=3).fit(sb.Model(network(), sb.Categorical(), **choice), (x, y))
        for name, tensor in posterior.network.state_dict().items():
            if not name.endswith((".s", ".t")):
                assert torch.equal(tensor, start[name]) is not moves, name
        assert not torch.equal(posterior.network.state_dict()["0.s"], start["0.s"])
        views = posterior.layout.views(posterior.draw(3))
        for name, draws in views.items():
            varies = not torch.equal(draws[0], draws[1])
            assert varies is name.endswith((".s", ".t")), name


def test_a_network_without_rank_one_layers_is_refused_with_the_way_to_convert_it():
    for net in (nn.Linear(3, 2), nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.BatchNorm1d(2))):
        with pytest.raises(ValueError, match=r"sb\.nn\.rank_one\(network.*Convolution, recurrent"):
            sb.RankOne().fit(sb.Model(net, sb.Categorical()), None)
    with pytest.raises(ValueError, match="needs RankOneLinear layers with a belief"):
        sb.RankOne().fit(sb.Model(network(), sb.Categorical(), bayesian="4.*"), None)


def test_a_prior_on_the_base_weight_is_refused_and_not_ignored():
    prior = sb.PerParameter({"*weight*": sb.Normal(0.5), "*": sb.Normal(0.1)})
    with pytest.raises(ValueError, match=r"prior pattern '\*weight\*' matches no parameter"):
        sb.RankOne().fit(sb.Model(network(), sb.Categorical(), prior=prior), None)


# The gradient of the whole step

MIXTURE = sb.ScaleMixture(pi=0.3, std1=0.8, std2=0.1)
STEPS = {
    "normal": (sb.Normal(0.1), {}),
    "laplace": (sb.Laplace(0.4), {}),
    "mixture": (MIXTURE, {}),
    "mixture bound": (MIXTURE, {"kl": KL.BOUND}),
    "three components": (sb.Normal(0.1), {"components": 3}),
    "three components, mixture": (MIXTURE, {"components": 3}),
    "an example each": (sb.Normal(0.1), {"per_example": True}),
    "an example each, of three": (MIXTURE, {"per_example": True, "components": 3}),
    "points": (MIXTURE, {"initial_std": 0, "components": 3}),
    "points, an example each": (MIXTURE, {"initial_std": 0, "components": 3, "per_example": True}),
}


def log_prior(prior, w: Tensor) -> Tensor:
    match prior:
        case sb.Normal():
            return td.Normal(0.0, prior.std).log_prob(w)
        case sb.Laplace():
            return td.Laplace(0.0, prior.scale).log_prob(w)
    mixing = td.Categorical(probs=w.new_tensor([prior.pi, 1 - prior.pi]))
    return td.MixtureSameFamily(
        mixing, td.Normal(w.new_zeros(2), w.new_tensor([prior.std1, prior.std2]))
    ).log_prob(w)


def kl_of(prior, kl, mean: Tensor, sigma: Tensor, w: Tensor) -> Tensor:
    q = td.Normal(mean, sigma)
    if isinstance(prior, sb.Normal):
        return td.kl_divergence(q, td.Normal(torch.zeros_like(mean), prior.std)).sum()
    if isinstance(
        prior, sb.Laplace
    ):  # E log p by quadrature is not needed: closed in torch the other way round
        ratio = mean / sigma
        absolute = sigma * math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2) + mean * torch.erf(
            ratio / math.sqrt(2)
        )
        return (absolute / prior.scale + math.log(2 * prior.scale) - q.entropy()).sum()
    if kl is KL.BOUND:
        parts = [math.log(p) - td.kl_divergence(q, td.Normal(torch.zeros_like(mean), std))
                 for p, std in ((prior.pi, prior.std1), (1 - prior.pi, prior.std2))]  # fmt: skip
        return -torch.logsumexp(torch.stack(parts), 0).sum()
    return (q.log_prob(w) - log_prior(prior, w)).sum()


@pytest.mark.parametrize("name", STEPS)
def test_the_step_is_autograds_gradient_of_the_objective(name):
    prior, settings = STEPS[name]
    model = restricted(sb.Model(network(torch.float64), sb.Categorical(), prior=prior))
    method = sb.RankOne(**settings)
    learner, layout = learner_of(method, model), model.layout
    torch.manual_seed(8)
    learner.vector.add_(0.2 * torch.randn_like(learner.vector))
    x, y, weight = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3, 0.37
    learner.draw(torch.Generator().manual_seed(2))
    learner.gradient.zero_()
    model.likelihood.loss(learner.bound.network(x), y, {}).backward()
    learner.finish(weight, 1.0)

    vector = learner.vector.detach().clone().requires_grad_()
    b, trained, count = layout.belief, layout.trained, method.components
    means = [vector[:b], *vector[trained : trained + (count - 1) * b].view(count - 1, b)]
    points = method.initial_std == 0
    rho = vector[trained + (count - 1) * b :]
    sigmas = torch.zeros(count, b, dtype=rho.dtype) if points else nn.functional.softplus(rho.view(count, b))
    assert len(rho) == (0 if points else count * b)

    def output(w: Tensor, rows: Tensor) -> Tensor:
        row = torch.cat([w, vector[b:trained]])
        return torch.func.functional_call(network(torch.float64), layout.views(row), (rows,))

    if method.per_example:
        examples, outputs = learner.examples, []
        for i, k in enumerate(examples._component.tolist()):
            noise = torch.zeros(b, dtype=torch.float64)
            for slot in layout.of_kind("belief"):
                part = slice(slot.start, slot.stop)
                drawn = examples._drawn[slot.name][i].detach()
                noise[part] = 0 if points else ((drawn - means[k][part]) / sigmas[k][part]).detach()
            outputs.append(output(means[k] + sigmas[k] * noise, x[i : i + 1]))
        outputs, active = torch.cat(outputs), range(count)
        assert len(set(examples._component.tolist())) == count
    else:
        (k,) = active = learner.active
        outputs = output(means[k] + sigmas[k] * learner.noise[k], x)
    loss = model.likelihood.loss(outputs, y, {})
    for k in () if points else active:
        w = means[k] + sigmas[k] * learner.noise[k]
        loss = loss + weight / len(active) * kl_of(prior, method.estimator(prior), means[k], sigmas[k], w)
    (expected,) = torch.autograd.grad(loss, vector)
    torch.testing.assert_close(learner.gradient, expected, rtol=0, atol=1e-11)
    assert expected[b:trained].abs().min() > 0  # the points' gradient has no prior in it


def test_examples_of_a_batch_have_draws_of_their_own_and_a_batch_one_draw_without():
    model = restricted(sb.Model(network(), sb.Categorical()))
    x = torch.randn(1, 4).expand(6, 4)
    for per_example in (True, False):
        learner = learner_of(sb.RankOne(per_example=per_example, initial_std=0.5), model)
        learner.draw(torch.Generator().manual_seed(0))
        outputs = learner.bound.network(x).detach()
        assert torch.allclose(outputs[0], outputs[1], atol=1e-5) is not per_example
        learner.bound.network.eval()  # outside of training a draw is one function in any case
        outputs = learner.bound.network(x).detach()
        torch.testing.assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize("per_example", [False, True])
def test_a_step_draws_every_entry_by_itself(per_example):
    # methods.md 10: one noise vector shared by all output rows is an error of the field
    model = restricted(sb.Model(network(), sb.Categorical()))
    learner = learner_of(sb.RankOne(per_example=per_example, components=2), model)
    learner.draw(torch.Generator().manual_seed(0))
    for k in learner.active:
        assert len(learner.noise[k].unique()) == model.layout.belief
    if per_example:
        learner.bound.network(torch.randn(5, 4))
        for slot in model.layout.of_kind("belief"):
            assert len(learner.examples._drawn[slot.name].unique()) == 5 * slot.size


def test_draws_for_each_example_estimate_the_same_gradient_with_less_noise():
    model = restricted(sb.Model(network(torch.float64), sb.Categorical(), prior=sb.Normal(0.1)))
    x, y = torch.randn(64, 4, dtype=torch.float64), torch.arange(64) % 3
    gradients = []
    for per_example in (False, True):
        learner = learner_of(
            sb.RankOne(per_example=per_example, components=2, spread=0.1, initial_std=0.3), model
        )
        noise, found = torch.Generator().manual_seed(1), []
        for _ in range(200):
            learner.draw(noise)
            learner.gradient.zero_()
            model.likelihood.loss(learner.bound.network(x), y, {}).backward()
            learner.finish(0.01, 1.0)
            found.append(learner.gradient.clone())
        gradients.append(torch.stack(found))
    batch, example = gradients
    gap = (batch.mean(0) - example.mean(0)) / ((batch.var(0) + example.var(0)) / 200).sqrt()
    assert gap.abs().max() < 4.5  # 163 entries: false alarm 1e-3 at 4.5 standard errors
    assert example.var(0).sum() < 0.2 * batch.var(0).sum()
    rest = slice(model.layout.belief, model.layout.trained)
    halved = (batch.mean(0) / 2 - example.mean(0)) / ((batch.var(0) + example.var(0)) / 200).sqrt()
    assert halved[rest].abs().max() > 4.5  # mutant: shared weights' gradient divided by K


# The optimum: linear and Gaussian in s, and in t


def outputs_problem() -> tuple[nn.Module, Tensor, Tensor]:
    """Two outputs that are nearly the same function, of different scale: rows that share s would show."""
    torch.manual_seed(1)
    layer = RankOneLinear(2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight0.copy_(torch.tensor([[1.0, 0.5], [3.0, 1.4]]))
        layer.bias.copy_(torch.tensor([0.3, -0.2]))
    x = torch.randn(12, 2, dtype=torch.float64) @ torch.tensor([[1.0, 0.9], [0.0, 0.3]], dtype=torch.float64)
    y = x @ layer.weight0.T * torch.tensor([1.4, 0.7]) + layer.bias + 0.5 * torch.randn(12, 2).double()
    return layer, x, y.detach()


def conjugate(design: Tensor, target: Tensor, noise: float, prior: float) -> tuple[Tensor, Tensor]:
    """Posterior mean and precision of a linear regression ``target = design v + noise``."""
    precision = design.T @ design / noise**2 + torch.eye(design.shape[1], dtype=design.dtype) / prior**2
    return torch.linalg.solve(precision, design.T @ target / noise**2), precision


def trained(method: sb.RankOne, model: sb.Model, x: Tensor, y: Tensor, steps: int) -> RankOneLearner:
    """Full-batch steps without the loop around them, then the average of the last half of the path."""
    learner = learner_of(method, restricted(model))
    optimizer, noise = learner.optimizer(0.03), torch.Generator().manual_seed(0)
    learner.vector.grad, average = learner.gradient, torch.zeros_like(learner.vector)
    for step in range(steps):
        learner.draw(noise)
        learner.gradient.zero_()
        model.likelihood.loss(learner.bound.network(x), y, {}).backward()
        learner.finish(1 / len(x), 1.0)
        optimizer.step()
        if step >= steps // 2:
            average += learner.vector / (steps - steps // 2)
    learner.vector.copy_(average)
    return learner


SETTINGS = {
    "one": {},
    "an example each": {"per_example": True},
    "two components": {"components": 2, "spread": 0.3},
    "two components, an example each": {"components": 2, "spread": 0.3, "per_example": True},
}


def check_optimum(found, exact_mean: Tensor, exact_precision: Tensor) -> None:
    variance = exact_precision.diagonal().reciprocal()  # the best factorised Gaussian's
    for part in found.components if isinstance(found, MixtureDistribution) else (found,):
        n = len(exact_mean)
        assert ((part.mean[:n] - exact_mean).abs() < 0.02).all()
        assert ((part.variance[:n] / variance - 1).abs() < 0.1).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_belief_about_s_is_the_conjugate_posterior(name):
    layer, x, y = outputs_problem()
    f = (x @ layer.weight0.T).detach()
    residual = y - f - layer.bias.detach()
    parts = [conjugate(f[:, o : o + 1], residual[:, o], 0.5, 0.4) for o in range(2)]
    mean, precision = torch.cat([p[0] for p in parts]), torch.diag(torch.cat([p[1].view(1) for p in parts]))
    model = sb.Model(layer, sb.Gaussian(noise=0.5), prior=sb.Normal(0.4), bayesian="s")
    learner = trained(sb.RankOne(**SETTINGS[name]), model, x, y, 2000)
    check_optimum(learner.distribution(), mean, precision)
    # mutants, each clearly another answer: one s for both rows; the prior's variance taken for its std
    shared, shared_precision = conjugate(f.reshape(-1, 1), residual.reshape(-1), 0.5, 0.4)
    assert ((shared - mean).abs() > 0.05).all()
    assert (precision.diagonal() / shared_precision.view(()) - 1).abs().min() > 0.09
    assert abs(conjugate(f[:, :1], residual[:, 0], 0.5, 0.4**2)[0].item() - mean[0].item()) > 0.05


def test_the_belief_about_t_is_the_best_factorised_posterior():
    layer, x, _ = outputs_problem()
    with torch.no_grad():
        layer.weight0[1, 1].neg_()  # with nearly parallel rows t would lie on a ridge
    w = layer.weight0.detach()
    y = (x * torch.tensor([1.3, 0.2])) @ w.T + layer.bias.detach()
    y = (y + 0.5 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)).detach()
    design = (w.unsqueeze(0) * x.unsqueeze(1)).reshape(-1, 2)  # d y_o / d t_i = W0_oi x_i
    mean, precision = conjugate(design, (y - x @ w.T - layer.bias.detach()).reshape(-1), 0.5, 0.6)
    marginal = torch.linalg.inv(precision).diagonal()
    assert (
        marginal * precision.diagonal() > 1.3
    ).all()  # t is correlated: the factorised variance is another
    model = sb.Model(layer, sb.Gaussian(noise=0.5), prior=sb.Normal(0.6), bayesian="t")
    check_optimum(trained(sb.RankOne(), model, x, y, 2000).distribution(), mean, precision)


def test_a_draw_is_dusenberrys_layer_and_rows_do_not_share_their_noise():
    layer, x, y = outputs_problem()
    model = sb.Model(layer, sb.Gaussian(noise=0.5), prior=sb.Normal(0.1))
    posterior = sb.RankOne(epochs=3, components=4, learning_rate=0.01).fit(model, (x, y))
    draws = posterior.draw(400)
    views, outputs = posterior.layout.views(draws), posterior.functions(draws, x)
    for i in (0, 1, 399):
        gain, scale = 1 + views["s"][i], 1 + views["t"][i]
        want = ((x * scale) @ views["weight0"][i].T) * gain + views["bias"][i]
        torch.testing.assert_close(outputs[i], want, rtol=0, atol=1e-12)
    s = torch.cat([views["s"][k::4] - views["s"][k::4].mean(0) for k in range(4)])
    correlation = torch.corrcoef(s.T)[0, 1].item()
    assert abs(correlation) < 4 / 400**0.5  # false alarm 6e-5; a field error is one noise for all rows: 1


# Mixtures, and all that a fit must hold to


def test_components_start_apart_share_the_rest_and_are_dealt_in_turn():
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    model = sb.Model(network(), sb.Categorical(), prior=sb.Normal(0.1))
    posterior = sb.RankOne(epochs=2, components=3).fit(model, (x, y))
    found, b = posterior.distribution, posterior.layout.belief
    assert isinstance(found, MixtureDistribution)
    means = torch.stack([part.mean for part in found.components])
    assert (means[:, b:] == means[0, b:]).all()
    assert (means[0, :b] - means[1, :b]).abs().mean() > 0.2
    draws = posterior.draw(6)
    for i in range(6):
        nearest = ((draws[i] - means).square().sum(1)).argmin().item()
        assert nearest == i % 3
    with pytest.raises(ValueError, match="separate networks"):
        posterior.at_mean()
    alone = sb.RankOne(epochs=1, learning_rate=1e-12).fit(model, (x, y)).distribution
    assert isinstance(alone, DiagonalGaussian)
    assert alone.mean[:b].abs().max() < 1e-6  # one component starts at the network itself
    assert alone.variance[:b].sqrt().allclose(torch.tensor(0.1))


BATCH_ENSEMBLE = {"components": 3, "initial_std": 0, "per_example": True}


@pytest.mark.parametrize(
    "settings",
    [{}, {"components": 3}, {"components": 2, "per_example": True}, BATCH_ENSEMBLE],
    ids=["one", "mixture", "an example each", "BatchEnsemble"],
)
def test_the_contract_of_every_method_holds(settings):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(7)) * torch.tensor([1.0, 10.0, 0.1, 1.0])
    data = (x, (x[:, 0] > 0).long() + (x[:, 3] > 0.5).long())
    method = sb.RankOne(epochs=1, **settings)
    assert len(check_method(method, network=network(), likelihood=sb.Categorical(), data=data)) == 12


@pytest.mark.parametrize("method", [sb.MeanField(epochs=1), sb.MAP(epochs=1),
                                    sb.DeepEnsemble(members=2, member=sb.RankOne(epochs=1, components=2))],
                         ids=["mean field", "point", "ensemble"])  # fmt: skip
def test_other_methods_keep_their_contract_on_rank_one_layers(method):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(7))
    data = (x, (x[:, 0] > 0).long())
    assert len(check_method(method, network=network(), likelihood=sb.Categorical(), data=data)) == 12


# BatchEnsemble


def test_batch_ensemble_is_published_members_that_share_all_but_s_and_t():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(7))
    y = (x[:, 0] > 0).long() + (x[:, 3] > 0.5).long()
    model = sb.Model(network(), sb.Categorical(), prior=sb.Normal(1e-3))  # a prior that would show
    method = sb.RankOne(epochs=60, batch_size=15, learning_rate=0.02, **BATCH_ENSEMBLE)
    posterior = method.fit(model, (x, y))
    found, b = posterior.distribution, posterior.layout.belief
    assert isinstance(found, StoredDraws)
    assert found.support == posterior.predict(x, draws=64).draws == 3
    assert posterior.info["numbers"] == model.layout.belief + 2 * b  # one network, and s and t of two more
    assert (found.draws[:, b:] == found.draws[0, b:]).all()
    assert found.draws[:, :b].std(0).mean() > 0.2  # no KL pulls them together, or to the prior
    views = posterior.layout.views(found.draws)
    for k in range(3):  # arXiv 2002.06715: ((x o r) W) o s with r = 1 + t, s = 1 + s
        h = x
        for layer in ("0", "2"):
            scale, gain = 1 + views[f"{layer}.t"][k], 1 + views[f"{layer}.s"][k]
            h = torch.tanh((h * scale) @ views[f"{layer}.weight0"][k].T * gain + views[f"{layer}.bias"][k])
        logits = h @ views["4.weight"][k].T + views["4.bias"][k]
        expected = posterior.predict(x).log_probs[k]
        torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=0, atol=1e-5)
        assert (logits.argmax(1) == y).float().mean() > 0.8  # every member has learned, not one alone


def test_a_step_of_batch_ensemble_moves_every_member_and_one_draw_a_batch_moves_one():
    model = restricted(sb.Model(network(), sb.Categorical()))
    for settings, moved in ((BATCH_ENSEMBLE, 3), ({**BATCH_ENSEMBLE, "per_example": False}, 1)):
        learner = learner_of(sb.RankOne(**settings), model)
        learner.draw(torch.Generator().manual_seed(0))
        model.likelihood.loss(learner.bound.network(torch.randn(12, 4)), torch.arange(12) % 3, {}).backward()
        learner.finish(1.0, 1.0)
        assert sum(bool(g.abs().max() > 0) for g in learner.g_means) == moved
        assert learner.regulariser() == 0


def test_members_start_about_one_or_at_random_signs():
    model = restricted(sb.Model(network(), sb.Categorical()))
    spread = learner_of(sb.RankOne(**{**BATCH_ENSEMBLE, "components": 60}), model)
    factors = 1 + torch.stack(spread.means)
    assert factors.mean().item() == pytest.approx(1, abs=4 * 0.5 / factors.numel() ** 0.5)  # 4 errors: 6e-5
    assert factors.std().item() == pytest.approx(0.5, abs=4 * 0.5 / (2 * factors.numel()) ** 0.5)
    signs = 1 + torch.stack(
        learner_of(sb.RankOne(**{**BATCH_ENSEMBLE, "components": 60}, spread=None), model).means
    )
    assert (signs.abs() - 1).abs().max() < 1e-6
    assert abs(signs.mean().item()) < 4 / signs.numel() ** 0.5
    assert not torch.equal(signs[0], signs[1])
    one = learner_of(sb.RankOne(initial_std=0, spread=None), model).means[0]
    assert torch.equal(one, torch.zeros_like(one))


def test_points_have_no_kl_to_set():
    for setting in (
        {"kl": KL.MONTE_CARLO},
        {"kl_full": 2.0},
        {"kl_start": 1.0, "kl_full": 2.0},
        {"temperature": 0.5},
    ):
        with pytest.raises(ValueError, match="points, which have no KL"):
            sb.RankOne(initial_std=0, **setting)


@pytest.mark.parametrize("per_example", [False, True])
def test_a_fit_that_was_cut_goes_on_to_the_same_numbers(tmp_path, per_example):
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    model = sb.Model(network(), sb.Categorical(), prior=sb.ScaleMixture())

    def fit(epochs: int, folder=None):
        method = sb.RankOne(epochs=epochs, batch_size=8, components=2, per_example=per_example)
        return method.fit(model, (x, y), seed=3, checkpoint=folder).draw(4)

    fit(2, tmp_path)
    assert torch.equal(fit(4, tmp_path), fit(4))


def test_batch_norm_and_a_learned_noise_go_with_a_mixture():
    torch.manual_seed(0)
    net = rank_one(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)), "0")
    x = torch.randn(40, 2)
    posterior = sb.RankOne(epochs=3, components=2, patience=2).fit(
        sb.Model(net, sb.Gaussian(), prior=sb.Normal(0.1)), (x, x.sum(1)), (x, x.sum(1))
    )
    assert {s.name for s in posterior.layout.of_kind("statistic")} == {"1.running_mean", "1.running_var"}
    before = posterior.network.state_dict()["1.running_mean"].clone()
    assert torch.isfinite(posterior.predict(x, draws=4).variance).all()
    assert torch.equal(posterior.network.state_dict()["1.running_mean"], before)


class Tokens(nn.Module):
    """A rank-one layer on ``(B, length, features)``, and one whose input has the two folded together."""

    def __init__(self, fold: bool, reads: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.fold, self.reads = RankOneLinear(4, 5), RankOneLinear(5, 3), fold, reads

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h = self.second(h.flatten(0, 1)).view(*x.shape[:2], -1) if self.fold else self.second(h)
        return h.mean(1) + (self.second.weight.sum() if self.reads else 0.0)


def test_draws_for_each_example_need_the_batch_first_and_say_so():
    x, y = torch.randn(12, 3, 4), torch.arange(12) % 3
    posterior = sb.RankOne(epochs=1, per_example=True).fit(sb.Model(Tokens(False), sb.Categorical()), (x, y))
    assert posterior.predict(x, draws=4).mean.shape == (12, 3)
    with pytest.raises(ValueError, match="batch as the first axis of every rank-one layer"):
        sb.RankOne(epochs=1, per_example=True).fit(sb.Model(Tokens(True), sb.Categorical()), (x, y))
    sb.RankOne(epochs=1).fit(sb.Model(Tokens(True), sb.Categorical()), (x, y))  # one draw: any shape
    with pytest.raises(ValueError, match="reads s, t or weight of a rank-one layer itself"):
        sb.RankOne(epochs=1, per_example=True).fit(sb.Model(Tokens(False, True), sb.Categorical()), (x, y))


def test_the_logged_objective_holds_the_mean_of_the_components_kl():
    model = restricted(sb.Model(network(torch.float64), sb.Categorical(), prior=sb.Normal(0.1)))
    learner = learner_of(sb.RankOne(components=3), model)
    prior = td.Normal(torch.zeros((), dtype=torch.float64), 0.1)
    total = sum(
        td.kl_divergence(td.Normal(m, s), prior).sum()
        for m, s in zip(learner.means, learner.sigma, strict=True)
    )
    assert learner.regulariser() == pytest.approx(total.item() / 3, rel=1e-12)


@pytest.mark.filterwarnings("ignore:the fit predicts the same for every input")
def test_a_collapsed_belief_is_warned_of():
    # trap 5
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    with pytest.warns(UserWarning, match="collapsed to its mean"):
        sb.RankOne(epochs=1, initial_std=1e-6).fit(sb.Model(network(), sb.Categorical()), (x, y))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"components": 0}, "components must be a whole number"),
        ({"components": 2.0}, "components must be a whole number"),
        ({"validation_draws": 0}, "validation_draws"),
        ({"initial_std": -0.1}, "initial_std"),
        ({"spread": -1.0}, "spread"),
        ({"kl_start": 3.0, "kl_full": 2.0}, "warm-up"),
        ({"per_example": True, "compile": True}, "cannot be compiled"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        sb.RankOne(**settings)


@pytest.mark.parametrize(
    ("prior", "kl", "words"),
    [(sb.ScaleMixture(learned=True), None, "needs MeanField"), (sb.ScaleMixture(), KL.CLOSED, "MONTE_CARLO")],
)
def test_an_estimator_that_does_not_exist_is_refused_before_any_work(prior, kl, words):
    with pytest.raises(ValueError, match=words):
        sb.RankOne(kl=kl).fit(sb.Model(network(), sb.Categorical(), prior=prior), None)


def test_the_kl_grows_in_a_line():
    method = sb.RankOne(kl_start=2, kl_full=4)
    assert [method.warm_up(p) for p in (0, 1.99, 2, 3, 4, 9)] == [0, 0, 0, 0.5, 1, 1]
    assert [sb.RankOne(kl_start=2, kl_full=2).warm_up(p) for p in (1, 2)] == [0, 1]
    assert [sb.RankOne(kl_start=2).warm_up(p) for p in (1, 2)] == [0, 1]
    assert sb.RankOne().warm_up(0.0) == 1
