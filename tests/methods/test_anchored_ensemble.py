"""Anchored ensembles: members against the closed form, their covariance against the conjugate posterior."""

import functools
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb
from singularbayes.methods.anchored_ensemble import AnchoredLearner, draw_anchor, label_std, with_label_noise
from singularbayes.priors import Laplace, Normal, PerParameter, ScaleMixture
from singularbayes.random import derive
from singularbayes.testing import CLAUSES, check_method

# methods.md 9: conjugate regression with a bias, prior variance 1, noise variance .25
INPUTS = torch.tensor([[-1.0], [-0.5], [0.5], [1.5], [2.0], [3.0]], dtype=torch.float64)
LABELS = torch.tensor([-1.1, -1.0, 0.2, 0.9, 1.4, 2.3], dtype=torch.float64)
MEAN = torch.tensor([0.853125, -0.31875], dtype=torch.float64)  # weight, bias
EXACT = torch.tensor([[0.020559, -0.018092], [-0.018092, 0.055921]], dtype=torch.float64)
DESIGN = torch.cat([INPUTS, torch.ones(6, 1, dtype=torch.float64)], 1)
MEMBERS = 1500


def regression(prior=None, **noise) -> sb.Model:
    torch.manual_seed(0)
    return sb.Model(nn.Linear(1, 1).double(), sb.Gaussian(**(noise or {"noise": 0.5})), prior=prior)


def closed_form(y: Tensor, anchor: Tensor, temperature: float = 1.0, prior_std: float = 1.0) -> Tensor:
    """The minimiser of ``sum NLL + (T / 2) |theta - anchor|^2 / prior_std^2``; rows of ``y`` and anchors."""
    pull = temperature / prior_std**2
    precision = DESIGN.T @ DESIGN / 0.25 + pull * torch.eye(2, dtype=torch.float64)
    return torch.linalg.solve(precision, (y @ DESIGN / 0.25 + pull * anchor).T).T


@functools.cache
def regression_draws() -> tuple[Tensor, Tensor]:
    return drawn(regression(), SEEDS)


