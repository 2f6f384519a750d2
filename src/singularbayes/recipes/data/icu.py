"""Death in hospital from the first 48 hours of an ICU stay: PhysioNet / CinC Challenge 2012.

Train is set a, validation set b, test set c. Stays in the cardiac surgery recovery unit (ICUType 2) are taken
out of all three: those of set c are the near OOD set (with labels), those of set b serve for choices, those
of set a are not used. The far OOD set is the test set with each feature permuted apart across stays: every
feature keeps its distribution, but no row is a person any more.

The data are not in the package. To get them: download set-a, set-b and set-c and their Outcomes files from
https://physionet.org/content/challenge-2012/1.0.0/ (open access, Open Data Commons Attribution License v1.0)
into one folder, unpack them, and run `python -m singularbayes.recipes.data.icu_summary FOLDER`, which writes
the table that `load(FOLDER)` reads. This is for research, not for the care of patients.

References:
    I. Silva et al. (2012), Computing in Cardiology 39:245-248; A. L. Goldberger et al. (2000), Circulation
    101:e215.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from singularbayes.recipes.data import icu_table
from singularbayes.recipes.data.splits import Features, Labelled, MaybeLabelled, Splits

FEATURES = (
    "Age", "Gender", "Height", "Weight_mean",
    "GCS_mean", "GCS_min", "GCS_max", "GCS_last",
    "HR_mean", "HR_min", "HR_max", "HR_last",
    "NISysABP_mean", "NISysABP_min", "NISysABP_last", "SysABP_mean", "SysABP_min",
    "Temp_mean", "Temp_min", "Temp_max",
    "Urine_mean", "Urine_last",
    "BUN_mean", "BUN_last", "Creatinine_mean", "Creatinine_last",
    "Na_mean", "K_mean", "Mg_mean", "HCO3_mean", "HCO3_min", "Glucose_mean", "Glucose_max",
    "HCT_mean", "Platelets_mean", "WBC_mean", "WBC_max",
    "pH_mean", "PaO2_mean", "PaCO2_mean", "FiO2_mean", "Lactate_mean", "Lactate_last", "Bilirubin_max",
)  # fmt: skip
"""The 44 inputs: age, sex, size; consciousness, circulation, temperature, kidneys, blood, breathing. Chosen
by what the usual severity scores look at and by how often it was measured, never by the outcome."""

STATIC = FEATURES[:4]
"""Known on admission; a stay with values of these alone was not measured and is left out."""

FORBIDDEN = ("record_id", "set", "ICUType", "SAPS_I", "SOFA", "Length_of_stay", "Survival", "death")
"""Never an input: outcomes, ready-made scores, and what names the stay, its set or the held-out unit."""

LIMITS = {
    "Age": (15, 120), "Gender": (0, 1), "Height": (100, 230), "Weight": (20, 300), "GCS": (3, 15),
    "HR": (20, 300), "NISysABP": (20, 300), "SysABP": (20, 300), "Temp": (25, 45), "Urine": (0, 5000),
    "BUN": (0.5, 300), "Creatinine": (0.05, 30), "Na": (90, 200), "K": (1, 15), "Mg": (0.3, 15),
    "HCO3": (2, 60), "Glucose": (10, 2000), "HCT": (5, 75), "Platelets": (1, 3000), "WBC": (0.05, 1000),
    "pH": (6.5, 8), "PaO2": (15, 700), "PaCO2": (5, 200), "FiO2": (0.21, 1), "Lactate": (0.05, 50),
    "Bilirubin": (0.05, 100),
}  # fmt: skip
"""Closed range of the possible, by series, in the source's units (cm, kg, per minute, mmHg, deg C, ml, mg/dl,
...)."""

SURGERY_UNIT = 2
PERCENTILES = (0.1, 99.9)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What train says about each feature; arrays of shape (44,) in the source's units."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    median: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def load(folder: str | Path, seed: int = 0) -> Splits:
    """The ICU recipe's data: X (n, 44) float32 in train's standard deviations, y int64, 1 = died in hospital.

    Args:
        folder: holds `summary.csv.xz`, itself or in a subfolder `icu_physionet2012`.
        seed: seed of the far OOD permutation.

    Returns:
        Splits with `ood` and `ood_validation` sets "near" (with labels) and "far" (without).

    Raises:
        FileNotFoundError: no table there; the line says where it was looked for and how to get it.
        ValueError: the table is broken; the line says the file, and the row and column where there is one.
    """
    path = icu_table.find(folder)
    return from_table(icu_table.read(path, FEATURES), seed, source=str(path))


def from_table(table: pd.DataFrame, seed: int = 0, *, source: str = "the table") -> Splits:
    """Divide, clean, impute and standardise a table of stays, with statistics from train alone.

    X = (impute(clip(v, p.1, p99.9), median) - mean) / std, where v is nan outside of `LIMITS`.

    Stays without a single measurement are left out: imputed whole, they would be equal rows in several sets.

    Args:
        table: columns `set`, `ICUType`, `death` and the 44 features, nan or -1 where missing.
        seed: seed of the far OOD permutation.
        source: name of the table in messages.

    Raises:
        ValueError: a set has no stays, or a feature has no spread in train.
    """
    raw = table.loc[:, list(FEATURES)].to_numpy(np.float64)
    cleaned = mark_missing(raw)
    surgery = (table["ICUType"] == SURGERY_UNIT).to_numpy()
    measured = ~np.isnan(cleaned[:, len(STATIC) :]).all(axis=1)
    rows = {
        "train": (table["set"] == "a").to_numpy() & ~surgery,
        "validation": (table["set"] == "b").to_numpy() & ~surgery,
        "test": (table["set"] == "c").to_numpy() & ~surgery,
        "near OOD": (table["set"] == "c").to_numpy() & surgery,
        "near OOD for choices": (table["set"] == "b").to_numpy() & surgery,
    }
    dropped = {name: int((chosen & ~measured).sum()) for name, chosen in rows.items()}
    rows = {name: chosen & measured for name, chosen in rows.items()}
    for name, chosen in rows.items():
        if not chosen.any():
            raise ValueError(
                f"{source}: got no stays for {name}, expected sets a, b and c with units 1, 2, 3 and 4"
            )
    statistics = fit(cleaned[rows["train"]], source)
    labels = table["death"].to_numpy(np.int64)
    sets: dict[str, Labelled] = {
        name: (standardise(cleaned[chosen], statistics), labels[chosen]) for name, chosen in rows.items()
    }
    streams = np.random.SeedSequence(seed).spawn(2)
    ood: dict[str, MaybeLabelled] = {
        "near": sets["near OOD"],
        "far": (permute_features(sets["test"][0], np.random.default_rng(streams[0])), None),
    }
    ood_validation: dict[str, MaybeLabelled] = {
        "near": sets["near OOD for choices"],
        "far": (permute_features(sets["validation"][0], np.random.default_rng(streams[1])), None),
    }
    return Splits(
        train=sets["train"],
        validation=sets["validation"],
        test=sets["test"],
        ood=ood,
        ood_validation=ood_validation,
        feature_names=FEATURES,
        class_names=("survived", "died"),
        notes=_notes(raw, cleaned, labels, rows, dropped, statistics, seed),
    )


def mark_missing(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put nan for -1, the source's "unknown", and for values outside of `LIMITS`; (n, 44) to (n, 44)."""
    low, high = np.array([LIMITS[name.split("_")[0]] for name in FEATURES]).T
    possible = (raw != -1) & (raw >= low) & (raw <= high)
    return np.where(possible, raw, np.nan)


