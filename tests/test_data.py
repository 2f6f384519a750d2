"""Data as users have them: every form gives the same rows, and faults are named."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from singularbayes.data import Items, Loader, Tensors, as_inputs, as_labels, as_source, gather, take

X = torch.arange(22.0).reshape(11, 2)
Y = torch.arange(11)


class Pairs(Dataset):
    """A map-style data set, with noise on its rows where asked."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index] + self.noise * torch.randn(2), int(Y[index])


class Stream(IterableDataset):
    """A stream of single examples that knows its length."""

    def __len__(self) -> int:
        return len(X)

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def rows(
    source, seed: int = 0, epoch: int = 0, shuffle: bool = True, batch_size: int = 4
) -> list[tuple[Tensor, Tensor]]:
    return list(source.epoch(batch_size, seed, epoch, shuffle=shuffle))


def source_of(data):
    return as_source(data, torch.float32, False)


FORMS = {
    "tensors": lambda: (X, Y),
    "list pair": lambda: [X, Y],
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "pandas": lambda: (pd.DataFrame(X.numpy(), columns=["a", "b"]), pd.Series(Y.numpy())),
    "dataset": Pairs,
    "tensor dataset": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "two batches": lambda: [(X[:5], Y[:5]), (X[5:], Y[5:])],
    "dict batches": lambda: [{"x": X[:5], "labels": Y[:5]}, {"x": X[5:], "labels": Y[5:]}],
    "stream in a loader": lambda: DataLoader(Stream(), batch_size=4),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows_and_count(form):
    source = source_of(FORMS[form]())
    assert source.num_data == 11
    held = gather(source)
    x = held.x["x"] if isinstance(held.x, dict) else held.x
    assert torch.equal(x, X)
    assert x.dtype == torch.float32
    assert held.y is not None
    assert torch.equal(held.y, Y)
    before = torch.get_rng_state()
    seen = torch.cat([y for _, y in rows(source)])
    assert torch.equal(seen.sort().values, Y)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("form", ["tensors", "dataset"])
def test_the_order_follows_seed_and_epoch_alone(form):
    source = source_of(FORMS[form]())

    def order(seed: int, epoch: int) -> list[int]:
        torch.rand(3)
        return torch.cat([y for _, y in rows(source, seed, epoch)]).tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@pytest.mark.parametrize("own", [False, True])
def test_a_shuffling_loader_follows_seed_and_epoch_and_is_put_back(own):
    shuffler = torch.Generator().manual_seed(5) if own else None
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, generator=shuffler)
    source = source_of(loader)
    state = None if shuffler is None else shuffler.get_state()
    before = torch.get_rng_state()

    def order(epoch: int) -> list[int]:
        torch.rand(2)
        return torch.cat([y for _, y in rows(source, 0, epoch)]).tolist()

    first = order(0)
    assert first == order(0)
    assert first != order(1)
    torch.set_rng_state(before)
    rows(source)
    assert torch.equal(torch.get_rng_state(), before)
    if shuffler is not None:
        assert torch.equal(shuffler.get_state(), state)


def test_an_epoch_that_is_left_early_puts_the_generator_back():
    shuffler = torch.Generator().manual_seed(5)
    state = shuffler.get_state()
    source = source_of(DataLoader(TensorDataset(X, Y), shuffle=True, generator=shuffler))
    for _ in source.epoch(1, 0, 0, shuffle=True):
        break
    assert torch.equal(shuffler.get_state(), state)


def test_a_sampler_with_a_generator_of_its_own_is_put_back():
    own = torch.Generator().manual_seed(5)
    state = own.get_state()
    data = TensorDataset(X, Y)
    source = source_of(DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=own)))
    assert torch.equal(rows(source)[0][1], rows(source)[0][1])
    assert torch.equal(own.get_state(), state)


class OwnBatches:
    """A batch sampler that shuffles with a generator of its own."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 3

    def __iter__(self):
        return iter([rows.tolist() for rows in torch.randperm(len(X), generator=self.generator).split(4)])


@pytest.mark.parametrize("holder", ["batch sampler", "its sampler"])
def test_a_batch_sampler_with_a_generator_is_seeded_and_put_back(holder):
    own = torch.Generator().manual_seed(5)
    state = own.get_state()
    data = TensorDataset(X, Y)
    of_batches = (
        OwnBatches(own)
        if holder == "batch sampler"
        else BatchSampler(RandomSampler(data, generator=own), 4, drop_last=False)
    )
    source = source_of(DataLoader(data, batch_sampler=of_batches))
    assert torch.equal(own.get_state(), state)
    first, again, other = (torch.cat([y for _, y in rows(source, epoch=epoch)]) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(own.get_state(), state)


class Augmented(Pairs):
    """Rows moved by the global generators of NumPy and Python."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        moved = torch.tensor([np.random.rand(), random.random()], dtype=torch.float32)  # noqa: NPY002
        return X[index] + moved, int(Y[index])


