"""The loop: thinning, resuming to the same numbers, chains that never accept, warnings, progress."""

import dataclasses
import math
import shutil
import warnings

import pytest
import torch

import singularbayes as sb
from singularbayes.sampling import journal as journal_module
from singularbayes.sampling import run as run_module
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.run import ChainsStuck, run
from singularbayes.sampling.target import AutogradTarget

pytestmark = pytest.mark.usefixtures("unchecked")  # annotations take most of the time
SCALE = torch.tensor([1.0, 0.1], dtype=torch.float64)
START = torch.tensor([[0.5, 0.0], [-1.0, 0.1], [2.0, -0.1]], dtype=torch.float64)
METHOD = sb.HMC(warm_up=30, draws=12, thin=2)  # one window, steps 4 to 25


def normal(q):
    return -0.5 * (q / SCALE).square().sum(1)


class Interrupted:
    """The density, until a number of calls: then an exception, once."""

    def __init__(self, at, error=KeyboardInterrupt, before=None):
        self.left, self.error, self.before = at, error, before

    def __call__(self, q):
        self.left -= 1
        if self.left == 0:
            if self.before:
                self.before()
            raise self.error("stop")
        return normal(q)


def sampled(density=normal, method=METHOD, **settings):
    return sb.sample(density, START, method, seed=3, **settings)


def assert_equal(first, second):
    """Bit for bit, with all that is said of the steps."""
    assert torch.equal(first.draws, second.draws)
    assert torch.equal(first.log_density, second.log_density)
    for part in ("statistics", "warm_up"):
        for name, tensor in getattr(first, part).tensors().items():
            assert torch.equal(tensor, getattr(getattr(second, part), name)), name
    assert first.facts.keys() == second.facts.keys()
    assert all(torch.equal(first.facts[name], second.facts[name]) for name in first.facts)
    assert {**first.info, "seconds": 0} == {**second.info, "seconds": 0}


@pytest.fixture(scope="module")
def whole():
    """Without an interruption."""
    counted = Interrupted(-1)
    samples = sampled(counted)
    return samples, -1 - counted.left


def test_draws_are_every_so_manyth_step_and_all_steps_are_told_of(whole):
    samples, calls = whole
    fine = sampled(method=sb.HMC(warm_up=30, draws=24))
    assert torch.equal(samples.draws, fine.draws[:, 1::2])
    assert torch.equal(samples.log_density, fine.log_density[:, 1::2])
    assert torch.equal(samples.statistics.energy_error, fine.statistics.energy_error)
    assert samples.statistics.acceptance.shape == (3, 24)
    assert samples.warm_up.acceptance.shape == (3, 30)
    torch.testing.assert_close(samples.log_density, normal(samples.draws.flatten(0, 1)).reshape(3, 12))
    assert samples.info["draws_per_chain"] == 12
    assert calls > 54


