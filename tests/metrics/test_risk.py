"""Error detection and selective risk."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from singularbayes import metrics


def test_errors_and_successes_are_positive_in_turn():
    rng = np.random.default_rng(0)
    wrong = rng.random(500) < 0.15
    uncertainty = np.round(rng.normal(size=500) + wrong, 1)
    assert metrics.error_average_precision(uncertainty, wrong) == pytest.approx(
        average_precision_score(wrong, uncertainty), abs=1e-12
    )
    assert metrics.success_average_precision(uncertainty, wrong) == pytest.approx(
        average_precision_score(~wrong, -uncertainty), abs=1e-12
    )


def test_without_signal_they_are_the_error_rate_and_the_accuracy():
    wrong = np.array([1, 0, 0, 0])
    assert metrics.error_average_precision(np.zeros(4), wrong) == 0.25
    assert metrics.success_average_precision(np.zeros(4), wrong) == 0.75


@pytest.mark.parametrize("metric", [metrics.error_average_precision, metrics.success_average_precision])
def test_no_errors_is_nan_with_a_warning_that_names_the_metric(metric):
    with pytest.warns(UserWarning, match=metric.__name__):
        assert np.isnan(metric([0.1, 0.2], [0, 0]))


def test_selective_risk_ends_at_the_mean_loss_and_falls_with_a_good_order():
    curve = metrics.selective_risk([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1])
    assert curve.risk.tolist() == [0, 0, 0, 0.25]
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.area == 0.0625
    bad = metrics.selective_risk([0.4, 0.3, 0.2, 0.1], [0, 0, 0, 1])
    assert bad.area > curve.area
    assert bad.risk[-1] == curve.risk[-1]


def test_selective_risk_does_not_depend_on_the_order_of_tied_rows():
    uncertainty, loss = np.array([0, 0, 1, 1]), np.array([1.0, 0.0, 0.0, 1.0])
    forward = metrics.selective_risk(uncertainty, loss)
    backward = metrics.selective_risk(uncertainty[::-1], loss[::-1])
    np.testing.assert_array_equal(forward.risk, backward.risk)
    assert forward.risk.tolist() == [0.5] * 4


@pytest.mark.parametrize("rows", [1, 9, 400])
def test_the_area_is_the_mean_of_the_curve_with_tied_rows_at_their_mean_loss(rows):
    rng = np.random.default_rng(rows)
    uncertainty = np.round(rng.gamma(0.3, size=rows), 1)  # badly scaled, many ties at 0
    loss = 1000 * rng.random(rows) ** 4
    order = np.argsort(uncertainty, kind="stable")
    tied = np.array([loss[uncertainty == u].mean() for u in uncertainty])[order]
    curve = [tied[: k + 1].mean() for k in range(rows)]
    assert metrics.selective_risk_area(uncertainty, loss) == pytest.approx(np.mean(curve), rel=1e-12)
    found = metrics.selective_risk(uncertainty, loss) if np.ptp(uncertainty) else None
    assert found is None or found.area == pytest.approx(found.risk.mean(), rel=1e-12)


def test_a_good_order_has_the_smaller_area_and_the_reverse_order_the_larger():
    loss = np.arange(50) >= 40
    up, down = (metrics.selective_risk_area(sign * np.arange(50.0), loss) for sign in (1, -1))
    assert up < loss.mean() < down
