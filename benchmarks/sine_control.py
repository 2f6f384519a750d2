"""The 1-D control: does a full-rank mean-field variance fall with distance, and a low-rank one rise?

    python benchmarks/sine_control.py --out build/bench/sine.json [--seeds 10] [--epochs 400]

Trained on [-2, 2], looked at on [4, 6] and [-6, -4]. Per seed, activation and posterior: A (AUROC by
epistemic variance), B (ratio of mean epistemic variance, OOD over test), C (coverage of nominal 95%
intervals, test and OOD), the Spearman correlation of variance with |x| on 2 <= |x| <= 6, and the test NLL.
Finished rows are kept: a killed run goes on.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import nn

import singularbayes as sb
from singularbayes import checkpoint
from singularbayes.metrics import auroc
from singularbayes.random import forked
from singularbayes.recipes.data import sine
from singularbayes.recipes.recipe import mlp

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
PRIORS = {"normal": sb.Normal(1.0), "mixture": sb.ScaleMixture()}


def candidates(epochs: int) -> dict[str, tuple[Any, Any, Any]]:
    """Name -> (rank or None, prior, method)."""
    common = {"epochs": epochs, "batch_size": 32, "learning_rate": 5e-3}
    found: dict[str, tuple[Any, Any, Any]] = {
        "ensemble": (None, PRIORS["normal"], sb.DeepEnsemble(member=sb.MAP(**common)))
    }
    for prior_name, prior in PRIORS.items():
        for temperature in (1.0, 0.1):
            method = sb.MeanField(**common, temperature=temperature)
            for name, rank in (("full rank", None), ("rank 4", 4)):
                found[f"{name}, {prior_name} prior, T {temperature:g}"] = (rank, prior, method)
    return found


def measure(seed: int, activation: str, rank: Any, prior: Any, method: Any) -> dict[str, float]:
    splits = sine.load(seed=seed)
    with forked(seed, "start"):
        network = mlp(1, 64, 64, 1, activation=ACTIVATIONS[activation])
        network = network if rank is None else sb.factorize(network, rank=rank)
    posterior = method.fit(sb.Model(network, sb.Gaussian(noise=0.1), prior=prior), splits.train, seed=seed)
    test = posterior.predict(splits.test[0], draws=200)
    outside = np.concatenate([x for x, _ in splits.ood.values()])
    labels = np.concatenate([y for _, y in splits.ood.values()]).ravel()
    far = posterior.predict(outside, draws=200)
    inside_var, far_var = test.epistemic.numpy(), far.epistemic.numpy()
    at = np.concatenate([np.linspace(2, 6, 40), np.linspace(-6, -2, 40)]).astype(np.float32)
    along = posterior.predict(at[:, None], draws=200).epistemic.numpy()

    def coverage(predictive: Any, y: np.ndarray) -> float:
        low, high = predictive.interval(0.95).numpy()
        return float(((y >= low) & (y <= high)).mean())

    y = torch.as_tensor(splits.test[1]).ravel()
    positive = np.r_[np.zeros(len(inside_var), int), np.ones(len(far_var), int)]
    return {
        "A": auroc(np.concatenate([inside_var, far_var]), positive),
        "B": float(far_var.mean() / inside_var.mean()),
        "C test": coverage(test, y.numpy()),
        "C OOD": coverage(far, labels),
        "Spearman": float(spearmanr(np.abs(at), along)[0]),
        "NLL": -test.log_prob(y).mean().item(),
        "seconds": posterior.info["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/sine.json"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else []
    done = {(r["activation"], r["posterior"], r["seed"], r["epochs"]) for r in kept}
    for seed in range(arguments.seeds):
        for activation in ACTIVATIONS:
            for name, (rank, prior, method) in candidates(arguments.epochs).items():
                if (activation, name, seed, arguments.epochs) in done:
                    continue
                row = measure(seed, activation, rank, prior, method)
                kept.append(
                    {
                        "activation": activation,
                        "posterior": name,
                        "seed": seed,
                        "epochs": arguments.epochs,
                        **row,
                    }
                )
                date = time.strftime("%Y-%m-%d")
                about = {"machine": platform.machine(), "torch": torch.__version__, "date": date}
                checkpoint.write_json(arguments.out, {**about, "rows": kept})
    table = (
        pd.DataFrame(kept).drop(columns=["seed", "epochs"]).groupby(["activation", "posterior"], sort=False)
    )
    summary = table.mean().round(3).astype(str) + " +- " + table.sem().round(3).astype(str)
    print(summary.to_string())


if __name__ == "__main__":
    main()
