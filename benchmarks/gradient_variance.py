"""Variance of a step's gradient under each estimator of MeanField, and what it saves a step and a second.

    python benchmarks/gradient_variance.py --out gradient_variance.json

The gradient of one fixed batch at the start and after some epochs of training, over many draws, on the digits
in the package; means and rhos apart. ``per step``: total variance over DRAW's. ``per second``: that times the
ratio of the step times, what counts when the saved time is spent on more steps. ``two halves`` is the cheaper
form of antithetic draws: the mirrored draw sees the other half of the batch.
"""

import argparse
import functools
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from timing import interleave, ratio
from torch import Tensor, nn

import singularbayes as sb
from singularbayes import Gradient
from singularbayes.methods.learner import prepare
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.methods.training import Run


class Halves(Run):
    """Each mirrored draw on one half of the batch."""

    def _pass(self, x: Any, y: Tensor, checked: bool) -> Tensor:
        self.half = 1 - getattr(self, "half", 1)
        middle = len(y) // 2
        part = slice(None, middle) if self.half == 0 else slice(middle, None)
        return super()._pass(x[part], y[part], checked)


def run_of(network: nn.Module, x: Tensor, y: Tensor, gradient: Gradient, kind: type[Run] = Run) -> Run:
    method = sb.MeanField(gradient=gradient, kl=sb.KL.BOUND, batch_size=len(x))
    model = sb.Model(network, sb.Categorical(), prior=sb.ScaleMixture())
    data = prepare(model, None, (x, y), None, model.device)
    return kind(model, method, BuildMeanField(method), data, model.device, 0)


def variances(run: Run, batches: list[tuple[Tensor, Tensor]], numbers: int) -> tuple[float, float]:
    """Total variance over draws AND batches of the gradient for the means, and for the rhos."""
    step, run.optimizer.step = run.optimizer.step, lambda *_: None  # type: ignore[method-assign]
    noise = torch.Generator().manual_seed(1)
    rows = []
    for x, y in batches:
        run.step(x, y, 1 / 1797, 1.0, noise)
        rows.append(run.learner.gradient.clone())
    run.optimizer.step = step  # type: ignore[method-assign]
    total = torch.stack(rows).var(0)
    return total[:numbers].sum().item(), total[numbers:].sum().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--steps", type=int, default=600, help="of training before the second look")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    warnings.filterwarnings("ignore", "the rank saves no parameters")
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    full = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    order = torch.Generator().manual_seed(2)

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(x), (64,), generator=order)
        return x[rows], y[rows]

    fixed = batch()
    table = []
    for name, net in {"low rank 8": sb.factorize(full, rank=8), "full rank": full}.items():
        kinds = {
            "draw": run_of(net, *fixed, Gradient.DRAW),
            "local": run_of(net, *fixed, Gradient.LOCAL),
            "antithetic": run_of(net, *fixed, Gradient.ANTITHETIC),
            "two halves": run_of(net, *fixed, Gradient.ANTITHETIC, Halves),
        }
        noise = torch.Generator().manual_seed(3)
        calls = {key: functools.partial(run.step, *fixed, 1 / 1797, 1.0, noise) for key, run in kinds.items()}
        times = interleave(calls, arguments.rounds)
        trained = run_of(net, *fixed, Gradient.DRAW)
        start = trained.learner.vector.clone()
        for _ in range(arguments.steps):
            trained.step(*batch(), 1 / 1797, 1.0, noise)
        for when, vector in {"start": start, "trained": trained.learner.vector.clone()}.items():
            for what, batches in {
                "one batch": [fixed] * arguments.draws,
                "new batches": [batch() for _ in range(arguments.draws)],
            }.items():
                seen = {}
                for key, run in kinds.items():
                    run.learner.vector.data.copy_(vector)
                    seen[key] = variances(run, batches, run.model.layout.trained)
                for key, (means, rhos) in seen.items():
                    cost = ratio(times, key, "draw").value
                    saved = means / seen["draw"][0], rhos / seen["draw"][1]
                    row = {"net": name, "when": when, "over": what, "gradient": key, "step time": cost}
                    for part, value in zip(("means", "rhos"), saved, strict=True):
                        row |= {f"{part} per step": value, f"{part} per second": value * cost}
                    table.append(row)
    head = f"{'net':11s} {'when':8s} {'over':12s} {'gradient':11s} {'time':>5s}"
    print(f"{head}   means, rhos per step   per second")
    for row in table:
        head = f"{row['net']:11s} {row['when']:8s} {row['over']:12s} {row['gradient']:11s}"
        steps = f"{row['means per step']:8.3f} {row['rhos per step']:8.3f}"
        seconds = f"{row['means per second']:8.3f} {row['rhos per second']:8.3f}"
        print(f"{head} {row['step time']:5.2f}   {steps}     {seconds}")
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
