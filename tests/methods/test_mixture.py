"""Mixtures as a method: members of any kind and architecture, weighed; all checks before any fit."""

import pickle
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.random import derive
from singularbayes.testing import CLAUSES, check_method

SOURCE = torch.Generator().manual_seed(5)
X = torch.randn(60, 4, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1, 1.0])
X[:, 1] += 8 * X[:, 0]
Y = (X[:, 0] > 0).long()
TRAIN, HELD = (X[:40], Y[:40]), (X[40:], Y[40:])


class Rows(nn.Module):
    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 3, 2), nn.Linear(9, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x.unsqueeze(1))).flatten(1))


def mlp(outputs: int = 2) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, outputs))


def model_of(network: nn.Module | None = None, likelihood: Any = None) -> sb.Model:
    return sb.Model(network or mlp(), likelihood or sb.Categorical())


def convolution() -> sb.Model:
    torch.manual_seed(4)
    return model_of(Rows())


def low_rank() -> sb.Model:
    return model_of(sb.factorize(mlp(), rank={"0": 2}))


FIELD, POINT = sb.MeanField(epochs=2, learning_rate=0.01), sb.MAP(epochs=3, learning_rate=0.01)


def test_methods_models_and_fitted_posteriors_of_other_architectures_join():
    fitted = POINT.fit(convolution(), TRAIN)
    mixture = sb.Mixture(members=(FIELD, (low_rank(), FIELD), fitted)).fit(model_of(), TRAIN, seed=3)
    kinds = [type(next(member.network.children())).__name__ for member in mixture.members]
    assert kinds == ["Linear", "LowRankLinear", "Conv1d"]
    assert mixture.members[2] is fitted
    alone = FIELD.fit(low_rank(), TRAIN, seed=derive(3, "member", 1))
    assert torch.equal(alone.draw(3), mixture.members[1].draw(3))
    predictive = mixture.predict(HELD[0], draws=21)
    assert predictive.draws == 21
    torch.testing.assert_close(predictive.weights, torch.tensor([1 / 30] * 20 + [1 / 3], dtype=torch.float64))
    parts = [m.predict(HELD[0], n, derive(0, "member", i)).mean
             for i, (m, n) in enumerate(zip(mixture.members, (10, 10, 1), strict=True))]  # fmt: skip
    torch.testing.assert_close(predictive.mean, sum(parts) / 3, rtol=1e-5, atol=1e-6)


def test_joining_fitted_members_is_what_fitting_them_together_gives():
    method = sb.Mixture(members=(POINT, FIELD), weights=sb.Stacked())
    together = method.fit(model_of(), TRAIN, HELD, seed=1)
    apart = [
        m.fit(model_of(), TRAIN, HELD, seed=derive(1, "member", n)) for n, m in enumerate((POINT, FIELD))
    ]
    joined = sb.Mixture(members=apart, weights=sb.Stacked()).join(HELD, seed=1)
    assert joined.weights == together.weights
    assert torch.equal(joined.predict(X, 9).log_probs, together.predict(X, 9).log_probs)


def test_stacked_members_predict_validation_data_no_worse_than_each():
    members = [POINT.fit(model_of(), TRAIN), FIELD.fit(low_rank(), TRAIN), FIELD.fit(convolution(), TRAIN)]
    mixture = sb.Mixture(members=members, weights=sb.Stacked(draws=256)).join(HELD)
    logs = torch.stack([
        member.predict(HELD[0], 256, derive(0, "stacking", n)).log_prob(HELD[1]).double()
        for n, member in enumerate(members)
    ])  # fmt: skip
    together = torch.logsumexp(logs + torch.tensor(mixture.weights).double().log().unsqueeze(1), 0).mean()
    assert together >= logs.mean(1).max() - 1e-9
    equal = torch.logsumexp(logs, 0).mean() - torch.log(torch.tensor(3.0))
    assert together > equal + 1e-3  # mutant: equal weights
    given = sb.Mixture(members=members, weights=sb.Given(mixture.weights)).join()
    assert torch.equal(given.predict(X, 9).log_probs, mixture.predict(X, 9).log_probs)


def test_validation_data_stop_the_members_early():
    early = sb.MAP(epochs=40, patience=1, learning_rate=0.05)
    mixture = sb.Mixture(members=(early,)).fit(model_of(), TRAIN, HELD)
    assert mixture.members[0].info["epochs"] < 40


def test_info_sums_the_members():
    mixture = sb.Mixture(members=(POINT, FIELD)).fit(model_of(), TRAIN, seed=7)
    parts = [member.info for member in mixture.members]
    for key in ("numbers", "seconds"):
        assert mixture.info[key] == sum(part[key] for part in parts)
    assert mixture.info["numbers"] == 3 * sum(p.numel() for p in mlp().parameters())
    assert mixture.info["weights"] == [0.5, 0.5]
    assert mixture.info["members"] == ["MAP", "MeanField"]
    assert (mixture.info["method"], mixture.info["num_data"], mixture.info["seed"]) == ("Mixture", 40, 7)
    other = POINT.fit(model_of(), HELD)
    assert sb.Mixture(members=(other, *mixture.members)).join().info["num_data"] is None


