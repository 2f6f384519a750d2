"""PAC-Bayes bound, predictive and OOD measures against rank: where full rank is vacuous and low rank is not.

    python benchmarks/bound_against_rank.py digits icu mnist beijing --data FOLDER --out build/bench/ranks

Each network is trained to the quadratic bound under a prior that is centred at its random start (which has no
data in it), and certified on its whole training set: 0-1 loss, for Beijing the squared error clipped at
``LIMIT`` units of the recipe's label (fixed beforehand). The ranks are those of the paper's LSTM. Finished
fits are kept: the same command goes on. McAllester's bound is shown before it is cut at 1, to see where it
crosses.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import singularbayes as sb
from singularbayes import theory
from singularbayes.metrics import auroc
from singularbayes.provenance import DataSketch
from singularbayes.random import derive
from singularbayes.recipes import ALL
from singularbayes.recipes.recipe import mlp

RANKS = (1, 2, 4, 8, 11, 15, 22, 0)  # 0: full rank
LIMIT = 2.0  # in the units of the recipe's label, which has a standard deviation of about 1
EPOCHS = {"digits": 300, "icu": 60, "mnist": 20, "beijing": 20}


def mnist(folder: Path) -> dict[str, Any]:
    def read(name: str, part: str) -> np.ndarray:
        found = np.load(folder / name)[f"x_{part}"]
        return ((found.reshape(len(found), -1) / 255 - 0.1307) / 0.3081).astype(np.float32)

    labels = np.load(folder / "mnist/mnist.npz")
    return {
        "train": (read("mnist/mnist.npz", "train"), labels["y_train"].astype(np.int64)),
        "test": (read("mnist/mnist.npz", "test"), labels["y_test"].astype(np.int64)),
        "ood": read("notmnist/notmnist_10k.npz", "test")[:5000],
    }


def task(name: str, folder: Path | None) -> tuple[dict[str, Any], nn.Module, sb.Categorical, Any]:
    """Data, full-rank network, likelihood, loss."""
    if name == "mnist":
        assert folder is not None
        return mnist(folder), mlp(784, 256, 256, 10), sb.Categorical(), theory.ZeroOne()
    recipe = ALL[name]
    splits = recipe.load(folder, 0)
    data = {"train": splits.train, "test": splits.test, "ood": next(iter(splits.ood.values()))[0]}
    network = recipe.plans["MAP"].network()
    if name == "beijing":
        for key in ("test", "ood"):  # 64 draws of an LSTM on all windows would take longer than the fit
            data[key] = tuple(p[:3000] for p in data[key]) if key == "test" else data[key][:3000]
        return data, network, sb.Gaussian(noise=0.3), theory.ClippedLoss(LIMIT)
    return data, network, recipe.likelihood, theory.ZeroOne()


def measure(name: str, rank: int, given: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    torch.manual_seed(derive(given.seed, name) % 2**31)
    data, network, likelihood, loss = task(name, given.data)
    if given.rows:
        data["train"] = tuple(part[: given.rows] for part in data["train"])
    if rank:
        narrowest = {
            path: min(m.weight.shape) for path, m in network.named_modules() if isinstance(m, nn.Linear)
        }
        ranks = {path: min(rank, most) for path, most in narrowest.items() if most > 1}
        network = sb.factorize(network, rank={**ranks, **({"lstm": rank} if name == "beijing" else {})})
    start = sb.Model(network, likelihood)
    mean = start.layout.flatten(network)[: start.layout.belief]
    prior = sb.Centred(mean, torch.full_like(mean, given.prior_std), DataSketch(0, ()))
    model = sb.Model(network, likelihood, prior=prior)
    trained = loss if isinstance(loss, theory.ClippedLoss) else theory.BoundedCrossEntropy(1e-4)
    method = sb.PACBayes(
        epochs=given.epochs or EPOCHS[name],
        batch_size=256,
        learning_rate=2e-3,
        loss=trained,
        delta=given.delta,
    )
    posterior = method.fit(model, data["train"], seed=given.seed, progress=False)
    options = {"prior": prior, "draws": given.draws, "subset": 1000, "loss": loss, "seed": given.seed}
    found = theory.certify(posterior, data["train"], given.delta, **options)
    loose = theory.McAllester().value(found.empirical_upper, found.kl, found.n, found.delta)
    test, far = (posterior.predict(x, draws=64) for x in (data["test"][0], data["ood"]))
    y = torch.as_tensor(data["test"][1])
    scores = [each.epistemic.reshape(-1).numpy() for each in (test, far)]
    truth = np.repeat([0, 1], [len(each) for each in scores])
    mean = test.mean
    shared = {"task": name, "rank": rank or "full", "numbers": posterior.info["numbers"], "kl": found.kl}
    quality = (
        {"mae": (mean.reshape(-1) - y.reshape(-1)).abs().mean().item()}
        if isinstance(loss, theory.ClippedLoss)
        else {
            "accuracy": ((mean.argmax(-1) if mean.dim() > 1 else (mean > 0.5).long()) == y)
            .double()
            .mean()
            .item()
        }
    )
    return {
        **shared, **quality, "empirical": found.empirical, "bound": found.risk, "mcallester": loose,
        "nll": -test.log_prob(y).double().mean().item(),
        "auroc_ood": float(auroc(np.concatenate(scores), truth)), "seconds": time.perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=list(EPOCHS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/bench/bound_against_rank"))
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="0: full rank")
    parser.add_argument("--prior-std", type=float, default=0.1, help="about the random start")
    parser.add_argument("--delta", type=float, default=0.025)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--rows", type=int, help="training rows, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in given.tasks:
        for rank in given.ranks:
            place = given.out / f"{name}-{rank}-{given.prior_std:g}-{given.seed}.json"
            if not place.exists():
                place.write_text(json.dumps(measure(name, rank, given)), encoding="utf-8")
            rows.append(json.loads(place.read_text(encoding="utf-8")))
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(given.out / "bound_against_rank.csv", index=False)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


if __name__ == "__main__":
    main()
