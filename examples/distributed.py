"""Data-parallel training with torch's own DistributedDataParallel.

    torchrun --nproc_per_node=2 examples/distributed.py

Shows that `sb.VariationalModule` needs nothing special: each process draws its own noise (so more processes
mean a better estimate), one flat gradient is averaged, and every process keeps the same numbers. `num_data`
counts the examples of all processes together: the KL's weight does not grow with their number.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import singularbayes as sb

ROWS = 256


def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 8, generator=source)
    return x, torch.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * torch.randn(ROWS, generator=source)


def build() -> sb.VariationalModule:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    network = sb.factorize(network, rank={"2": 8})
    model = sb.Model(network, sb.Gaussian(noise=0.1), prior=sb.Normal(1.0))
    return sb.VariationalModule(model, num_data=ROWS)


def rows_of(step: int, rank: int, world: int, batch_size: int = 32) -> Tensor:
    """This process's rows of the step: every process takes other ones."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(step))
    return order[rank::world][:batch_size]


def main(steps: int = 200, checkpoint: Path | None = None) -> sb.VariationalModule:
    """One process of the run; the process group is there."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = data()
    module = build()
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    done = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        done = saved["step"]
        module.load_state_dict(saved["module"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in range(done, steps):
        rows = rows_of(step, rank, world)
        optimizer.zero_grad()
        outputs = parallel(x[rows])  # through the wrapper, which averages the gradients
        loss = module.objective(outputs, y[rows])
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    if checkpoint is not None and rank == 0:
        state = {"step": steps, "module": module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, checkpoint)
    dist.barrier()
    return module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trained = main()
    if dist.get_rank() == 0:
        near, far = (
            trained.posterior().predict(s * data()[0], draws=64).epistemic.mean() for s in (1.0, 4.0)
        )
        print(f"epistemic variance {near.item():.4f}, four times as far out {far.item():.4f}")
    dist.destroy_process_group()
