"""The targets with known expectations live in benchmarks/, for the script there and for the tests here."""

import importlib.util
import sys
from pathlib import Path

import pytest
from arviz_stats.base import array_stats  # noqa: F401 - its import takes a second, which no test should be charged

PACKAGE = Path(__file__).resolve().parents[3] / "benchmarks" / "reference_posteriors"

if PACKAGE.name not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        PACKAGE.name, PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE.name])


@pytest.fixture(scope="session")
def database(shared_data: Path) -> Path:
    folder = shared_data / "posteriordb"
    if not folder.is_dir():
        pytest.skip(f"needs posteriordb's draws in {folder}")
    return folder
