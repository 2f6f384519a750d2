"""Made-up evaluations: no network is trained, and the numbers mean nothing beyond the page's layout."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singularbayes.diagnosis import Criterion, Diagnosis
from singularbayes.evaluation import Evaluation, SetArrays
from singularbayes.metrics import Interval
from singularbayes.report import (
    Entry,
    Field,
    Panel,
    Report,
    correlation_pictures,
    method_styles,
    standard_panels,
    uncertainty_by_distance,
    variance_field,
)

NAN = math.nan


def around(value: float, half: float = 0.02) -> Interval:
    return Interval(value, value - half, value + half)


def share(value: float, half: float) -> Interval:
    return Interval(min(value, 1.0), max(value - half, 0.0), min(value + half, 1.0))


def ranking(auroc: float, half: float = 0.02) -> dict:
    return {
        "auroc": share(auroc, half),
        "average_precision_out": share(auroc - 0.1, half),
        "average_precision_in": share(auroc + 0.02, half),
        "fpr95": share(1 - auroc, half),
    }


def arrays(rng, n: int, shift: float, gap: float, labelled: bool = True) -> SetArrays:
    """n cases of three classes, log uncertainty moved by `shift`, confidence `gap` too high."""
    top = rng.uniform(0.4, 1.0, n)
    mean = np.stack([top, 0.6 * (1 - top), 0.4 * (1 - top)], 1)
    right = rng.uniform(size=n) < np.clip(top - gap, 0, 1)
    return SetArrays(
        scores={
            "mutual_information": np.exp(rng.normal(-3 + shift, 0.7, n)),
            "entropy": rng.uniform(0, 1, n),
        },
        labels=np.zeros(n) if labelled else None,
        mean=mean,
        variance=None,
        error=1.0 - right if labelled else None,
    )


def classifier(name: str, near: float, far: float, *, gap=0.0, half=0.02, seed=0) -> Evaluation:
    rng = np.random.default_rng(seed + 17)
    metrics = {
        "accuracy": around(0.9 + 0.01 * near, 0.012),
        "negative_log_likelihood": around(0.35 - 0.1 * near, 0.03),
        "brier": around(0.16, 0.01),
        "expected_calibration_error": around(0.02 + gap, 0.008),
        "error_average_precision": around(0.45),
        "success_average_precision": around(0.97),
    }
    ood = {
        set_: {"mutual_information": ranking(a, half), "entropy": ranking(a - 0.03, half)}
        for set_, a in (("near", near), ("far", far))
    }
    sets = {
        "test": arrays(rng, 900, 0.0, gap),
        "near": arrays(rng, 400, 6 * (near - 0.5), gap),
        "far": arrays(rng, 300, 6 * (far - 0.5), gap, labelled=False),
    }
    return Evaluation(
        name=name,
        task="categorical",
        metrics=metrics,
        ood=ood,
        sets=sets,
        seed=seed,
        draws=64,
        bootstrap=200,
        info={},
        ood_metrics={"near": {**metrics, "brier": Interval(NAN, NAN, NAN)}},
        prevalence={"near": 400 / 1300, "far": 0.25},
    )


def regressor(name: str, auroc: float, coverage: float, *, seed=0) -> Evaluation:
    rng = np.random.default_rng(seed + 3)

    def cases(n: int, scale: float) -> SetArrays:
        y = rng.normal(size=n)
        mean = y + rng.normal(size=n)
        return SetArrays(
            scores={
                "epistemic_variance": scale * rng.gamma(2, 1, n),
                "total_variance": 1 + rng.gamma(2, 1, n),
            },
            labels=y,
            mean=mean,
            variance=np.full(n, coverage**4),
            error=np.abs(y - mean),
        )

    return Evaluation(
        name=name,
        task="gaussian",
        metrics={
            "rmse": around(41.25, 1.5),
            "mae": around(30.1, 1.2),
            "negative_log_likelihood": around(5.123, 0.1),
            "crps": around(22.5, 1),
            "interval_coverage": around(coverage, 0.01),
            "interval_width": around(1.5e5, 2e3),
            "regression_calibration_error": around(0.04),
        },
        ood={"far": {"epistemic_variance": ranking(auroc), "total_variance": ranking(auroc - 0.05)}},
        sets={"test": cases(500, 1.0), "far": cases(300, 3.0)},
        seed=seed,
        draws=64,
        bootstrap=200,
        info={},
        ood_metrics={},
        prevalence={"far": 0.375},
    )


def diagnosis(near: float, far: float, gap: float = 0.0) -> Diagnosis:
    def criteria(a: float, labelled: bool) -> tuple[Criterion, ...]:
        word = "inverted: the model is MORE certain on it than on test data" if a < 0.48 else "a signal"
        c = (
            mass("test")
            if labelled
            else Criterion("C", "mass", NAN, NAN, NAN, "it has no labels", "not measured")
        )
        return (
            Criterion("A", "ranking", a, a - 0.02, a + 0.02, word, "good" if a > 0.6 else "poor"),
            Criterion("B", "scale", 9 * a**3, 8 * a**3, 10 * a**3, "the mean uncertainty is larger", "good"),
            c,
        )

    def mass(name: str) -> Criterion:
        said = f"on {name} it is 84% sure on average and right in 82% of cases"
        status = "poor" if gap > 0.03 else "good"
        return Criterion("C", "mass (calibration error)", 0.02 + gap, 0.01 + gap, 0.03 + gap, said, status)

    rank = Criterion(
        "A", "uncertainty against error (Spearman)", 0.31, 0.27, 0.35, "more uncertain where wrong", "good"
    )
    return Diagnosis(
        name="made up",
        score="mutual_information",
        criteria={"near": criteria(near, True), "far": criteria(far, False)},
        in_distribution=(mass("test"), rank),
        median_ratio={"near": around(1.5), "far": around(2.5)},
        prevalence={"near": 400 / 1300, "far": 0.25},
    )


@pytest.fixture
def make_classifier():
    return classifier


@pytest.fixture
def make_regressor():
    return regressor


@pytest.fixture
def make_entry():
    def entry(name: str, near: float, far: float, *, gap=0.0, half=0.02, seeds=1, numbers=21_890) -> Entry:
        evaluations = tuple(
            classifier(name, near + 0.004 * s, far - 0.003 * s, gap=gap, half=half, seed=s)
            for s in range(seeds)
        )
        found = diagnosis(near, far, gap)
        return Entry(
            name=name, evaluations=evaluations, diagnosis=found, numbers=numbers, seconds=12.3 * (near + 0.2)
        )

    return entry


@pytest.fixture
def sample_report(make_entry) -> Report:
    """A whole page: five methods, three seeds, all kinds of figures."""
    entries = [
        make_entry("full-rank mean field", 0.61, 0.42, gap=0.14, numbers=87_780, seeds=3),
        make_entry("rank 15 mean field", 0.79, 0.94, seeds=3),
        make_entry("deep ensemble (5)", 0.77, 0.91, gap=0.02, numbers=219_450, seeds=3),
        make_entry("MC dropout", 0.66, 0.81, gap=0.04, numbers=43_890, seeds=3),
        make_entry("SWAG", 0.7, 0.5, seeds=3, numbers=965_580),
    ]
    styles = method_styles([e.name for e in entries])
    rng = np.random.default_rng(0)
    distance = rng.gamma(3, 1, 800)
    a = rng.normal(size=(24, 3))
    low = a @ a.T
    low = low / np.sqrt(np.outer(np.diag(low), np.diag(low)))
    x = np.linspace(-3, 7, 201)
    fields = {
        "full-rank mean field": Field(mean=np.sin(x), total_std=0.3 + 0 * x, epistemic_std=0.1 - 0.005 * x),
        "rank 15 mean field": Field(
            mean=np.sin(x), total_std=np.hypot(0.3, 0.05 + 0.1 * np.abs(x) ** 1.5),
            epistemic_std=0.05 + 0.1 * np.abs(x) ** 1.5,
        ),
    }  # fmt: skip
    train_x = rng.uniform(-2, 2, 60)
    extra = [
        Panel(
            title="Uncertainty against distance from the training set",
            caption="A useful curve climbs to the right; bands run from the lower to the upper quartile.",
            figure=uncertainty_by_distance(
                distance,
                {e.name: np.exp(rng.normal(0, 0.4, 800) + k * 0.2 * distance) for k, e in enumerate(entries)},
                styles=styles,
            ),
        ),
        Panel(
            title="Which weights move together",
            caption="White means independent weights; coloured blocks are what low rank adds.",
            figure=correlation_pictures({"full rank": np.eye(24), "rank 3": low}),
        ),
        Panel(
            title="The variance field of the 1-D control",
            caption="In the shaded region there are no training points: the inner band should open there.",
            figure=variance_field(
                x,
                fields,
                train=(train_x, np.sin(train_x) + rng.normal(0, 0.3, 60)),
                unfamiliar=[(4.0, 6.0)],
                styles=styles,
            ),
        ),
    ]
    return Report(
        title="Does the model know when it does not know?",
        recipe="icu: mortality after 48 hours, made-up numbers",
        about={
            "Machine": "2 cores, 8 GB",
            "Versions": "singularbayes 0.1, torch 2.13.0, Python 3.12",
        },
        entries=entries,
        diagnoses={entries[0].name: entries[0].diagnosis},
        figures=[*standard_panels(entries), *extra],
        notes=["Data: made up. Licence: none needed.", "The set “far” has no labels."],
        command="singularbayes run icu --method mean_field --rank 15 --seeds 3 --out runs/icu",
    )


@pytest.fixture
def regression_report(make_regressor) -> Report:
    entries = [
        Entry(name=n, evaluations=(make_regressor(n, a, c),), diagnosis=None, numbers=4417, seconds=NAN)
        for n, a, c in (("full rank", 0.38, 0.95), ("rank 4", 0.99, 0.81))
    ]
    return Report(
        title="Air",
        recipe="beijing",
        about={},
        entries=entries,
        figures=standard_panels(entries),
        command="x",
    )
