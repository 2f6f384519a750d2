"""HMC and NUTS on posteriordb: means and mean squares within 4 combined standard errors.

All 11 posteriors have 2 x 68 comparisons for each method: a right sampler exceeds 4 standard errors somewhere
by chance in .9% of worlds. Full runs with a table: ``benchmarks/posteriordb.py``.
"""

from pathlib import Path

import pytest
import torch
from reference_posteriors import POSTERIORS, compare, expectations

import singularbayes as sb

pytestmark = pytest.mark.usefixtures("unchecked")  # annotations take most of the time otherwise
QUICK = {("gp_pois_regr-gp_regr", "HMC"), ("eight_schools-eight_schools_noncentered", "NUTS")}
METHODS = {
    "HMC": sb.HMC(warm_up=150, draws=150, max_steps=16),
    "NUTS": sb.NUTS(warm_up=150, draws=150, max_depth=4),
}


CASES = [(name, method) for name in POSTERIORS for method in METHODS]


@pytest.mark.parametrize(
    ("name", "method"), [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES]
)
@pytest.mark.filterwarnings("ignore:chain")  # a few divergences are no fault of the sampler
def test_expectations_are_the_references(database: Path, name: str, method: str) -> None:
    posterior = POSTERIORS[name](database)
    start = posterior.start(16, torch.Generator().manual_seed(1))
    settings = METHODS[method] if (name, method) in QUICK else getattr(sb, method)(draws=300)
    samples = sb.sample(posterior.log_density, start, settings, seed=0, progress=False)
    found = compare(posterior.values(samples.draws), expectations(posterior, database))
    assert found.agrees, (found.worst_mean, found.worst_square, found.r_hat.max())