def fit(train: NDArray[np.float64], source: str = "the table") -> Statistics:
    """Limits, medians, means and standard deviations of the training stays, (n, 44) with nan where missing.

    Raises:
        ValueError: a feature was never measured in train, or has a single value there.
    """
    measured = ~np.isnan(train).all(axis=0)
    if not measured.all():
        name = FEATURES[int(np.argmin(measured))]
        raise ValueError(
            f"{source}: column {name}: got no possible value in train, expected measurements there"
        )
    low, high = np.nanpercentile(train, PERCENTILES, axis=0)
    clipped = np.clip(train, low, high)
    median = np.nanmedian(clipped, axis=0)
    filled = np.where(np.isnan(clipped), median, clipped)
    std = filled.std(axis=0)
    constant = filled.min(axis=0) == filled.max(axis=0)
    if constant.any():
        name = FEATURES[int(np.argmax(constant))]
        raise ValueError(f"{source}: column {name}: got one value in all of train, expected a spread")
    return Statistics(low=low, high=high, median=median, mean=filled.mean(axis=0), std=std)


def standardise(values: NDArray[np.float64], statistics: Statistics) -> Features:
    """Winsorise, impute and standardise (n, 44) values with train's statistics."""
    clipped = np.clip(values, statistics.low, statistics.high)
    filled = np.where(np.isnan(clipped), statistics.median, clipped)
    return ((filled - statistics.mean) / statistics.std).astype(np.float32)