def test_every_member_has_a_checkpoint_of_its_own(tmp_path):
    method = sb.Mixture(members=(POINT, (low_rank(), POINT)))
    one = method.fit(model_of(), TRAIN, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0", "member-1"]
    again = method.fit(model_of(), TRAIN, checkpoint=tmp_path)
    assert torch.equal(one.predict(X).log_probs, again.predict(X).log_probs)


class Elsewhere(Executor):
    """Another process, as far as pickle can tell."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future:
        self.jobs += 1
        there, given = pickle.loads(pickle.dumps((function, args)))
        future: Future = Future()
        future.set_result(pickle.loads(pickle.dumps(there(*given, **kwargs))))
        return future


def test_members_are_fitted_by_an_executor_to_the_same_numbers():
    executor, members = Elsewhere(), (POINT, (convolution(), FIELD))
    alone = sb.Mixture(members=members).fit(model_of(), TRAIN)
    pooled = sb.Mixture(members=members, executor=executor).fit(model_of(), TRAIN)
    assert executor.jobs == 2
    assert torch.equal(alone.predict(X, 9).log_probs, pooled.predict(X, 9).log_probs)
    with ThreadPoolExecutor(1) as threads, pytest.raises(TypeError, match="threads share"):
        sb.Mixture(members=(POINT,), executor=threads)


def test_the_contract_holds_with_members_of_other_architectures():
    torch.manual_seed(6)
    own = sb.Model(Rows(3), sb.Categorical())
    method = sb.Mixture(
        members=(sb.MCDropout(epochs=1), (own, sb.MeanField(epochs=1))), weights=sb.Given((0.3, 0.7))
    )
    done = check_method(method)
    assert done == [clause for clause in CLAUSES if clause != "batched draws equal a loop over draws"]


def test_a_regression_of_other_likelihoods_joins():
    target = X[:, 0] + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    members = (POINT, (model_of(Rows(2), sb.HeteroscedasticGaussian()), FIELD))
    model = model_of(mlp(1), sb.Gaussian())
    mixture = sb.Mixture(members=members, weights=sb.Stacked()).fit(
        model, (X[:40], target[:40]), (X[40:], target[40:])
    )
    assert torch.isfinite(mixture.calibrate((X[40:], target[40:])).predict(X).log_prob(target)).all()


@dataclass(frozen=True)
class Untouchable:
    """A method that must not be fitted."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("fitted before the checks")


def test_all_is_checked_before_any_member_is_fitted():
    never = Untouchable()
    fit = {"model": model_of(), "train": TRAIN}
    with pytest.raises(ValueError, match=r"Stacked\(\) weighs members on validation data"):
        sb.Mixture(members=(never,), weights=sb.Stacked()).fit(**fit)
    with pytest.raises(ValueError, match="1 weights for 2 members"):
        sb.Mixture(members=(never, never), weights=sb.Given((1.0,)))
    numbers = model_of(mlp(1), sb.Gaussian())
    with pytest.raises(ValueError, match="the tasks are categorical, gaussian"):
        sb.Mixture(members=(never, (numbers, never))).fit(**fit)
    with pytest.raises(ValueError, match="the tasks are categorical, gaussian"):
        sb.Mixture(members=((numbers, never),)).fit(**fit)  # the model that is given says the task
    with pytest.raises(ValueError, match="needs members"):
        sb.Mixture().fit(**fit)
    with pytest.raises(ValueError, match=r"member 0 is a method \(Untouchable\) that is still to be fitted"):
        sb.Mixture(members=(never,)).join()
    with pytest.raises(ValueError, match=r"member 0 is a method \(Untouchable\)"):
        sb.Mixture(members=((model_of(), never),)).join()
    fitted = POINT.fit(model_of(), TRAIN)
    with pytest.raises(ValueError, match=r"all members are fitted already.*join"):
        sb.Mixture(members=(fitted,)).fit(**fit)
    other = POINT.fit(numbers, (X[:40], X[:40, 0]))
    with pytest.raises(ValueError, match="the tasks are categorical, gaussian"):
        sb.Mixture(members=(fitted, other)).join()


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_member_is_named():
    with pytest.raises(TypeError, match="member 1 is a int; expected a fitted posterior, a method"):
        sb.Mixture(members=(POINT, 3))
    with pytest.raises(TypeError, match="members must be a tuple"):
        sb.Mixture(members=POINT)
    with pytest.raises(TypeError, match=r"fits an sb\.Model, got Sequential"):
        sb.Mixture(members=((mlp(), POINT),))
    with pytest.raises(TypeError, match="member 0 is a tuple"):
        sb.Mixture(members=((model_of(), POINT, 3),))
    with pytest.raises(TypeError, match=r"fits an sb\.Model, got NoneType"):
        sb.Mixture(members=(POINT,)).fit(None, TRAIN)
    sb.Mixture(members=((model_of(), POINT),)).fit(None, TRAIN)  # all have models of their own


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("weights", ["equal", [0.5, 0.5], sb.Stacked, None])
def test_weights_that_are_no_object_are_named(weights):
    with pytest.raises(TypeError, match=r"weights must be an object such as Equal\(\)"):
        sb.Mixture(members=(sb.MAP(), sb.MAP()), weights=weights)


@pytest.mark.usefixtures("unchecked")
def test_a_class_is_no_member():
    with pytest.raises(TypeError, match=r"member 1 is the class MAP; expected a fitted posterior, a method"):
        sb.Mixture(members=(sb.MAP(), sb.MAP))