def drawn(model: sb.Model, seeds, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """What the library draws for the members of these seeds: their labels, and their anchors."""
    std = label_std(model.likelihood) * math.sqrt(temperature)
    labels = [with_label_noise((INPUTS, LABELS), model, std, seed)[1] for seed in seeds]
    return torch.stack(labels), torch.stack([draw_anchor(model, seed) for seed in seeds])


SEEDS = [derive(0, "member", number) for number in range(MEMBERS)]
TRAINED = {"epochs": 500, "batch_size": 6, "learning_rate": 0.1, "schedule": sb.Schedule.COSINE}


@pytest.mark.parametrize(
    ("start", "temperature"), [("renewed", 1.0), ("renewed", 4.0), ("anchor", 1.0), ("network", 1.0)]
)
def test_a_trained_member_is_the_closed_form_minimiser(start, temperature):
    model = regression()
    method = sb.AnchoredEnsemble(members=1, start=sb.MemberStart(start), temperature=temperature, **TRAINED)
    found = method.fit(model, (INPUTS, LABELS), seed=3).draw(1)
    exact = closed_form(*drawn(model, [derive(3, "member", 0)], temperature), temperature)
    assert (found - exact).abs().max() < 1e-4  # Adam at the end of the cosine
    assert (exact - MEAN).abs().max() > 0.01  # and not simply the posterior's mean


def within_four_errors(rows: Tensor, exact: Tensor) -> bool:
    """Covariance entries within 4 standard errors; a false alarm in 2e-4 of seeds (3 entries, 6e-5 each)."""
    shifts = rows - rows.mean(0)
    found = shifts.T @ shifts / (len(rows) - 1)
    errors = ((exact.diagonal().outer(exact.diagonal()) + exact**2) / len(rows)).sqrt()  # of a Gaussian's
    return bool(((found - exact).abs() < 4 * errors).all())


def test_many_members_have_the_conjugate_posteriors_mean_and_covariance():
    labels, anchors = regression_draws()
    rows = closed_form(labels, anchors)
    assert within_four_errors(rows, EXACT)
    assert ((rows.mean(0) - MEAN).abs() < 4 * (EXACT.diagonal() / MEMBERS).sqrt()).all()
    # mutant: no label noise; the covariance is S Sigma^-1 S, 16 to 27 times too small
    narrow = closed_form(LABELS.expand(MEMBERS, -1), anchors)
    assert not within_four_errors(narrow, EXACT)
    assert within_four_errors(narrow, EXACT @ EXACT)
    ratio = EXACT.diagonal() / narrow.var(0)
    assert ((ratio > 13) & (ratio < 31)).all()


def test_under_a_narrow_prior_anchors_carry_the_covariance():
    model = regression(prior=Normal(0.2))
    exact = torch.linalg.inv(DESIGN.T @ DESIGN / 0.25 + 25 * torch.eye(2, dtype=torch.float64))
    labels, anchors = regression_draws()[0], torch.stack([draw_anchor(model, seed) for seed in SEEDS])
    assert within_four_errors(closed_form(labels, anchors, prior_std=0.2), exact)
    # mutants: one anchor for all; anchors of a standard normal
    assert not within_four_errors(closed_form(labels, torch.zeros_like(anchors), prior_std=0.2), exact)
    assert not within_four_errors(closed_form(labels, anchors / 0.2, prior_std=0.2), exact)


def test_at_another_temperature_members_are_draws_of_the_tempered_posterior():
    tempered = torch.linalg.inv(DESIGN.T @ DESIGN + torch.eye(2, dtype=torch.float64))
    labels, anchors = drawn(regression(), SEEDS[:600], temperature=4.0)
    assert within_four_errors(closed_form(labels, anchors, temperature=4.0), tempered)
    # mutant: noise of the untempered likelihood
    small = LABELS + (labels - LABELS) / 2
    assert not within_four_errors(closed_form(small, anchors, temperature=4.0), tempered)


def test_anchors_have_each_blocks_own_standard_deviation():
    prior = PerParameter({"0.weight": Normal(3.0), "*": Normal(0.01)})
    network = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40), nn.Linear(40, 2))
    model = sb.Model(network, sb.Categorical(), prior=prior, deterministic="2.bias")
    anchor = draw_anchor(model, 5)
    assert anchor.shape == (model.layout.belief,)  # points have none
    for slot in model.layout.of_kind("belief"):
        std = 3.0 if slot.name == "0.weight" else 0.01
        own = anchor[slot.start : slot.stop] / std
        assert own.square().mean() == pytest.approx(1, abs=4 * math.sqrt(2 / slot.size))
    assert torch.equal(anchor, draw_anchor(model, 5))
    assert not torch.equal(anchor, draw_anchor(model, 6))


def test_the_pull_is_towards_the_anchor_at_t_over_n(monkeypatch):
    seen = []
    finish = AnchoredLearner.finish

    def spy(self, weight, progress):
        before = self.gradient.clone()
        finish(self, weight, progress)
        seen.append((weight, (self.gradient - before) / weight, self.vector - self.anchor))

    monkeypatch.setattr(AnchoredLearner, "finish", spy)
    method = sb.AnchoredEnsemble(members=1, epochs=1, batch_size=4, temperature=2.0)
    method.fit(regression(prior=Normal(0.5)), (INPUTS, LABELS))
    assert [weight for weight, _, _ in seen] == pytest.approx([2 / 6] * 2)
    for _, pull, away in seen:
        assert torch.allclose(pull, away / 0.25)


# Data


class Items(torch.utils.data.Dataset):
    """The regression item by item, as pairs or dicts, from the global random state too."""

    def __init__(self, as_dict: bool) -> None:
        self.as_dict = as_dict

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        torch.rand(1)
        x, y = INPUTS[index], LABELS[index]
        return {"x": x, "labels": y} if self.as_dict else (x, y)


class OfDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def labels_of(data, model: sb.Model, seed: int = 1) -> Tensor:
    noisy = with_label_noise(data, model, 0.5, seed)
    if isinstance(noisy, tuple):
        return noisy[1]
    if isinstance(noisy, list):
        return torch.cat([y for _, y in noisy])
    first, again = ([noisy[i] for i in range(len(noisy))] for _ in range(2))
    ys = [torch.stack([item["labels"] if isinstance(item, dict) else item[1] for item in items])
          for items in (first, again)]  # fmt: skip
    assert torch.equal(*ys), "one noise for the whole fit"
    return ys[0]


def test_every_form_of_data_has_the_same_noise_on_its_labels():
    model, state = regression(), torch.get_rng_state()
    forms = {
        "arrays": (INPUTS.numpy(), LABELS.numpy()),
        "items": Items(as_dict=False),
        "dict items": Items(as_dict=True),
        "batches": [(INPUTS[:4], LABELS[:4]), (INPUTS[4:], LABELS[4:])],
    }
    reference = labels_of((INPUTS, LABELS), model)
    assert (reference - LABELS).std() == pytest.approx(0.5, abs=0.4)
    for name, data in forms.items():
        if name == "items" or name == "dict items":
            torch.set_rng_state(state)
            with_label_noise(data, model, 0.5, 1)
            assert torch.equal(torch.get_rng_state(), state), "an item is drawn apart from the global state"
        assert torch.allclose(labels_of(data, model), reference), name
    assert not torch.allclose(labels_of((INPUTS, LABELS), model, seed=2), reference)
    column = with_label_noise((INPUTS, LABELS.unsqueeze(1)), model, 0.5, 1)[1]
    assert torch.allclose(column[:, 0], reference)  # (N, 1) is not spread to (N, N)
    whole = with_label_noise((INPUTS, LABELS.round().long()), model, 0.5, 1)[1]
    assert torch.allclose(whole, LABELS.round() + reference - LABELS)


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_dataset_is_fitted_as_the_same_tensors_are(as_dict):
    model = sb.Model(OfDict(), sb.Gaussian(noise=0.5))
    method = sb.AnchoredEnsemble(members=2, epochs=3, start=sb.MemberStart.NETWORK, learning_rate=0.1)
    items, tensors = (method.fit(model, data, seed=3) for data in (Items(as_dict), (INPUTS, LABELS)))
    assert torch.allclose(items.draw(2), tensors.draw(2), atol=1e-6)


def test_a_shuffled_loader_is_refused_where_labels_have_noise():
    loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=3, shuffle=True)
    with pytest.raises(ValueError, match="a DataLoader does not say which row is which"):
        sb.AnchoredEnsemble(epochs=1).fit(regression(), loader)
    posterior = sb.AnchoredEnsemble(members=2, epochs=1, label_noise=False).fit(regression(), loader)
    assert posterior.predict(INPUTS).draws == 2


# Likelihoods and priors


def test_class_labels_stay_and_anchors_alone_differ():
    assert label_std(sb.Categorical()) is None
    assert label_std(sb.Bernoulli()) is None
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    model = sb.Model(nn.Linear(3, 2), sb.Categorical())
    method = sb.AnchoredEnsemble(members=3, epochs=2, start=sb.MemberStart.NETWORK, batch_size=40)
    one, two, _ = method.fit(model, (x, (x[:, 0] > 0).long())).draw(3)
    assert not torch.equal(one, two)


def test_noise_follows_the_calibration_temperature_of_the_likelihood():
    assert label_std(sb.Gaussian(noise=0.5, temperature=4.0)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("likelihood", "words"),
    [
        (sb.Gaussian(), r"learns it from them; fit MAP first and fix the noise"),
        (sb.HeteroscedasticGaussian(), r"has another one at each input; take sb\.Gaussian\(noise=\.\.\.\)"),
    ],
)
def test_noise_that_is_not_given_is_refused_with_what_to_do(likelihood, words):
    outputs = 1 if isinstance(likelihood, sb.Gaussian) else 2
    model = sb.Model(nn.Linear(1, outputs), likelihood)
    data = (INPUTS.float(), LABELS.float())
    with pytest.raises(ValueError, match=words):
        sb.AnchoredEnsemble(epochs=1).fit(model, data)
    posterior = sb.AnchoredEnsemble(members=2, epochs=1, label_noise=False).fit(model, data)
    assert posterior.predict(INPUTS.float()).draws == 2


