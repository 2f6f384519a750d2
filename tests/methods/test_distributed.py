"""A fit by two processes: equal ranks, different noise, the KL's weight, one writer."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import singularbayes as sb

PROGRAM = Path(__file__).with_name("two_ranks.py")


def module():
    spec = importlib.util.spec_from_file_location("two_ranks", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


two_ranks = module()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What both ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": str(Path(sb.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM)]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_ranks_draw_different_noise_and_stay_bitwise_equal(ranks):
    # trap 28: peers seed every rank alike (one draw for the price of two) or drift apart
    one, two = ranks
    assert not torch.equal(one["noise"], two["noise"])
    assert torch.equal(one["mean field"], two["mean field"])
    assert one["history"] == two["history"]
    assert all(torch.equal(buffer, two["buffers"][name]) for name, buffer in one["buffers"].items())


@pytest.mark.parametrize("data", ["tensors", "items", "loader"])
def test_two_ranks_take_the_steps_of_one(ranks, data):
    # also the last, uneven batch of 5 rows; the prior's weight does not grow with the ranks
    alone = two_ranks.fit(
        two_ranks.MAP,
        two_ranks.strong(),
        {
            "tensors": (two_ranks.X, two_ranks.Y),
            "items": two_ranks.TensorDataset(two_ranks.X, two_ranks.Y),
            "loader": two_ranks.DataLoader(two_ranks.TensorDataset(two_ranks.X, two_ranks.Y), batch_size=16),
        }[data],
    ).draw(1)
    for rank in ranks:
        torch.testing.assert_close(rank[data], alone, atol=2e-5, rtol=0)
    # the mutant: the KL added over the ranks
    assert (ranks[0]["heavier"] - alone).abs().max() > 1e-3


def test_running_statistics_are_averaged_and_other_buffers_are_the_first_ranks(ranks):
    for rank in ranks:
        assert torch.equal(rank["averaged"]["1.running_mean"], torch.ones(8))  # of 0 and 2
        assert torch.equal(rank["averaged"]["1.running_var"], torch.ones(8))
        assert rank["averaged"]["1.num_batches_tracked"] == 0


def test_the_ranks_stop_together(ranks):
    assert ranks[0]["stopped"] == ranks[1]["stopped"]
    assert len(ranks[0]["stopped"]) < 20


def test_the_first_rank_alone_writes_and_all_go_on_from_it(ranks):
    assert ranks[0]["saves"] > 0
    assert ranks[1]["saves"] == 0
    for rank in ranks:
        assert torch.equal(rank["resumed"], rank["unbroken"])


def test_ranks_that_fit_different_things_are_refused_together(ranks):
    for rank in ranks:
        assert "rank 1 has another network, data, settings, seed" in rank["other network"]
        assert "DistributedSampler" in rank["shared out"]


def test_one_process_fits_as_before():
    posterior = two_ranks.fit(two_ranks.MAP, two_ranks.strong())
    assert posterior.info["ranks"] == 1
