"""A small denoising diffusion model that abstains where its denoiser is uncertain.

    python examples/diffusion.py

A low-rank Bayesian network learns to take the noise off points on a ring that lacks its right quarter. After
training, the spread of its noise estimates over posterior draws says how much a place was covered by data:
generated points with the largest spread are refused. The loss is the usual one, as a likelihood: the noise
is Gaussian of variance 1 about the network's estimate.
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

import singularbayes as sb

LEVELS = 50
BETA = torch.linspace(1e-3, 0.2, LEVELS)
KEPT = torch.cumprod(1 - BETA, 0)  # share of the signal's variance at each level


def points(rows: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    angle = math.pi * (0.25 + 1.5 * torch.rand(rows, generator=source))
    ring = torch.stack([angle.cos(), angle.sin()], 1)
    return ring + 0.03 * torch.randn(rows, 2, generator=source)


class Denoiser(nn.Module):
    """The noise in a point ``(B, 2)`` whose level is given as a third column in [0, 1]."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width),
            nn.SiLU(), nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        place, level = x[:, :2], x[:, 2:]
        waves = [torch.sin(math.pi * k * level) for k in (1, 2)] + [torch.cos(math.pi * level), level**2]
        return self.layers(torch.cat([place, level - 0.5, *waves, place.square().sum(1, keepdim=True)], 1))


def noisy(rows: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one batch."""
    level = torch.randint(LEVELS, (len(rows),), generator=source)
    noise = torch.randn(rows.shape, generator=source)
    share = KEPT[level].unsqueeze(1)
    x = share.sqrt() * rows + (1 - share).sqrt() * noise
    return torch.cat([x, level.unsqueeze(1) / LEVELS], 1), noise


def build(num_data: int) -> sb.VariationalModule:
    torch.manual_seed(0)
    network = sb.factorize(Denoiser(), rank={"layers.2": 16, "layers.4": 16})
    model = sb.Model(network, sb.Gaussian(noise=1.0), prior=sb.Normal(1.0))
    return sb.VariationalModule(model, num_data=num_data, initial_std=0.02, temperature=0.02)


def main(
    steps: int = 1500, rows: int = 512, batch_size: int = 256, checkpoint: Path | None = None
) -> sb.VariationalModule:
    train = points(rows)
    module = build(rows)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    done = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        done = saved["step"]
        module.load_state_dict(saved["module"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in range(done, steps):
        source = torch.Generator().manual_seed(step)
        x, noise = noisy(train[torch.randint(rows, (batch_size,), generator=source)], source)
        optimizer.zero_grad()
        module.loss(x, noise).backward()
        optimizer.step()
    if checkpoint is not None:
        state = {"step": steps, "module": module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, checkpoint)
    return module


def spread(posterior: sb.Posterior, x: Tensor, level: int = 5, draws: int = 16) -> Tensor:
    """Epistemic variance of the noise estimate at points ``(B, 2)``, summed over the two coordinates."""
    column = torch.full((len(x), 1), level / LEVELS)
    return posterior.predict(torch.cat([x, column], 1), draws=draws).epistemic.sum(1)


@torch.no_grad()
def generate(posterior: sb.Posterior, rows: int, seed: int = 0) -> Tensor:
    """Points by the reverse chain, with the mean over draws as the noise estimate."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=source)
    for level in reversed(range(LEVELS)):
        column = torch.full((rows, 1), level / LEVELS)
        noise = posterior.predict(torch.cat([x, column], 1), draws=8).mean
        x = (x - BETA[level] / (1 - KEPT[level]).sqrt() * noise) / (1 - BETA[level]).sqrt()
        if level:
            x = x + BETA[level].sqrt() * torch.randn(x.shape, generator=source)
    return x


if __name__ == "__main__":
    trained = main().posterior()
    made = generate(trained, 400)
    uncertain = spread(trained, made)
    distance = torch.cdist(made, points(2000)).min(1).values
    keep = uncertain <= uncertain.quantile(0.8)
    print(f"distance to the data: {distance[keep].mean().item():.3f} of the 80% that are kept, "
          f"{distance[~keep].mean().item():.3f} of the 20% that are refused")  # fmt: skip
    print(f"spread on the data {spread(trained, points(400)).mean().item():.4f}, "
          f"in the missing quarter {spread(trained, torch.tensor([[1.0, 0.0]])).item():.4f}, "
          f"far outside {spread(trained, torch.tensor([[4.0, 4.0]])).item():.4f}")  # fmt: skip
