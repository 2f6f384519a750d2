"""A fitted combination: its optimum, what it gains, and that it is never scored on what it was chosen on."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from singularbayes.feature_scores import Combination
from singularbayes.metrics import auroc


class Column:
    """A score that reads one column of the inputs, in units of its own."""

    def __init__(self, column: int, unit: float = 1.0) -> None:
        self.column, self.unit = column, unit

    def score(self, x) -> Tensor:
        return self.unit * torch.as_tensor(x)[:, self.column].double() + 5


SCORES = {"a": Column(0), "b": Column(1, 1e4), "noise": Column(2, 1e-3)}


def rows(count: int, seed: int, shift: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Tensor:
    """Correlated columns: neither of the first two tells much alone."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=source, dtype=torch.float64)
    return x @ torch.tensor([[1.0, 0.9, 0.0], [0.0, 0.4, 0.0], [0.0, 0.0, 1.0]]).double() + torch.tensor(
        shift
    )


STRANGE = (-0.4, 0.6, 0.0)


def test_the_weights_are_the_optimum_of_the_balanced_logistic_loss():
    inside, outside = rows(300, 0), rows(60, 1, STRANGE)
    fitted = Combination(penalty=0.01).fit(SCORES, inside, outside)
    table = [torch.stack([s.score(part) for s in SCORES.values()], 1).numpy() for part in (inside, outside)]
    mean = sum(part.mean(0) for part in table) / 2  # both kinds weigh half
    std = np.sqrt(sum(((part - mean) ** 2).mean(0) for part in table) / 2)
    low, high = ((part - mean) / std for part in table)

    def loss(theta: np.ndarray) -> float:
        of = [
            np.logaddexp(0, low @ theta[:3] + theta[3]).mean(),
            np.logaddexp(0, -high @ theta[:3] - theta[3]).mean(),
        ]
        return sum(of) / 2 + 0.01 / 2 * float(theta[:3] @ theta[:3])

    oracle = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    assert list(fitted.weights.values()) == pytest.approx(oracle.x[:3], abs=2e-4)
    expected = (rows(20, 5).numpy() * [1, 1e4, 1e-3] + 5 - mean) / std @ oracle.x[:3]
    assert fitted.score(rows(20, 5)).numpy() == pytest.approx(expected, abs=2e-3)
    torch.testing.assert_close(
        fitted.outside.mean(), torch.tensor(high @ oracle.x[:3]).mean(), atol=1e-3, rtol=0
    )


def test_together_they_tell_what_none_tells_alone():
    fitted = Combination().fit(SCORES, rows(200, 0), rows(200, 1, STRANGE))
    inside, outside = rows(500, 2), rows(500, 3, STRANGE)

    def measured(rule) -> float:
        return auroc(torch.cat([rule.score(inside), rule.score(outside)]).numpy(), np.repeat([0, 1], 500))

    assert measured(fitted) > 0.9
    assert max(measured(rule) for rule in SCORES.values()) < 0.75


@pytest.mark.parametrize("kind", [torch.float32, np.float64])
def test_rows_that_it_was_chosen_on_are_refused_in_any_precision(kind):
    inside, outside = rows(40, 0), rows(30, 1, STRANGE)
    fitted = Combination().fit(SCORES, inside, outside)
    for part in (inside, outside):
        scored = torch.cat([rows(50, 9), part[3:5]])
        scored = scored.numpy() if kind is np.float64 else scored.to(kind)
        with pytest.raises(ValueError, match="2 of 52 rows are among those"):
            fitted.score(scored)
    assert fitted.score(rows(50, 9)).shape == (50,)


def test_rows_that_repeat_by_chance_can_be_allowed():
    inside = rows(40, 0)
    scored = torch.cat([rows(99, 9), inside[:1]])
    assert Combination(max_shared=0.01).fit(SCORES, inside, rows(40, 1, STRANGE)).score(scored).shape == (
        100,
    )
    with pytest.raises(ValueError, match="1 of 99 rows"):
        Combination(max_shared=0.01).fit(SCORES, inside, rows(40, 1, STRANGE)).score(scored[1:])


def test_inputs_of_several_parts_have_digests_too():
    class Part:
        def score(self, x) -> Tensor:
            return x["a"][:, 0].double()

    def parts(x: Tensor) -> dict[str, Tensor]:
        return {"a": x[:, :2], "b": x[:, 2:]}

    fitted = Combination().fit({"part": Part()}, parts(rows(20, 0)), parts(rows(20, 1, STRANGE)))
    assert fitted.score(parts(rows(5, 2))).shape == (5,)
    with pytest.raises(ValueError, match="5 of 5 rows"):
        fitted.score(parts(rows(20, 0)[:5]))


def test_bad_input_is_named():
    inside, outside = rows(20, 0), rows(20, 1, STRANGE)

    class Flat:
        def score(self, x) -> Tensor:
            return torch.ones(len(x))

    with pytest.raises(ValueError, match="score 'flat' is the same"):
        Combination().fit({"flat": Flat()}, inside, outside)
    with pytest.raises(ValueError, match="3 rows are both inside and outside"):
        Combination().fit(SCORES, inside, torch.cat([outside, inside[:3]]))
    with pytest.raises(ValueError, match="scores is empty"):
        Combination().fit({}, inside, outside)
    with pytest.raises(ValueError, match="penalty must be above 0"):
        Combination(penalty=0.0)
    with pytest.raises(ValueError, match="max_shared is a share"):
        Combination(max_shared=1.0)
