"""A selective state-space (Mamba-type) classifier becomes a low-rank Bayesian one in one line.

    python examples/state_space.py

The block is plain torch: no layer knows of beliefs. `sb.factorize` gives its four projections low-rank
factors; what decides the dynamics (`A_log`, `D`, the convolution) stays a point estimate. One draw is one
recurrence, for the whole sequence. Task: which of four marked values came last; shifted inputs are new.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import singularbayes as sb


class SelectiveStateSpace(nn.Module):
    """Mamba's block (arXiv 2312.00752, algorithm 2), with the scan written out.

    h_t = exp(d_t A) h_(t-1) + d_t B_t x_t,    y_t = C_t h_t + D x_t,    d, B, C functions of the input
    """

    def __init__(self, width: int, state: int = 8, inner: int = 32) -> None:
        super().__init__()
        self.state, self.inner = state, inner
        self.in_proj = nn.Linear(width, 2 * inner)
        self.conv = nn.Conv1d(inner, inner, kernel_size=3, groups=inner, padding=2)
        self.select_proj = nn.Linear(inner, 2 * state)
        self.step_proj = nn.Linear(inner, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x, gate = self.in_proj(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        B, C = self.select_proj(x).chunk(2, -1)
        step = F.softplus(self.step_proj(x))
        decay = torch.exp(step.unsqueeze(-1) * -self.A_log.exp())
        drive = (step * x).unsqueeze(-1) * B.unsqueeze(2)
        h, ys = torch.zeros_like(drive[:, 0]), []
        for t in range(length):
            h = decay[:, t] * h + drive[:, t]
            ys.append((h * C[:, t].unsqueeze(1)).sum(-1))
        return self.out_proj((torch.stack(ys, 1) + self.D * x) * F.silu(gate))


class Classifier(nn.Module):
    """Two residual blocks; the last step is classified."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.read = nn.Linear(2, width)
        self.blocks = nn.ModuleList([SelectiveStateSpace(width), SelectiveStateSpace(width)])
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(x[:, -1])


def data(rows: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Channel 0 holds values, channel 1 marks some; the label is the last marked value."""
    source = torch.Generator().manual_seed(seed)
    values = torch.randint(4, (rows, 14), generator=source)
    marks = torch.rand(rows, 14, generator=source) < 0.2
    marks[:, 2] = True
    last = 13 - marks.flip(1).int().argmax(1)
    x = torch.stack([(values - 1.5) / 1.5, marks.float()], -1)
    x = x + 0.05 * torch.randn(x.shape, generator=source) + shift
    return x, values.gather(1, last.unsqueeze(1))[:, 0]


def build() -> sb.Model:
    torch.manual_seed(0)
    network = sb.factorize(
        Classifier(), rank={"*in_proj": 12, "*out_proj": 12, "*select_proj": 8, "*step_proj": 4}
    )
    points = ["*A_log", "*.D", "*conv*", "*norms*"]
    return sb.Model(network, sb.Categorical(), prior=sb.Normal(1.0), deterministic=points)


def main(
    epochs: int = 40, rows: int = 512, batch_size: int = 64, checkpoint: Path | None = None
) -> sb.Posterior:
    method = sb.MeanField(epochs=epochs, batch_size=batch_size, learning_rate=5e-3, initial_std=0.05)
    return method.fit(build(), data(rows, 0), checkpoint=checkpoint)


if __name__ == "__main__":
    posterior = main()
    for name, shift in (("as trained", 0.0), ("shifted by 0.3", 0.3)):
        x, y = data(256, 1, shift)
        predictive = posterior.predict(x, draws=16)
        right = (predictive.mean.argmax(1) == y).float().mean().item()
        information = predictive.epistemic.mean().item()
        print(f"{name}: accuracy {right:.3f}, mean mutual information {information:.4f} nats")