def permute_features(features: Features, rng: np.random.Generator) -> Features:
    """Permute every column on its own: the same values in each feature, in other company."""
    return rng.permuted(features, axis=0)


def _notes(
    raw: NDArray[np.float64],
    cleaned: NDArray[np.float64],
    labels: NDArray[np.int64],
    rows: dict[str, NDArray[np.bool_]],
    dropped: dict[str, int],
    statistics: Statistics,
    seed: int,
) -> tuple[str, ...]:
    notes = []
    for name, chosen in rows.items():
        values = cleaned[chosen]
        impossible = np.isnan(values) & ~np.isnan(raw[chosen]) & (raw[chosen] != -1)
        beyond = (values < statistics.low) | (values > statistics.high)
        notes.append(
            f"{name}: {chosen.sum():,} stays, {labels[chosen].sum():,} deaths (base rate "
            f"{labels[chosen].mean():.4f}); {np.isnan(values).sum():,} of {values.size:,} cells imputed "
            f"({np.isnan(values).mean():.1%}), of which {impossible.sum():,} held impossible values; "
            f"{beyond.sum():,} cells moved to a limit."
        )
    share = np.isnan(cleaned[rows["train"]]).mean(axis=0)
    most = ", ".join(
        f"{FEATURES[column]} {share[column]:.0%}" for column in np.argsort(-share, kind="stable")[:6]
    )
    return (
        (
            "Train is set a, validation set b, test set c, all without the cardiac surgery recovery unit "
            "(ICUType 2)."
        ),
        *notes,
        "Left out, since none of the 40 measured features has a value: "
        + ", ".join(f"{count} of {name}" for name, count in dropped.items())
        + ".",
        f"Imputed most often in train: {most}.",
        (
            "Train alone fixed the limits (percentiles .1 and 99.9), the medians imputed, the means and the "
            "standard deviations of the 44 features."
        ),
        (
            f"Far OOD: {rows['test'].sum():,} test stays with each feature permuted apart across stays (seed "
            f"{seed}); for choices, {rows['validation'].sum():,} validation stays likewise."
        ),
        (
            "Near OOD for choices is the same hospital unit as the scored near OOD, with other stays: "
            "results on near OOD are those of someone who knows the kind of shift to expect."
        ),
        "Stays are distinct; whether one patient has stays in two sets is not recorded.",
        (
            "Licence: Open Data Commons Attribution License v1.0. Cite Silva et al., Computing in Cardiology "
            "39 (2012) 245-248, and Goldberger et al., Circulation 101 (2000) e215."
        ),
    )
