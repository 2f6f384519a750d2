"""Which sampler starts best from an ensemble: equal gradients, judged on validation rows.

    python benchmarks/ensemble_sampler.py --data FOLDER [--sets energy yacht] [--splits 2] [--members 4]

The network, prior and members of ``ensemble_chains.py``. A chain starts at each member; every kernel has the
same number of gradients on all training rows for each chain, warm-up included (HMC and NUTS: as many steps as
they can be sure to pay for; the column says what they took). Log predictive density is of the VALIDATION
rows, in nats, y in standard deviations of the train part: what is chosen here has not seen the test rows.
``R-hat`` is the median over the validation rows' predictive means of that of a chain alone: whether it has
settled. Prints Markdown.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ensemble_chains import MEMBER, model_of

import singularbayes as sb
from singularbayes.methods.chains_fit import fit_chains
from singularbayes.recipes.data import uci

BUDGET = 6000  # gradients of each chain
KERNELS = {
    "MCLMC, warm-up 1000, thin 2": sb.MCLMC(warm_up=1000, draws=1000, thin=2),
    "MCLMC, warm-up 100, thin 2": sb.MCLMC(warm_up=100, draws=1450, thin=2),
    "HMC, warm-up 100, 8 steps": sb.HMC(warm_up=100, draws=650, max_steps=8),
    "HMC, warm-up 100, 32 steps": sb.HMC(warm_up=100, draws=87, max_steps=32),
    "HMC, warm-up 375, 8 steps": sb.HMC(warm_up=375, draws=375, max_steps=8),
    "NUTS, warm-up 90, depth 5": sb.NUTS(warm_up=90, draws=100, max_depth=5),
}


def judged(posterior: sb.Posterior, splits: Any) -> dict[str, float]:
    curve = sb.chains.cumulative_log_density(posterior, splits.validation)
    means = sb.chains.predictions(posterior, splits.validation[0])
    return {
        "log density": curve.pooled[-1].item(),
        "mean of one chain": curve.by_chain[:, -1].mean().item(),
        "R-hat": float(np.nanmedian(sb.chains.rhat_by_chain(means))),
        "gradients": float(np.mean(posterior.info["gradients"])),
        "acceptance": float(np.mean(posterior.info["acceptance"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--sets", nargs="*", choices=list(uci.SETS), default=["energy", "yacht"], metavar="SET"
    )
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--members", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| set | split | sampler | log density | mean of one chain | R-hat | gradients | acceptance | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.sets:
        for split in range(arguments.splits):
            splits = uci.load(arguments.data, name, split)
            model = model_of(splits.train[0].shape[1], split)
            ensemble = sb.DeepEnsemble(members=arguments.members, member=MEMBER)
            started = ensemble.fit(model, splits.train, seed=split)
            rows = started.distribution.draws
            x, y = splits.validation
            alone = started.predict(x).log_prob(torch.as_tensor(y)).mean().item()
            print(f"| {name} | {split} | the ensemble alone | {alone:.3f} |  |  |  |  |  |", flush=True)
            for label, kernel in KERNELS.items():
                began = time.process_time()
                chains = fit_chains(
                    kernel, model, splits.train, seed=split, checkpoint=None, progress=False, rows=rows
                )
                seconds = time.process_time() - began
                cells = [f"{value:.3f}" for value in judged(chains, splits).values()]
                print(f"| {name} | {split} | {label} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