def test_the_seed_alone_decides(whole):
    before = torch.random.get_rng_state()
    assert_equal(sampled(), whole[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    with warnings.catch_warnings(action="ignore"):  # so short a warm-up is not always enough
        assert not torch.equal(sb.sample(normal, START, METHOD, seed=4).draws, whole[0].draws)


# Trap 48: an interrupted run goes on to the same numbers, bit for bit


@pytest.mark.parametrize("share", [0.03, 0.3, 0.55, 0.8, 0.99])
def test_an_interrupted_run_goes_on_to_the_same_numbers(whole, tmp_path, share):
    """In warm-up, in draws, in the middle of a trajectory: wherever the call falls."""
    with pytest.raises(KeyboardInterrupt) as caught:
        sampled(Interrupted(int(share * whole[1])), checkpoint=tmp_path)
    assert "the same call goes on from there" in caught.value.__notes__[0]
    assert_equal(sampled(checkpoint=tmp_path), whole[0])
    assert_equal(sampled(checkpoint=tmp_path), whole[0])  # a finished run is read


def test_a_target_that_fails_leaves_what_was_kept(whole, tmp_path):
    with pytest.raises(ZeroDivisionError):
        sampled(Interrupted(int(0.9 * whole[1]), ZeroDivisionError), checkpoint=tmp_path)
    again = Interrupted(-1)
    assert_equal(sampled(again, checkpoint=tmp_path), whole[0])
    assert -1 - again.left < 0.5 * whole[1]


@pytest.mark.parametrize(("share", "blocks"), [(0.4, 5), (0.99, 40)])
def test_a_killed_run_goes_on_from_its_last_save(whole, tmp_path, monkeypatch, share, blocks):
    """A copy of the folder in the middle of a step is what a kill leaves."""
    monkeypatch.setattr(run_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_SAVE_SHARE", 0.0)
    stop = Interrupted(
        int(share * whole[1]), before=lambda: shutil.copytree(tmp_path / "run", tmp_path / "killed")
    )
    with pytest.raises(KeyboardInterrupt):
        sampled(stop, checkpoint=tmp_path / "run")
    assert len(list((tmp_path / "killed").glob("block*.json"))) > blocks
    assert_equal(sampled(checkpoint=tmp_path / "killed"), whole[0])
    assert not list((tmp_path / "killed").glob(".*"))  # no half-written file


@pytest.mark.parametrize("stem", ["block00040", "chains"])
def test_a_save_that_fails_half_way_is_made_up_for(whole, tmp_path, monkeypatch, stem):
    """After a block but before the state that counts it, and before the block."""
    monkeypatch.setattr(run_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_SAVE_SHARE", 0.0)
    write, seen = journal_module.checkpoint.write_pair, []

    def failing(folder, name, tensors, content):
        seen.append(name)
        if seen.count(stem) == 45 or (stem != "chains" and name == stem and seen.count(stem) == 1):
            seen.extend([stem] * 99)
            raise KeyboardInterrupt
        write(folder, name, tensors, content)

    monkeypatch.setattr(journal_module.checkpoint, "write_pair", failing)
    with pytest.raises(KeyboardInterrupt):
        sampled(checkpoint=tmp_path)
    monkeypatch.setattr(journal_module.checkpoint, "write_pair", write)
    assert_equal(sampled(checkpoint=tmp_path), whole[0])


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(tmp_path):
    """Before, a run of less than 5 seconds was lost at its end."""
    (tmp_path / "file").write_text("")
    counted = Interrupted(-1)
    with pytest.raises(OSError, match=r"folder .*file cannot be written to; choose another one \("):
        sampled(counted, checkpoint=tmp_path / "file")
    assert -1 - counted.left < 20


def test_a_save_that_fails_loses_no_draw(whole, tmp_path, monkeypatch):
    """Before, a full disk ended a run, and hid the error that had ended it."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module.checkpoint, "write_pair", full)
    with pytest.warns(UserWarning, match=r"could not be saved in .*No space left"):
        assert_equal(sampled(checkpoint=tmp_path), whole[0])
    with (
        pytest.warns(UserWarning, match=r"could not be saved in .*No space left"),
        pytest.raises(ZeroDivisionError) as caught,
    ):
        sampled(Interrupted(int(0.9 * whole[1]), ZeroDivisionError), checkpoint=tmp_path)
    assert not hasattr(caught.value, "__notes__")


def test_chains_that_never_moved_stop_the_same_call_again(tmp_path):
    """Before, a stuck run that had ended was read as if it were one."""
    method = sb.HMC(warm_up=0, draws=20, step_size=0.1, trajectory=0.1, mass=UnitMass())
    for _ in range(2):
        with pytest.raises(ChainsStuck, match="chain 0 never accepted a proposal in 20 steps"):
            sb.sample(wall, torch.zeros(1, 2, dtype=torch.float64), method, checkpoint=tmp_path)


def test_a_checkpoint_of_nearly_the_same_density_is_refused(whole, tmp_path):
    sampled(checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"log density at the start of chain 1 was -1, now -0.9999\."):
        sampled(lambda q: normal(q) + 1e-4 * (q[:, 0] == -1), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"its chains are torch.float64, these torch.float32\."):
        sb.sample(normal, START.float(), METHOD, seed=3, checkpoint=tmp_path)


def test_a_finished_run_takes_more_draws_but_not_fewer(whole, tmp_path):
    short = sampled(method=sb.HMC(warm_up=30, draws=5, thin=2), checkpoint=tmp_path)
    assert torch.equal(short.draws, whole[0].draws[:, :5])
    assert_equal(sampled(checkpoint=tmp_path), whole[0])
    with pytest.raises(ValueError, match="holds 12 draws of each chain, more than draws=5; ask for"):
        sampled(method=sb.HMC(warm_up=30, draws=5, thin=2), checkpoint=tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    sampled(checkpoint=tmp_path)
    other = sb.HMC(warm_up=30, draws=12, thin=2, target_acceptance=0.9)
    for call in (
        lambda: sampled(method=other, checkpoint=tmp_path),
        lambda: sampled(method=sb.HMC(warm_up=30, draws=12), checkpoint=tmp_path),
        lambda: sb.sample(normal, START, METHOD, seed=4, checkpoint=tmp_path),
        lambda: sb.sample(normal, START + 1, METHOD, seed=3, checkpoint=tmp_path),
        lambda: sb.sample(normal, START[:2], METHOD, seed=3, checkpoint=tmp_path),
        lambda: sampled(lambda q: 2 * normal(q), checkpoint=tmp_path),
        lambda: run(
            METHOD.sampler(),
            AutogradTarget(normal, 2),
            START,
            warm_up=30,
            draws=12,
            thin=2,
            seed=3,
            checkpoint=tmp_path,
            progress=None,
            label="HMC",
            mark="other data",
        ),
    ):
        with pytest.raises(ValueError, match="holds a checkpoint of another run"):
            call()


# Bad chains


def wall(q):
    """No density outside a box narrower than a step; chains that start at more than 1 are free."""
    return torch.where((q[:, 0] < 0.9) & (q.abs().amax(1) > 1e-6), -torch.inf, normal(q))


def test_chains_of_which_none_accepts_stop_with_what_was_kept(tmp_path):
    method = sb.HMC(warm_up=0, draws=500, step_size=0.1, trajectory=0.1, mass=UnitMass())
    start = torch.zeros(2, 2, dtype=torch.float64)
    message = r"chains 0, 1 never accepted a proposal in 100 steps \(mean acceptance 0, 200 divergent\); they"
    with pytest.raises(ChainsStuck, match=message) as caught:
        sb.sample(wall, start, method, checkpoint=tmp_path)
    kept = caught.value.samples
    assert kept.draws.shape == (2, 100, 2)
    assert kept.info["never_accepted"] == [0, 1]
    assert kept.statistics.divergent.all()
    assert (tmp_path / "chains.json").is_file()


def test_chains_stuck_in_warm_up_are_named_before_any_draw():
    method = sb.HMC(warm_up=120, draws=10, step_size=0.1, trajectory=0.1)
    with pytest.raises(ChainsStuck, match="chain 0 never accepted a proposal in 120 steps") as caught:
        sb.sample(wall, torch.zeros(1, 2, dtype=torch.float64), method)
    assert caught.value.samples.draws.shape == (1, 0, 2)
    assert caught.value.samples.warm_up.acceptance.shape == (1, 120)


def test_a_chain_that_never_accepts_is_named_and_the_others_are_kept():
    method = sb.HMC(warm_up=0, draws=40, step_size=0.02, trajectory=0.1, mass=UnitMass())
    start = torch.tensor([[4.0, 0.0], [0.0, 0.0], [4.5, 0.1]], dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        samples = sb.sample(wall, start, method)
    assert len(caught) == 1
    assert str(caught[0].message).startswith("chain 1 never accepted a proposal after warm-up")
    assert samples.stuck.tolist() == [False, True, False]
    assert samples.info["never_accepted"] == [1]


def test_a_low_acceptance_warns_of_its_chains():
    """Trap 40: peers said nothing at an acceptance near 0."""
    method = sb.HMC(warm_up=0, draws=60, step_size=0.199, trajectory=0.6, mass=UnitMass())
    with pytest.warns(UserWarning, match=r"chains 0, 1, 2: mean acceptance 0\.\d+ to 0\.\d+, below 0.4"):
        sampled(method=method)


def test_many_divergences_warn_of_their_chains():
    def cliff(q):
        return torch.where(q[:, 0] > -1.5, normal(q), torch.nan)

    method = sb.HMC(warm_up=0, draws=100, step_size=0.1, trajectory=1.5, mass=UnitMass())
    with pytest.warns(UserWarning, match=r"chains 0, 1, 2: \d+ divergent steps after warm-up \(up to"):
        samples = sampled(cliff, method)
    assert samples.divergences.tolist() == samples.info["divergences"]
    assert samples.acceptance.min() > 0.4


def test_the_acceptance_of_a_few_steps_is_not_judged():
    """Nothing is warned of in the first run, of 9 steps: pytest would make an error of it."""
    method = sb.HMC(warm_up=0, draws=9, step_size=0.19, trajectory=0.6, mass=UnitMass())
    assert sampled(method=method).acceptance.min() < 0.4
    with pytest.warns(UserWarning, match=r"mean acceptance 0\.\d+ to"):
        sampled(method=dataclasses.replace(method, draws=10))


def test_a_chain_that_never_moved_in_a_few_steps_is_named_and_not_stopped():
    method = sb.HMC(warm_up=0, draws=9, step_size=0.1, trajectory=0.1, mass=UnitMass())
    with pytest.warns(UserWarning, match="chain 0 never accepted a proposal"):
        samples = sb.sample(wall, torch.zeros(1, 2, dtype=torch.float64), method)
    assert samples.draws.shape == (1, 9, 2)
    assert not samples.stuck.any()


# Progress


def test_acceptance_and_divergences_are_shown(capsys):
    samples = sampled(progress=True)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    acceptance = samples.acceptance.mean().item()
    assert line == f"HMC: step 54/54  acceptance {acceptance:.4f}  divergences {samples.divergences.sum()}"


def test_nothing_is_shown_elsewhere(capsys):
    sampled()
    assert capsys.readouterr().err == ""


def test_info_counts_all_gradients(whole):
    samples, calls = whole
    total = samples.warm_up.gradients.sum(1) + samples.gradients
    assert samples.info["gradients"] == total.tolist()
    assert max(samples.info["gradients"]) <= calls
    assert math.isfinite(samples.info["seconds"])
