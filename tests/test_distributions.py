"""Distributions over the flat vector: moments against draws, even dealing, noise, checkpoints."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from singularbayes.distributions import (
    DiagonalGaussian,
    DiagonalLaplace,
    DirectionGaussian,
    Distribution,
    DropoutMasks,
    LowRankGaussian,
    MixtureDistribution,
    StoredDraws,
    describe,
    positive,
    rebuild,
    standard_laplace_,
)

MEAN = torch.tensor([1.0, -2.0, 0.0, 30.0])
STD = torch.tensor([0.1, 2.0, 0.0, 5.0])  # badly scaled, with a point
FACTOR = torch.tensor([[1.0, 0.2], [-3.0, 1.0], [0.0, 0.0], [2.0, -4.0]])
ATOMS = torch.tensor([[1.0, 2.0, 0.0, 5.0], [3.0, -1.0, 0.0, 6.0], [-4.0, 0.5, 0.0, 9.0]])
ALL = {
    "gaussian": DiagonalGaussian(MEAN, STD),
    "laplace": DiagonalLaplace(MEAN, STD),
    "low rank": LowRankGaussian(MEAN, STD, FACTOR),
    "stored": StoredDraws(ATOMS),
    "mixture": MixtureDistribution(
        (DiagonalGaussian(MEAN, STD), LowRankGaussian(-MEAN, STD, FACTOR), StoredDraws(ATOMS))
    ),
    "dropout": DropoutMasks(torch.tensor([0.3, -1.0]), torch.tensor([0.25, 0.9])),
    "directions": DirectionGaussian(  # a block of 2 with two directions, one of 1 with one, a point
        MEAN,
        torch.tensor([2, 1]),
        torch.tensor([2.0, 0.3]),
        torch.tensor([[0.6, -0.8], [0.8, 0.6], [1.0, 0.0]]),
        torch.tensor([[0.1, 5.0], [3.0, 0.0]]),
    ),
}


def draws_of(distribution, n: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    noise = torch.full((n, distribution.noise_size), math.nan)  # what is not filled must not be read
    for index, row in enumerate(noise):
        distribution.noise(row, source, index, n)
    return distribution.sample(noise)


@pytest.mark.parametrize("name", ALL)
def test_mean_and_variance_are_those_of_the_draws(name):
    distribution, n = ALL[name], 12_000
    draws = draws_of(distribution, n)
    assert isinstance(distribution, Distribution)
    assert draws.shape == (n, distribution.size)
    error = draws.std(0) / math.sqrt(n)
    assert bool(
        ((draws.mean(0) - distribution.mean).abs() <= 4 * error + 1e-6).all()
    )  # false alarm 6e-5 an entry
    squares = (draws - distribution.mean).square()
    spread = 4 * squares.std(0) / math.sqrt(n) + 1e-5
    assert bool(((squares.mean(0) - distribution.variance).abs() <= spread).all())
    mutant = distribution.variance.sqrt()  # a standard deviation reported as a variance
    assert not bool(((squares.mean(0) - mutant).abs() <= spread).all())


def test_low_rank_draws_share_one_noise_over_the_whole_vector():
    n = 20_000
    draws = draws_of(ALL["low rank"], n) - MEAN
    cross = draws[:, 0] * draws[:, 3]
    exact = (FACTOR @ FACTOR.T)[0, 3].item()
    assert abs(cross.mean().item() - exact) < 4 * cross.std().item() / math.sqrt(n)
    assert abs(0.0 - exact) > 4 * cross.std().item() / math.sqrt(
        n
    )  # mutant: independent noise for each tensor


def test_laplace_noise_has_variance_two_and_heavy_tails():
    n = 100_000
    noise = standard_laplace_(torch.empty(n, dtype=torch.float64), torch.Generator().manual_seed(1))
    for power, moment in ((1, 0.0), (2, 2.0), (4, 24.0)):
        values = noise**power
        assert abs(values.mean().item() - moment) < 4 * values.std().item() / math.sqrt(n)
    normal = torch.randn(n, generator=torch.Generator().manual_seed(1)).square()  # mutant: Gaussian noise
    assert abs(normal.mean().item() - 2.0) > 4 * normal.std().item() / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_laplace_noise_is_finite_in_every_precision(dtype):
    noise = standard_laplace_(torch.empty(50_000, dtype=dtype), torch.Generator().manual_seed(0))
    assert noise.dtype == dtype
    assert bool(torch.isfinite(noise).all())
    assert noise.double().square().mean().item() == pytest.approx(2.0, rel=0.06)  # 4 standard errors are .04


@pytest.mark.parametrize("name", ALL)
def test_half_precision_distributions_draw_from_float32_noise(name):
    whole = ALL[name]
    tensors = {k: t.bfloat16() if t.is_floating_point() else t for k, t in whole.tensors().items()}
    half = rebuild(describe(whole), tensors)
    draws = draws_of(half, 32)
    assert bool(torch.isfinite(draws).all())
    torch.testing.assert_close(draws.float(), draws_of(whole, 32), rtol=0.03, atol=0.3)


def test_draws_keep_float64():
    exact = DiagonalGaussian(MEAN.double() / 3, STD.double())
    noise = torch.zeros(1, 4, dtype=torch.float64)
    assert torch.equal(exact.sample(noise)[0], MEAN.double() / 3)
    mixture = MixtureDistribution((exact, exact))
    assert torch.equal(mixture.sample(torch.zeros(1, 5, dtype=torch.float64))[0], MEAN.double() / 3)


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_give_equal_draws_and_the_global_state_stays(name):
    before = torch.random.get_rng_state()
    first, second = draws_of(ALL[name], 20, seed=4), draws_of(ALL[name], 20, seed=4)
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    if name not in ("stored",):
        assert not torch.equal(first, draws_of(ALL[name], 20, seed=5))


def counts(draws: Tensor, atoms: Tensor) -> list[int]:
    return [int((draws == atom).all(1).sum()) for atom in atoms]


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 9, 10, 12, 64])
def test_stored_draws_are_dealt_evenly(n):
    atoms = torch.arange(5.0).unsqueeze(1)
    dealt = counts(draws_of(StoredDraws(atoms), n), atoms)
    assert sum(dealt) == n
    assert max(dealt) - min(dealt) <= 1
    if n == 9:  # mutant: a rest drawn with replacement gives an atom three times where others have one
        repeated = [1, 1, 1, 1, 1]
        for index in torch.randint(5, (4,), generator=torch.Generator().manual_seed(0)).tolist():
            repeated[index] += 1
        assert max(repeated) - min(repeated) > 1


def test_the_rest_favours_no_atom_over_seeds():
    atoms, n = torch.arange(5.0).unsqueeze(1), 400
    extra = torch.zeros(5)
    for seed in range(n):
        extra += torch.tensor(counts(draws_of(StoredDraws(atoms), 7, seed), atoms), dtype=torch.float32) - 1
    share = extra / (2 * n)
    error = math.sqrt(0.4 * 0.6 / n) / 2  # an atom is in the rest with probability 2/5
    assert bool(((share - 0.2).abs() < 4 * error).all())
    assert 4 * error < 0.5 - 0.2  # mutant: the first two atoms always


def test_mixture_deals_components_and_their_atoms_evenly():
    first, second = torch.arange(3.0).unsqueeze(1), 10 + torch.arange(3.0).unsqueeze(1)
    mixture = MixtureDistribution((StoredDraws(first), StoredDraws(second)))
    everyone = torch.cat([first, second])
    assert mixture.support == 6
    assert counts(draws_of(mixture, 6), everyone) == [1] * 6
    assert counts(draws_of(mixture, 12), everyone) == [2] * 6
    assert sum(counts(draws_of(mixture, 2), first)) == 1
    dealt = counts(draws_of(mixture, 4), everyone)
    assert max(dealt) == 1
    assert sum(dealt[:3]) == 2


def test_mixture_of_unequal_supports_is_not_thinned():
    assert MixtureDistribution((StoredDraws(ATOMS), StoredDraws(ATOMS[:2]))).support is None
    assert ALL["mixture"].support is None
    assert ALL["stored"].support == 3


def test_mixture_variance_is_the_law_of_total_variance():
    mixture = MixtureDistribution((DiagonalGaussian(MEAN, STD), DiagonalLaplace(-MEAN, STD)))
    torch.testing.assert_close(mixture.mean, torch.zeros(4))
    torch.testing.assert_close(mixture.variance, 1.5 * STD.square() + MEAN.square())


def test_one_stored_draw_has_variance_zero():
    atom = StoredDraws(ATOMS[:1])
    assert torch.equal(atom.variance, torch.zeros(4))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_dropout_masks_are_those_of_torch(rate):
    masks = DropoutMasks(torch.zeros(0), torch.full((400,), rate))
    values = draws_of(masks, 50).unique().tolist()
    reference = torch.nn.functional.dropout(torch.ones(4000), rate).unique().tolist()
    assert values == pytest.approx(reference)
    assert bool(torch.isfinite(masks.mean).all())
    assert bool(torch.isfinite(masks.variance).all())


@pytest.mark.parametrize("name", ALL)
def test_checkpoints_deepcopy_and_pickle_bring_back_the_same_draws(name):
    distribution = ALL[name]
    expected = draws_of(distribution, 7)
    again = rebuild(describe(distribution), distribution.tensors())
    for copied in (again, copy.deepcopy(distribution), pickle.loads(pickle.dumps(distribution))):
        assert torch.equal(draws_of(copied, 7), expected)


def test_a_mixture_of_more_than_ten_is_rebuilt_in_order():
    mixture = MixtureDistribution(tuple(StoredDraws(torch.full((1, 2), float(i))) for i in range(12)))
    again = rebuild(describe(mixture), mixture.tensors())
    assert [c.draws[0, 0].item() for c in again.components] == list(range(12))


def test_faults_are_named():
    with pytest.raises(ValueError, match="standard deviations"):
        DiagonalGaussian(MEAN, -STD)
    with pytest.raises(ValueError, match="standard deviations"):
        DiagonalLaplace(MEAN, torch.full((4,), math.nan))
    with pytest.raises(ValueError, match="at least one row"):
        StoredDraws(torch.zeros(0, 4))
    with pytest.raises(ValueError, match="at least one component"):
        MixtureDistribution(())
    with pytest.raises(ValueError, match=r"same vector.*\[2, 4\]"):
        MixtureDistribution((StoredDraws(ATOMS), StoredDraws(ATOMS[:, :2])))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        DropoutMasks(torch.zeros(1), torch.tensor([1.5]))
    with pytest.raises(ValueError, match="another version"):
        rebuild("unheard of", {})


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\(4,\) and \(3,\)"):
        DiagonalGaussian(MEAN, STD[:3])
    with pytest.raises(ValueError, match=r"factor must be \(4, k\)"):
        LowRankGaussian(MEAN, STD, FACTOR[:3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_positive_is_softplus_without_underflow(dtype):
    rho = torch.tensor([-1000.0, -100.0, -5.0, 0.0, 3.0, 1000.0], dtype=dtype)
    sigma = positive(rho)
    assert bool((sigma >= 1e-30).all())
    expected = torch.nn.functional.softplus(rho[2:].double())
    torch.testing.assert_close(sigma[2:].double(), expected, rtol=1e-5, atol=0)
    assert float(torch.nn.functional.softplus(torch.tensor(-1000.0))) == 0.0  # mutant: plain softplus


def test_the_rest_is_spread_evenly_from_an_atom_that_the_seed_chooses():
    atoms, pairs = torch.arange(5.0).unsqueeze(1), set()
    for seed in range(60):
        dealt = counts(draws_of(StoredDraws(atoms), 7, seed), atoms)
        first, second = (atom for atom, count in enumerate(dealt) if count == 2)
        pairs.add((first, second))
        assert (second - first) % 5 in (2, 3)  # never neighbours
    # every start occurs: a start is missed in 60 draws with probability 5 x .8^60 = 8e-6
    assert pairs == {(0, 2), (1, 3), (2, 4), (0, 3), (1, 4)}


def test_a_mixture_deals_every_atom_of_one_component_once_beside_a_gaussian():
    atoms = 100 + torch.arange(4.0).unsqueeze(1)
    gaussian = DiagonalGaussian(torch.zeros(1), torch.ones(1))
    for components in ((StoredDraws(atoms), gaussian), (gaussian, StoredDraws(atoms))):
        draws = draws_of(MixtureDistribution(components), 8)
        assert counts(draws, atoms) == [1] * 4
        assert int((draws < 50).sum()) == 4
        thinned = counts(draws_of(MixtureDistribution(components), 4), atoms)
        assert thinned == [1, 0, 1, 0]  # two of four draws: thinned evenly over the atoms


def test_a_blocks_directions_have_their_own_widths_and_its_rest_one_width():
    u = torch.linalg.qr(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))[0]
    along = torch.tensor([[0.1, 4.0]])
    q = DirectionGaussian(torch.zeros(6), torch.tensor([5]), torch.tensor([1.5]), u, along)
    exact = 1.5**2 * (torch.eye(5) - u @ u.T) + u @ torch.diag(along[0] ** 2) @ u.T
    n = 20_000
    draws = draws_of(q, n)[:, :5]
    products = draws.unsqueeze(2) * draws.unsqueeze(1)
    error = 4.5 * products.std(0) / math.sqrt(n)  # 15 statistics: false alarm 1e-4
    assert bool(((products.mean(0) - exact).abs() < error).all())
    mutant = 1.5**2 * torch.eye(5) + u @ torch.diag(along[0] ** 2) @ u.T  # the width not taken off there
    assert not bool(((products.mean(0) - mutant).abs() < error).all())
    torch.testing.assert_close(q.variance[:5], exact.diagonal(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "std", "directions", "along", "words"),
    [
        ([3, 2], [1.0, 1.0], (5, 1), (2, 1), "as long or longer"),
        ([2, 1], [1.0, 1.0], (4, 1), (2, 1), "need directions"),
        ([2, 1], [1.0], (3, 1), (2, 1), "need std"),
        ([2, 1], [1.0, 1.0], (3, 1), (2, 2), "direction_std"),
        ([2, 1], [1.0, -1.0], (3, 1), (2, 1), "0 or positive"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_blocks_that_do_not_fit_are_refused(sizes, std, directions, along, words):
    with pytest.raises(ValueError, match=words):
        DirectionGaussian(
            MEAN, torch.tensor(sizes), torch.tensor(std), torch.zeros(directions), torch.ones(along)
        )
