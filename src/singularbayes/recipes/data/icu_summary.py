"""Make the table of ICU stays from PhysioNet's text files: one row a stay, five columns a series.

    python -m singularbayes.recipes.data.icu_summary FOLDER

FOLDER holds the unpacked set-a, set-b and set-c (one text file a stay, lines `hh:mm,Parameter,Value`) and
Outcomes-a.txt, Outcomes-b.txt, Outcomes-c.txt. Written is FOLDER/summary.csv.xz.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pandas as pd

from singularbayes.recipes.data.icu_table import FILE_NAME

STATIC = ("Age", "Gender", "Height", "ICUType")
SERIES = tuple(
    "ALP ALT AST Albumin BUN Bilirubin Cholesterol Creatinine DiasABP FiO2 GCS Glucose HCO3 HCT HR K "  # noqa: SIM905
    "Lactate MAP MechVent Mg NIDiasABP NIMAP NISysABP Na PaCO2 PaO2 Platelets RespRate SaO2 SysABP Temp "
    "TroponinI TroponinT Urine WBC Weight pH".split()
)
OUTCOMES = {
    "SAPS-I": "SAPS_I", "SOFA": "SOFA", "Length_of_stay": "Length_of_stay", "Survival": "Survival",
    "In-hospital_death": "death",
}  # fmt: skip


def write(folder: str | Path) -> Path:
    """Summarise every stay under `folder` and write the table there, whole or not at all.

    Raises:
        FileNotFoundError: a set or an outcomes file is not there.
        ValueError: a line or an outcome is not of the expected form; the message names file and row.
    """
    root = Path(folder).expanduser()
    rows: list[dict[str, object]] = []
    for letter in "abc":
        outcomes, stays = root / f"Outcomes-{letter}.txt", root / f"set-{letter}"
        for needed in (outcomes, stays):
            if not needed.exists():
                raise FileNotFoundError(
                    f"{needed} not found, expected PhysioNet's file or unpacked folder; get it from "
                    "https://physionet.org/content/challenge-2012/1.0.0/"
                )
        results = pd.read_csv(outcomes)
        absent = [name for name in ("RecordID", *OUTCOMES) if name not in results.columns]
        if absent or not pd.api.types.is_integer_dtype(results["RecordID"]):
            raise ValueError(
                f"{outcomes}: got columns {', '.join(results.columns)}, expected whole RecordID and "
                f"{', '.join(OUTCOMES)}; load the file anew"
            )
        for result in results.rename(columns=OUTCOMES).to_dict("records"):
            number = int(result.pop("RecordID"))
            rows.append({"record_id": number, "set": letter} | summarise(stays / f"{number}.txt") | result)
    target, partial = root / FILE_NAME, root / f".{FILE_NAME}.partial"
    pd.DataFrame(rows).to_csv(partial, index=False, compression="xz")
    partial.replace(target)
    return target


def summarise(stay: Path) -> dict[str, object]:
    """Statics, and mean, min, max, last and count of each series of one stay.

    Means have 5 significant digits, at most 4 of them decimals. -1 in statics and a Weight of 0 or less are
    the source's "unknown" and are left out. Of several values at one minute the last line counts as the last.
    Lines without a parameter name, which the source has, are passed over.
    """
    if not stay.is_file():
        raise FileNotFoundError(f"{stay} not found, expected the text file of this stay; unpack the set anew")
    values: dict[str, list[tuple[int, float]]] = {name: [] for name in (*STATIC, *SERIES)}
    for row, line in enumerate(stay.read_text(encoding="utf-8-sig").splitlines()[1:], start=2):
        if not line.strip():
            continue
        try:
            time, name, text = line.split(",")
            hours, minutes = time.split(":")
            minute, value = int(hours) * 60 + int(minutes), float(text)
        except ValueError:
            raise ValueError(f"{stay}: row {row}: got {line!r}, expected hh:mm,Parameter,Value") from None
        unknown = (value == -1 and name in STATIC) or (value <= 0 and name == "Weight")
        if name in values and math.isfinite(value) and not unknown:
            values[name].append((minute, value))
    summary: dict[str, object] = {name: values[name][-1][1] if values[name] else None for name in STATIC}
    for name in SERIES:
        series = [value for _, value in sorted(values[name], key=lambda pair: pair[0])]
        mean = round(float(f"{sum(series) / len(series):.5g}"), 4) if series else None
        ends = (min(series), max(series), series[-1]) if series else (None, None, None)
        summary |= dict(
            zip(
                (f"{name}_{part}" for part in ("mean", "min", "max", "last", "n")),
                (mean, *ends, len(series)),
                strict=True,
            )
        )
    return summary


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m singularbayes.recipes.data.icu_summary FOLDER\n")
        sys.exit(2)
    try:
        sys.stdout.write(f"{write(sys.argv[1])}\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
