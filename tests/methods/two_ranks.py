"""What each of two processes does for ``test_distributed.py``: ``two_ranks.py RANK FOLDER``."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import singularbayes as sb
from singularbayes.methods import resume
from singularbayes.methods.distributed import Ranks
from singularbayes.methods.learner import PointLearner
from singularbayes.methods.mean_field import MeanFieldLearner

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(53, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])  # batches of 16, 16, 16 and 5
Y = (X[:, 0] + X[:, 1] / 10 > 0).long()


def plain(seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def normed() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def strong() -> sb.Model:
    """A prior so strong that its weight decides."""
    return sb.Model(plain(), sb.Categorical(), prior=sb.Normal(0.1))


def fit(method, model, data=(X, Y), **options):
    return method.fit(model, data, seed=4, progress=False, **options)


MAP, MEAN_FIELD = sb.MAP(epochs=5, batch_size=16), sb.MeanField(epochs=4, batch_size=16)


def message(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def heavier(learner: type) -> None:
    """The mutant: each rank brings the whole KL and they are added."""
    finish = learner.finish
    learner.finish = lambda self, weight, progress: finish(self, weight * Ranks.present().size, progress)


def everything(rank: int, folder: Path) -> dict:
    found: dict = {}
    noises: list[torch.Tensor] = []
    draw = MeanFieldLearner.draw

    def spy(self, noise):
        draw(self, noise)
        noises.append(self.noise.clone())

    MeanFieldLearner.draw = spy
    posterior = fit(MEAN_FIELD, sb.Model(normed(), sb.Categorical()))
    found["mean field"], found["noise"] = posterior.draw(3), noises[0]
    found["buffers"] = {n: b.clone() for n, b in posterior.network.named_buffers()}
    found["history"] = posterior.info["history"]
    for name, data in {
        "tensors": (X, Y),
        "items": TensorDataset(X, Y),
        "loader": DataLoader(TensorDataset(X, Y), batch_size=16),
    }.items():
        found[name] = fit(MAP, strong(), data).draw(1)
    held = (X[:20], Y[:20])
    stopped = sb.MeanField(epochs=20, batch_size=16, patience=2, learning_rate=0.1)
    found["stopped"] = fit(stopped, strong(), validation=held).info["history"]
    saves: list[int] = []
    save = resume.save

    def counted(*args):
        saves.append(1)
        save(*args)

    resume.save = counted
    fit(sb.MeanField(epochs=2, batch_size=16), strong(), checkpoint=folder / "run")
    found["resumed"] = fit(MEAN_FIELD, strong(), checkpoint=folder / "run").draw(2)
    found["unbroken"], found["saves"] = fit(MEAN_FIELD, strong()).draw(2), len(saves)
    found["other network"] = message(lambda: fit(MAP, sb.Model(plain(seed=rank), sb.Categorical())))
    shared = DataLoader(TensorDataset(X, Y), 16, sampler=DistributedSampler(TensorDataset(X, Y)))
    found["shared out"] = message(lambda: fit(MAP, strong(), shared))
    network = normed()
    network[1].running_mean.fill_(2.0 * rank)
    network[1].num_batches_tracked.fill_(rank)
    Ranks.present().average_buffers(network, sb.Model(network, sb.Categorical()).layout)
    found["averaged"] = {name: buffer.clone() for name, buffer in network.named_buffers()}
    heavier(PointLearner)
    found["heavier"] = fit(MAP, strong()).draw(1)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    own, at = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{at / 'meeting'}", rank=own, world_size=2)
    torch.save(everything(own, at), at / f"{own}.pt")
    dist.destroy_process_group()
