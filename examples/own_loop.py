"""A training loop of your own: any optimizer, KL warm-up, checkpoints that resume to the same numbers.

    python examples/own_loop.py

Shows `sb.VariationalModule` on handwritten digits: an ordinary module, trained as any other, that becomes a
posterior at the end.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import singularbayes as sb


def data() -> tuple[Tensor, Tensor]:
    """1,797 digits of 8 x 8 pixels, scaled to [0, 1]."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


def build(num_data: int) -> sb.VariationalModule:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    network = sb.factorize(network, rank={"0": 16, "2": 16})
    return sb.VariationalModule(
        sb.Model(network, sb.Categorical(), prior=sb.Normal(1.0)), num_data=num_data, initial_std=0.05
    )


def main(steps: int = 400, batch_size: int = 64, checkpoint: Path | None = None) -> sb.VariationalModule:
    x, y = data()
    module = build(len(x))
    optimizer = torch.optim.Adam(module.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    parts = {"module": module, "optimizer": optimizer, "schedule": schedule}
    done = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        done = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    for step in range(done, steps):
        order = torch.Generator().manual_seed(step)  # the batch follows from the step: nothing else to save
        rows = torch.randint(len(x), (batch_size,), generator=order)
        module.temperature = min(1.0, (step + 1) / 100)
        optimizer.zero_grad()
        loss = module.loss(x[rows], y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, KL {module.kl().item():.0f} nats")
    if checkpoint is not None:
        torch.save({"step": steps, **{name: part.state_dict() for name, part in parts.items()}}, checkpoint)
    return module


if __name__ == "__main__":
    predictive = main().posterior().predict(data()[0], draws=32)
    right = (predictive.mean.argmax(1) == data()[1]).float().mean().item()
    print(f"on the digits that it was trained on: accuracy {right:.3f}, "
          f"mean mutual information {predictive.epistemic.mean().item():.4f} nats")  # fmt: skip
