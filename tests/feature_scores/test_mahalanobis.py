"""Mahalanobis scores: the formulas by loops in float64, on correlated and badly scaled features."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.feature_scores import Inputs, Mahalanobis, Penultimate, RelativeMahalanobis
from singularbayes.metrics import auroc

MIXING = np.array([[1.0, 0.9, 0.0, 0.0], [0.0, 0.5, 0.3, 0.0], [0.0, 0.0, 1.0, -0.8], [0.2, 0.0, 0.0, 0.4]])
SCALES = np.array([1.0, 1e3, 1e-3, 50.0])
MEANS = np.array([[0.0, 0, 0, 0], [3.0, 0, -2, 1], [-1.0, 4, 0, 0]])


def features(rows: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    return ((rng.normal(size=(rows, 4)) @ MIXING + MEANS[y] + shift) * SCALES + SCALES), y


def class_covariance(x: np.ndarray, y: np.ndarray, *, centred: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Means and shared covariance, row by row as the paper writes it; not ``centred`` is wrong."""
    means = np.array([x[y == c].mean(0) for c in range(3)])
    covariance = np.zeros((4, 4))
    for row, label in zip(x, y, strict=True):
        away = row - (means[label] if centred else x.mean(0))
        covariance += np.outer(away, away) / len(x)
    return means, covariance


def by_loops(new: np.ndarray, means: np.ndarray, precision: np.ndarray) -> list[float]:
    return [min(mahalanobis(row, mean, precision) ** 2 for mean in means) for row in new]


def test_it_is_the_formula_by_loops():
    (x, y), (new, _) = features(400, 0), features(20, 1)
    means, covariance = class_covariance(x, y)
    found = Mahalanobis(shrinkage=0.0).fit(Inputs(), (x, y)).score(new)
    expected = by_loops(new, means, np.linalg.inv(covariance))
    assert found.numpy() == pytest.approx(expected, rel=1e-8)
    # the problem tells wrong forms: not centred per class, and without the precision's correlations
    for wrong in (class_covariance(x, y, centred=False)[1], np.diag(np.diag(covariance))):
        assert found.numpy() != pytest.approx(by_loops(new, means, np.linalg.inv(wrong)), rel=0.1)


def test_without_labels_it_is_one_gaussian():
    x, new = features(300, 0)[0], features(20, 1)[0]
    centre, covariance = x.mean(0), np.cov(x.T, bias=True)
    expected = by_loops(new, centre[None], np.linalg.inv(covariance))
    assert Mahalanobis(shrinkage=0.0).fit(Inputs(), x).score(new).numpy() == pytest.approx(expected, rel=1e-8)


def test_relative_mahalanobis_is_the_formula_by_loops():
    (x, y), (new, _) = features(400, 0), features(20, 1)
    means, covariance = class_covariance(x, y)
    inside, around = np.linalg.inv(covariance), np.linalg.inv(np.cov(x.T, bias=True))
    expected = [
        min(mahalanobis(row, mean, inside) ** 2 for mean in means) - mahalanobis(row, x.mean(0), around) ** 2
        for row in new
    ]
    found = RelativeMahalanobis(shrinkage=0.0).fit(Inputs(), (x, y)).score(new)
    assert found.numpy() == pytest.approx(expected, rel=1e-8)


def test_the_units_of_features_do_not_matter():
    (x, y), (new, _) = features(60, 0), features(20, 1)
    units = np.array([1e-4, 7.0, 1e5, 0.3])
    for rule in (Mahalanobis(), RelativeMahalanobis(), Mahalanobis(shrinkage=0.3)):
        one, two = (
            rule.fit(Inputs(), (x, y)).score(new),
            rule.fit(Inputs(), (x * units, y)).score(new * units),
        )
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)


