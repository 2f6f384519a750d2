"""A belief inside a LightningModule: Lightning's loop, optimizers and checkpoints stay as they are.

    python examples/lightning_module.py

Shows `sb.VariationalModule` as a submodule. `training_step` returns its loss; the draw's number is part of
the checkpoint, so a resumed run goes on to the same numbers.
"""

from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb

ROWS = 128


def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.rand(ROWS, 1, generator=source) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(ROWS, generator=source)


class Regression(lightning.LightningModule):
    """A low-rank network with a belief, and a noise level that is learned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        network = sb.factorize(network, rank={"2": 4})
        model = sb.Model(network, sb.Gaussian(initial_noise=0.5), prior=sb.Normal(1.0))
        self.variational = sb.VariationalModule(model, num_data=ROWS)

    def forward(self, x: Tensor) -> Tensor:
        return self.variational(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return self.variational.objective(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(epochs: int = 60, checkpoint: Path | None = None, resume: Path | None = None) -> Regression:
    """Train; `checkpoint` is written at the end, `resume` is one to go on from."""
    module = Regression()
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(*data()), batch_size=32), ckpt_path=resume)
    if checkpoint is not None:
        trainer.save_checkpoint(checkpoint)
    return module


if __name__ == "__main__":
    trained = main().variational.posterior()
    for place in (0.5, 4.0):
        predictive = trained.predict(torch.tensor([[place]]), draws=64)
        variance = predictive.epistemic.item()
        print(f"x = {place}: {predictive.mean.item():+.2f}, epistemic variance {variance:.4f}")