@pytest.mark.usefixtures("unchecked")  # beartype draws from Python's random to choose what it checks
@pytest.mark.parametrize("form", ["items", "loader"])
def test_augmentation_with_numpy_and_python_is_repeated_and_leaves_their_state(form):
    source = source_of(Augmented() if form == "items" else DataLoader(Augmented(), batch_size=4))
    seen = []
    for epoch, junk in ((0, 1), (0, 2), (1, 3)):
        np.random.seed(junk)  # noqa: NPY002
        random.seed(junk)
        drawn = []
        for x, _ in source.epoch(4, 0, epoch, shuffle=False):
            drawn.append(x)
            for _ in range(junk):  # between batches
                mine = np.random.rand(), random.random()  # noqa: NPY002
        seen.append(torch.cat(drawn))
        np.random.seed(junk)  # noqa: NPY002
        random.seed(junk)
        for _ in range(3 * junk):
            expected = np.random.rand(), random.random()  # noqa: NPY002
        assert mine == expected
    assert torch.equal(seen[0], seen[1])
    assert bool((seen[0] != seen[2]).all())
    assert len((seen[0] - X).unique(dim=0)) == len(X)  # every row is moved in its own way


def test_random_draws_of_the_training_step_do_not_change_a_loaders_order():
    source = source_of(DataLoader(Pairs(noise=1.0), batch_size=4, shuffle=True))
    quiet = torch.cat([x for x, _ in rows(source)])
    loud = []
    for x, _ in source.epoch(4, 0, 0, shuffle=True):
        torch.rand(7)
        loud.append(x)
    assert torch.equal(quiet, torch.cat(loud))


def test_random_augmentation_of_a_dataset_leaves_the_global_state_and_can_be_repeated():
    source = source_of(Pairs(noise=1.0))
    before = torch.get_rng_state()
    one, two = (torch.cat([x for x, _ in rows(source)]) for _ in range(2))
    other = torch.cat([x for x, _ in rows(source, epoch=1, shuffle=False)])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, two)
    assert not torch.equal(other, torch.cat([x for x, _ in rows(source, shuffle=False)]))


def test_a_last_batch_of_one_joins_the_batch_before():
    assert [len(y) for _, y in rows(source_of((X, Y)), batch_size=5)] == [5, 6]
    assert [len(y) for _, y in rows(source_of(Pairs()), batch_size=5)] == [5, 6]
    assert [len(y) for _, y in rows(source_of((X[:1], Y[:1])), batch_size=5)] == [1]


def test_a_loader_that_drops_the_last_batch_counts_what_it_brings():
    assert source_of(DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True)).num_data == 8


def test_kinds_of_sources():
    assert isinstance(source_of((X, Y)), Tensors)
    assert isinstance(source_of(Pairs()), Items)
    assert isinstance(source_of([(X, Y)]), Loader)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.arange(6).reshape(3, 2), torch.float32),
        (np.arange(6, dtype=np.uint8).reshape(3, 2), torch.float64),
        (np.asfortranarray(np.arange(6.0).reshape(3, 2)), torch.float32),
        (np.arange(12.0).reshape(3, 4)[:, ::2] / 2, torch.float32),
        (np.arange(6.0)[::-1].reshape(3, 2)[::-1, ::-1], torch.float32),
        (np.arange(6.0).reshape(3, 2).astype(">f8"), torch.float32),
        (torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T.contiguous().T.reshape(3, 2), torch.float16),
        (pd.DataFrame({"a": [0, 2, 4], "b": [1.0, 3.0, 5.0]}), torch.float32),
    ],
)
def test_inputs_of_any_layout_become_contiguous_numbers_of_the_network(value, dtype):
    tensor = as_inputs(value, dtype, False)
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert torch.equal(tensor.double(), torch.arange(6.0, dtype=torch.float64).reshape(3, 2))


def test_read_only_arrays_are_taken_without_a_warning():
    array = np.ones((2, 2))
    array.setflags(write=False)
    assert as_inputs(array, torch.float64, False).sum() == 4
    assert as_labels(pd.Series([1, 0]), torch.float32).tolist() == [1, 0]


def test_truth_values_beside_numbers_in_a_frame_are_numbers():
    frame = pd.DataFrame({"a": [1.5, 2.0], "b": [True, False]})
    assert as_inputs(frame, torch.float32, False).tolist() == [[1.5, 1.0], [2.0, 0.0]]


def test_truth_values_inside_a_structure_stay_masks_and_are_features_alone():
    mask = torch.tensor([[False, True]])
    for integers in (False, True):
        assert as_inputs(mask, torch.float32, integers).tolist() == [[0.0, 1.0]]
        nested = {"x": torch.ones(1, 2), "more": (mask, {"mask": mask.numpy()})}
        held = as_inputs(nested, torch.float64, integers)
        again = as_inputs(held, torch.float64, integers)
        for each in (held, again):
            assert each["x"].dtype == torch.float64
            assert torch.equal(each["more"][0], mask)
            assert torch.equal(each["more"][1]["mask"], mask)
    (x, found), _ = next(source_of([((torch.ones(1, 2), mask), Y[:1])]).epoch(1, 0, 0, shuffle=False))
    assert (x.dtype, found.dtype) == (torch.float32, torch.bool)


