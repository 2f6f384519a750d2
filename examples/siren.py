"""A SIREN field that knows where it was not measured.

    python examples/siren.py

Sine activations, hidden matrices of rank 8, a mean-field belief over factors and heads: the fit is as sharp
as a SIREN's, and the epistemic variance rises in the gap that holds no points. First-layer frequencies stay a
point estimate: they are the field's scale, and noise on them is noise of phase.
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

import singularbayes as sb


class Sine(nn.Module):
    """``sin(w0 x)``."""

    def __init__(self, w0: float) -> None:
        super().__init__()
        self.w0 = w0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.w0 * x)


def siren(width: int = 64, w0: float = 6.0) -> nn.Sequential:
    """Layers with Sitzmann's start (arXiv 2006.09661, section 3.2)."""
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate([(1, width), (width, width), (width, width), (width, 1)]):
        layer = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if index == 0 else math.sqrt(6 / fan_in) / w0
        nn.init.uniform_(layer.weight, -bound, bound)
        layers += [layer, Sine(w0)] if index < 3 else [layer]
    return nn.Sequential(*layers)


def field(x: Tensor) -> Tensor:
    return torch.sin(9 * x) + 0.5 * torch.cos(17 * x)


def data(rows: int = 160) -> tuple[Tensor, Tensor]:
    """Points on both sides of an empty middle."""
    source = torch.Generator().manual_seed(0)
    side = torch.rand(rows, generator=source) * 0.6 + 0.4
    x = torch.where(torch.rand(rows, generator=source) < 0.5, -side, side)
    return x.unsqueeze(1), field(x) + 0.1 * torch.randn(rows, generator=source)


def build() -> sb.Model:
    torch.manual_seed(0)
    network = sb.factorize(siren(), rank={"2": 8, "4": 8}, init="svd")
    return sb.Model(network, sb.Gaussian(noise=0.1), prior=sb.Normal(1.0), deterministic="0.*")


def main(epochs: int = 1000, batch_size: int = 160, checkpoint: Path | None = None) -> sb.Posterior:
    method = sb.MeanField(epochs=epochs, batch_size=batch_size, learning_rate=3e-3)
    return method.fit(build(), data(), checkpoint=checkpoint)


if __name__ == "__main__":
    posterior = main()
    grid = torch.linspace(-1.4, 1.4, 29).unsqueeze(1)
    predictive = posterior.predict(grid, draws=64)
    for x, mean, variance in zip(grid[:, 0], predictive.mean, predictive.epistemic, strict=True):
        bar = "#" * round(60 * variance.sqrt().item())
        print(
            f"x {x:+.1f}  field {field(x):+.2f}  mean {mean:+.2f}  epistemic std {variance.sqrt():.3f} {bar}"
        )
