"""Time of a last-layer Laplace approximation of a small CNN, in training epochs of the same network.

    python benchmarks/laplace_last_layer.py [--images 20000] [--rounds 3]

Random images of 28 x 28 in 10 classes: the time does not depend on what they show. Fits and epochs alternate
in one process; as many threads as OMP_NUM_THREADS says. Each fit measures the curvature, the evidence and the
posterior; the one called "evidence" also searches the prior precision.
"""

import argparse
import statistics

import torch
from timing import interleave
from torch import nn

import singularbayes as sb


def cnn() -> nn.Module:
    """Two convolutions, a hidden layer of 128, 10 classes: 215,370 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(options.images, 1, 28, 28), torch.randint(0, 10, (options.images,))
    model = sb.Model(cnn(), sb.Categorical())
    last, evidence = sb.LastLayer(), sb.MarginalLikelihood()
    methods = {
        "one training epoch": sb.MAP(epochs=1),
        "last layer, Kronecker": sb.LaplaceApproximation(subset=last),
        "last layer, diagonal": sb.LaplaceApproximation(subset=last, structure=sb.DiagonalCurvature()),
        "last layer, full": sb.LaplaceApproximation(subset=last, structure=sb.FullCurvature()),
        "last layer, full, evidence": sb.LaplaceApproximation(
            subset=last, structure=sb.FullCurvature(), prior_precision=evidence
        ),
        "all layers, Kronecker": sb.LaplaceApproximation(),
    }
    calls = {name: (lambda method=method: method.fit(model, data)) for name, method in methods.items()}
    times = interleave(calls, options.rounds, warmup=0)
    epoch = statistics.median(times["one training epoch"])
    print(f"{options.images} images, {torch.get_num_threads()} thread(s), torch {torch.__version__}")
    print("| fit | seconds | training epochs |\n|---|---|---|")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"| {name} | {middle:.2f} | {middle / epoch:.2f} |")


if __name__ == "__main__":
    main()
