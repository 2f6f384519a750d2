"""Two processes under torchrun against the same two ranks worked out in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from singularbayes.methods import variational_module

from .conftest import EXAMPLES
from .elbo import module_loss


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> list[dict[str, dict[str, torch.Tensor]]]:
    """What each rank ended with."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("needs torch with gloo")
    folder = tmp_path_factory.mktemp("distributed")
    script = Path(__file__).with_name("distributed_run.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, str(script), str(EXAMPLES / "distributed.py"), str(folder)]
    source = str(EXAMPLES.parent / "src")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def test_ranks_stay_equal_and_a_resumed_run_equals_an_unbroken_one(states):
    first = states[0]["unbroken"]
    for other in (states[1]["unbroken"], states[0]["resumed"], states[1]["resumed"]):
        for name, value in first.items():
            assert torch.equal(value, other[name]), name
    assert int(first["drawn_count"]) == 4


def by_hand(example, monkeypatch, noise_of=(0, 1), kl_weight: float = 1.0):
    """The run's four steps in one process: each rank's gradient by its own noise, then their mean."""
    module = example.build()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    x, y = example.data()
    for step in range(4):
        optimizer.zero_grad()
        for rank in (0, 1):
            monkeypatch.setattr(variational_module, "_rank", lambda rank=rank: noise_of[rank])
            rows = example.rows_of(step, rank, 2)
            module.drawn_count.fill_(step)
            module.temperature = kl_weight
            loss = module.loss(x[rows], y[rows])
            if kl_weight == 1:
                expected = module_loss(module, x[rows], y[rows], step + 1, noise_of[rank])
                assert loss.item() == pytest.approx(expected, rel=1e-5)
            (loss / 2).backward()
        optimizer.step()
    return module


def test_ranks_draw_different_noise_and_the_kls_weight_does_not_grow(states, example, monkeypatch):
    # trap 28. Peers: Trainers seed each rank alike, so all draw the same noise; a KL that is summed over
    # ranks, or divided by the shard's size, weighs twice as much on two (transformers#31412).
    distributed = example("distributed")
    ran = states[0]["unbroken"]

    def distance(module: nn.Module) -> float:
        return max((getattr(module, name) - ran[name]).abs().max().item() for name in ("mean", "rho"))

    assert distance(by_hand(distributed, monkeypatch)) < 1e-5
    assert distance(by_hand(distributed, monkeypatch, noise_of=(0, 0))) > 1e-3  # the mutants
    assert distance(by_hand(distributed, monkeypatch, kl_weight=2.0)) > 1e-3