@pytest.mark.parametrize("prior", [ScaleMixture(), PerParameter({"bias": Laplace(), "*": Normal()})])
def test_a_prior_that_is_not_normal_is_refused(prior):
    with pytest.raises(ValueError, match=r"that of a Normal prior, got (ScaleMixture|Laplace); use prior="):
        sb.AnchoredEnsemble(epochs=1).fit(regression(prior=prior), (INPUTS, LABELS))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="members must be a whole number of at least 1, got 0"):
        sb.AnchoredEnsemble(members=0)
    with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match="threads share torch's global random"):
        sb.AnchoredEnsemble(executor=pool)
    with pytest.raises(ValueError, match="'elsewhere' is not a valid MemberStart"):
        sb.AnchoredEnsemble(start=sb.MemberStart("elsewhere"))
    labels = LABELS.clone()
    labels[2] = np.nan
    with pytest.raises(ValueError, match="y holds nan at row 2"):
        sb.AnchoredEnsemble(epochs=1).fit(regression(), (INPUTS, labels))


# Through the loop


def factorised() -> nn.Module:
    torch.manual_seed(3)
    mlp = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    return sb.factorize(mlp, rank={"0": 2, "2": 3})


X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 10.0, 0.1, 1.0])


@pytest.mark.parametrize("start", ["renewed", "anchor"])
def test_it_keeps_the_contract(start):
    method = sb.AnchoredEnsemble(members=2, epochs=1, start=sb.MemberStart(start))
    assert check_method(method) == list(CLAUSES)


def test_it_keeps_the_contract_on_factors_in_regression():
    method = sb.AnchoredEnsemble(members=2, epochs=1)
    options = {"network": factorised(), "likelihood": sb.Gaussian(noise=0.3), "data": (X, X[:, :2])}
    assert check_method(method, **options) == list(CLAUSES)


def test_members_start_where_they_are_told(monkeypatch):
    starts = []
    right = AnchoredLearner.__init__

    def spy(self, *arguments):
        right(self, *arguments)
        starts.append((self.vector.clone(), self.anchor))

    monkeypatch.setattr(AnchoredLearner, "__init__", spy)
    model = sb.Model(factorised(), sb.Gaussian(noise=0.3), deterministic="*bias")
    own, d = model.layout.flatten(model.network), model.layout.belief
    for start in sb.MemberStart:
        sb.AnchoredEnsemble(members=1, epochs=1, start=start).fit(model, (X, X[:, :2]))
        vector, anchor = starts.pop()
        assert torch.equal(vector[:d], anchor) == (start is sb.MemberStart.ANCHOR)
        assert torch.equal(vector, own) == (start is sb.MemberStart.NETWORK)


def test_a_process_pool_gives_the_same_numbers():
    model, data = regression(), (INPUTS, LABELS)
    alone = sb.AnchoredEnsemble(members=2, epochs=2).fit(model, data, seed=5)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pooled = sb.AnchoredEnsemble(members=2, epochs=2, executor=pool).fit(model, data, seed=5)
    assert torch.equal(alone.draw(2), pooled.draw(2))
    assert alone.info["history"] == pooled.info["history"]


def test_more_members_go_on_from_the_same_folder(tmp_path, monkeypatch):
    model, data = regression(), (INPUTS, LABELS)
    two = sb.AnchoredEnsemble(members=2, epochs=2).fit(model, data, checkpoint=tmp_path)
    steps = []
    finish = AnchoredLearner.finish
    monkeypatch.setattr(AnchoredLearner, "finish", lambda self, *a: steps.append(1) or finish(self, *a))
    three = sb.AnchoredEnsemble(members=3, epochs=2).fit(model, data, checkpoint=tmp_path)
    assert torch.equal(three.draw(3)[:2], two.draw(2))
    assert len(steps) == 2  # of the third alone
    assert three.info["settings"]["members"] == 3
    assert three.info["numbers"] == 3 * model.layout.trained
