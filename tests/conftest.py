"""What every test shares: one thread of torch, a headless matplotlib, the folder of data outside the package.

Shapes in the annotations are checked while tests run: `--jaxtyping-packages` in pyproject.toml hooks the
import of singularbayes before any conftest is loaded. Outside of tests nothing is checked.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import matplotlib as mpl
import pytest
import torch

mpl.use("agg")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets: SINGULARBAYES_DATA, else shared/data beside the repository, else a skip."""
    named = os.environ.get("SINGULARBAYES_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        reason = (
            f"SINGULARBAYES_DATA names {named!r}, which is no folder"
            if named
            else "SINGULARBAYES_DATA is not set"
        )
        pytest.skip(f"needs the data sets that are not in the package: {reason}")
    return folder


@pytest.fixture
def unchecked() -> Iterator[None]:
    """No check of annotations during this test: for calls of a wrong type, whose error must be our own."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