def test_a_mask_of_attention_hides_its_keys():
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True]] * 2)
    other = x.clone()
    other[:, 2] += 5.0
    outputs = []
    for each in (x, other):
        held = as_inputs({"x": each, "mask": mask}, torch.float32, False)
        outputs.append(attention(x[:, :2], held["x"], held["x"], key_padding_mask=held["mask"])[0])
    torch.testing.assert_close(*outputs)


def test_rows_are_taken_from_every_part_of_a_structure():
    x = {"a": X, "b": (Y, {"c": X[:, 0]})}
    for index in (slice(2, 4), torch.tensor([2, 3])):
        held = take(x, index)
        assert torch.equal(held["a"], X[2:4])
        assert torch.equal(held["b"][0], Y[2:4])
        assert torch.equal(held["b"][1]["c"], X[2:4, 0])


def test_whole_numbers_stay_for_a_network_that_takes_them():
    assert as_inputs(np.array([[1, 2]]), torch.float32, True).dtype == torch.int64
    assert (
        as_inputs({"ids": torch.tensor([[1]]), "labels": torch.tensor([0])}, torch.float32, False)[
            "ids"
        ].dtype
        == torch.int64
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_told_with_row_and_column(bad):
    x = X.clone()
    x[7, 1] = bad
    with pytest.raises(ValueError, match=f"X holds {bad} at row 7, column 1"):
        as_inputs(x, torch.float32, False)
    with pytest.raises(ValueError, match="row 7, column 1"):
        as_inputs(pd.DataFrame(x.numpy()), torch.float32, False)
    y = Y.double()
    y[3] = bad
    with pytest.raises(ValueError, match=f"y holds {bad} at row 3"):
        as_labels(y, torch.float32)
    with pytest.raises(ValueError, match=r"X\['mask'\] holds .* at row 7"):
        as_inputs({"mask": x}, torch.float32, True)


def test_a_value_beyond_the_networks_range_is_told():
    with pytest.raises(ValueError, match=r"X \(as torch.float32\) holds inf at row 1, column 0"):
        as_inputs(np.array([[0.0], [1e300]]), torch.float32, False)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X[:0], Y[:0]), ValueError, "X is empty"),
        ((X, Y[:5]), ValueError, "X has 11 rows and y has 5"),
        ((({"a": X}, X[:5]), Y), ValueError, r"the parts of X have \[5, 11\] rows"),
        (({}, Y), ValueError, "X is empty: a dict or tuple without inputs"),
        ([(X, Y[:5])], ValueError, "X has 11 rows and y has 5"),
        ([], ValueError, "no batch came out"),
        (iter([(X, Y)]), TypeError, "read only once"),
        (((X, Y) for _ in range(2)), TypeError, "read only once"),
        (zip(X, Y, strict=True), TypeError, "read only once"),
        (TensorDataset(X[:0], Y[:0]), ValueError, "the data set is empty"),
        (5, TypeError, r"data must be \(X, y\), a Dataset, or an iterable of batches, got int"),
        (X, TypeError, "got Tensor"),
        ("file.csv", TypeError, "got str"),
        ([(X, Y, Y)], ValueError, r"a batch must be \(x, y\).*tuple of length 3"),
        ([{"x": X}], ValueError, "a dict batch needs labels"),
        ((np.array([["a", "b"]]), np.array([0])), TypeError, "X must be numeric"),
        (
            (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}), np.array([0])),
            TypeError,
            "X must be numeric",
        ),
        ((np.array([[1j]]), np.array([0])), TypeError, "X must be numeric"),
        (Stream(), ValueError, "one label a row"),
        (
            DataLoader(TensorDataset(X[:3], Y[:3]), batch_size=4, drop_last=True),
            ValueError,
            "the data are empty",
        ),
    ],
)
def test_faults_of_the_data_are_named(data, error, words):
    with pytest.raises(error, match=words):
        source_of(data)


def test_the_users_tensors_keep_their_gradient_flag_and_values():
    x = X.clone().requires_grad_()
    source = source_of((x, Y))
    assert not source.x.requires_grad
    assert x.requires_grad


def test_batches_padded_to_different_lengths_cannot_be_held_together():
    batches = [
        {"input_ids": torch.ones(2, n, dtype=torch.long), "labels": torch.tensor([0, 1])} for n in (3, 5)
    ]
    source = as_source(batches, torch.float32, integers=True)  # to train on they are fine
    with pytest.raises(ValueError, match=r"X\['input_ids'\] have the shapes \(3,\) and \(5,\).*pad them all"):
        gather(source)