def test_the_shrinkage_is_ledoit_and_wolfs_of_the_standardised_residuals_and_is_stated():
    x, y = features(60, 0)
    means, covariance = class_covariance(x, y)
    residuals = (x - means[y]) / np.sqrt(np.diag(covariance))
    oracle = LedoitWolf(assume_centered=True).fit(residuals)
    fitted = Mahalanobis().fit(Inputs(), (x, y))
    assert fitted.gaussians.shrinkage == pytest.approx(oracle.shrinkage_, rel=1e-8)
    new = features(20, 1)[0]
    white = [(row - mean) / np.sqrt(np.diag(covariance)) for row in new for mean in means]
    expected = np.array([w @ np.linalg.inv(oracle.covariance_) @ w for w in white]).reshape(20, 3).min(1)
    assert fitted.score(new).numpy() == pytest.approx(expected, rel=1e-6)
    assert f"shrinkage {oracle.shrinkage_:.3g}" in repr(fitted)


def test_a_singular_covariance_is_an_error_without_shrinkage_and_stated_with_it():
    # trap 44: more features than rows, two equal columns, a constant one. Peers invert it all the same:
    # scores of rounding noise, up to 1e16
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 40))
    x[:, 1], x[:, 2] = x[:, 0], 7.0
    with pytest.raises(ValueError, match="39 features from 30 rows is singular"):
        Mahalanobis(shrinkage=0.0).fit(Inputs(), x)
    fitted = Mahalanobis().fit(Inputs(), x)
    assert 0 < fitted.gaussians.shrinkage < 1
    assert fitted.gaussians.dropped == 1
    assert "1 dropped" in repr(fitted)
    scores = fitted.score(rng.normal(size=(20, 40)))
    assert 1 < float(scores.min()) < float(scores.max()) < 1e4


def test_a_covariance_that_is_singular_but_for_rounding_is_an_error_too():
    # two columns that differ in their eighth digit: the smallest eigenvalue is rounding, of either sign
    rng = np.random.default_rng(0)
    for seed in range(6):
        x = np.random.default_rng(seed).normal(size=(50, 2))
        x[:, 1] = x[:, 0] + 1e-9 * rng.normal(size=50)
        with pytest.raises(ValueError, match="2 features from 50 rows is singular"):
            Mahalanobis(shrinkage=0.0).fit(Inputs(), x)


def planted(rule) -> float:
    """AUROC against rows far off along a direction of little spread, where no single feature is unusual."""
    (x, y), (inside, _) = features(600, 0), features(200, 1)
    covariance = class_covariance(x, y)[1] / np.outer(SCALES, SCALES)
    thin = np.linalg.eigh(covariance)[1][:, 0] * SCALES
    outside = features(200, 2)[0] + 1.5 * thin
    fitted = rule.fit(Inputs(), (x, y))
    scores = torch.cat([fitted.score(inside), fitted.score(outside)]).numpy()
    return auroc(scores, np.repeat([0, 1], 200))


def test_planted_strangeness_along_a_thin_direction_is_found_and_not_without_correlations():
    assert planted(Mahalanobis()) > 0.95
    assert planted(Mahalanobis(shrinkage=1.0)) < 0.8  # the identity: correlations left out


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def test_a_regression_posterior_has_one_gaussian_of_its_features():
    torch.manual_seed(0)
    x = torch.randn(90, 4)
    posterior = sb.MAP(epochs=1).fit(sb.Model(Regression(), sb.Gaussian(noise=1.0)), (x, x[:, 0]))
    fitted = Mahalanobis().fit(posterior, (x, x[:, 0]))
    assert fitted.gaussians.means.shape == (1, 6)
    torch.testing.assert_close(fitted.score(x), Mahalanobis().fit(Penultimate(posterior), x).score(x))


def test_bad_input_is_named():
    x, y = features(50, 0)
    with pytest.raises(ValueError, match="no class numbers; pass X alone"):
        Mahalanobis().fit(Inputs(), (x, y + 0.5))
    with pytest.raises(ValueError, match="at least two classes"):
        RelativeMahalanobis().fit(Inputs(), x)
    with pytest.raises(ValueError, match="no feature varies"):
        Mahalanobis().fit(Inputs(), np.ones((10, 3)))
    with pytest.raises(ValueError, match="got 3 features, fitted on 4"):
        Mahalanobis().fit(Inputs(), x).score(x[:, :3])
    with pytest.raises(ValueError, match="shrinkage must lie in"):
        Mahalanobis(shrinkage=2.0)
    with pytest.raises(TypeError, match=r"Penultimate\(network\) for a network's last"):
        Mahalanobis().fit(nn.Linear(4, 2), x)
