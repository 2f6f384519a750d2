"""Image sets: no row in two sets, train's statistics alone, held-out classes nowhere else, one resize."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from singularbayes.recipes.data import Splits, images


@pytest.fixture(scope="module")
def fashion(shared_data: Path) -> Splits:
    return _load(images.fashion, shared_data)


@pytest.fixture(scope="module")
def cifar(shared_data: Path) -> Splits:
    return _load(images.cifar, shared_data)


def _load(load, folder: Path) -> Splits:
    try:
        return load(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_the_counts_are_those_of_the_docstring(fashion: Splits, cifar: Splits) -> None:
    assert {name: x.shape for name, (x, _) in fashion.named_sets().items()} == {
        "train": (18000, 1, 28, 28), "validation": (2000, 1, 28, 28), "test": (10000, 1, 28, 28),
        "ood/MNIST": (5000, 1, 28, 28), "ood/notMNIST": (5000, 1, 28, 28),
        "ood_validation/near": (2000, 1, 28, 28), "ood_validation/far": (2000, 1, 28, 28),
    }  # fmt: skip
    assert {name: x.shape for name, (x, _) in cifar.named_sets().items()} == {
        "train": (8000, 3, 32, 32), "validation": (1600, 3, 32, 32), "test": (4000, 3, 32, 32),
        "ood/near": (2000, 3, 32, 32), "ood/far": (2000, 3, 32, 32),
        "ood_validation/near": (1600, 3, 32, 32), "ood_validation/far": (1600, 3, 32, 32),
    }  # fmt: skip
    assert [len(np.unique(splits.train[1])) for splits in (fashion, cifar)] == [10, 8]
    for part in (cifar.train, cifar.validation, cifar.test):
        assert len(set(np.bincount(part[1]))) == 1, "as many of every class"


def test_no_image_stands_in_two_sets(fashion: Splits, cifar: Splits) -> None:
    for splits in (fashion, cifar):
        seen: set[bytes] = set()
        for name, (x, _) in splits.named_sets().items():
            rows = {row.tobytes() for row in x}
            assert seen.isdisjoint(rows), name
            seen |= rows


def test_held_out_classes_stand_in_the_near_set_alone(cifar: Splits, shared_data: Path) -> None:
    with np.load(shared_data / "cifar10_jpeg" / "cifar10_jpeg_30k.npz") as archive:
        labels, classes = archive["test_label"], archive["classes"]
    assert [str(classes[number]) for number in images.HELD_OUT] == ["ship", "truck"]
    assert cifar.class_names == tuple(map(str, classes[:8]))
    assert len(cifar.ood["near"][0]) == np.isin(labels, images.HELD_OUT).sum()
    assert max(part[1].max() for part in (cifar.train, cifar.validation, cifar.test)) == 7


def test_decoded_images_are_those_of_the_lossless_copy_up_to_jpeg(cifar: Splits, shared_data: Path) -> None:
    with np.load(shared_data / "cifar10_jpeg" / "cifar10_lossless_first1000.npz") as archive:
        exact, y = archive["x"].transpose(0, 3, 1, 2).astype(np.float64), archive["y"]
    with np.load(shared_data / "cifar10_jpeg" / "cifar10_jpeg_30k.npz") as archive:
        ranks = archive["train_source_index"][archive["train_label"] == 3]
    # the image of class 3 with rank r is the r-th cat of the official order; the first of ours are among them
    cats, ours = exact[y == 3], cifar.train[0][cifar.train[1] == 3].astype(np.float64)
    assert ranks[:20].tolist() == list(range(20))
    scale = exact.mean((0, 2, 3)), exact.std((0, 2, 3))
    cats = (cats - scale[0][:, None, None]) / scale[1][:, None, None]
    error = np.sqrt(((cats[:20] - ours[:20]) ** 2).mean((1, 2, 3)))
    shuffled = np.sqrt(((cats[:20] - ours[1:21]) ** 2).mean((1, 2, 3)))
    assert error.max() < 0.35 < shuffled.min()


def test_train_alone_gives_the_scale() -> None:
    sets = _made()
    plain = images.standardised(sets, ("a", "b"), ())
    x = plain.train[0].astype(np.float64)
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(x.std((0, 2, 3)), 1, atol=1e-6)
    for name in ("validation", "test", "ood/far"):
        sets[name] = (255 - sets[name][0], sets[name][1])
    moved = images.standardised(sets, ("a", "b"), ())
    assert np.array_equal(moved.train[0], plain.train[0])
    sets["train"] = (sets["train"][0] // 2 + 9, sets["train"][1])
    assert not np.array_equal(images.standardised(sets, ("a", "b"), ()).test[0], moved.test[0]), "mutant"


def _made():
    rng = np.random.default_rng(0)

    def part(n: int, top: int):
        pixels = rng.integers(0, top, (n, 3, 4, 6), dtype=np.uint8)
        pixels[:, 1] //= 4  # another mean and deviation in each channel
        return pixels, rng.integers(0, 2, n)

    sets = {name: part(n, 200) for name, n in (("train", 30), ("validation", 12), ("test", 9))}
    return {**sets, "ood/far": (part(7, 255)[0], None)}


def test_sets_for_choices_are_made_of_validation_images() -> None:
    sets = _made()
    held = sets["validation"][0]
    swapped = images.quadrants_swapped(held)
    assert np.array_equal(swapped[:, :, :2, :3], held[:, :, 2:, 3:])
    assert np.array_equal(swapped[:, :, 2:, :3], held[:, :, :2, 3:])
    mixed = images.pixels_mixed(held, seed=0)
    pairs = held.reshape(12, 3, -1).transpose(2, 0, 1), mixed.reshape(12, 3, -1).transpose(2, 0, 1)
    for pixels, others in zip(*pairs, strict=True):  # the same colours at every place, in another order
        assert sorted(map(tuple, pixels)) == sorted(map(tuple, others))
    assert not any(np.array_equal(one, other) for one in held for other in mixed)


def test_letters_are_resized_once_and_grey(cifar: Splits, shared_data: Path) -> None:
    with np.load(shared_data / "notmnist" / "notmnist_10k.npz") as archive:
        letters = archive["x_test"][:2]
    far = cifar.ood["far"][0]
    assert len({round(float(np.ptp(far[:, c])), 3) for c in range(3)}) == 3, "in units of each channel"
    note = next(note for note in cifar.notes if note.startswith("Train alone"))
    mean, std = (float(word.strip("(),.")) for word in note.split(": ")[1].split(", ")[0].split(" "))
    expected = np.asarray(Image.fromarray(letters[1]).resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(far[1, 0] * std + mean, expected, atol=0.1)


def _archives(folder: Path, **changes: object) -> Path:
    small = np.zeros((4000, 28, 28), np.uint8)
    content = {
        "x_train": small,
        "y_train": np.zeros(4000, np.uint8),
        "x_test": small,
        "y_test": np.zeros(4000),
    }
    np.savez(folder / "fashion_mnist_20k.npz", **(content | changes))
    np.savez(folder / "mnist.npz", x_test=small)
    np.savez(folder / "notmnist_10k.npz", x_test=small)
    return folder


def test_a_file_that_is_absent_or_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"fashion_mnist_20k\.npz not found: looked for "):
        images.fashion(tmp_path)
    with pytest.raises(ValueError, match=r"fashion_mnist_20k\.npz: x_test is uint8 of shape \(5, 32, 32\)"):
        images.fashion(_archives(tmp_path, x_test=np.zeros((5, 32, 32), np.uint8)))
    with pytest.raises(ValueError, match="x_train is float64 of shape"):
        images.fashion(_archives(tmp_path, x_train=np.zeros((5, 28, 28))))


def test_a_damaged_jpeg_is_named(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(file, "JPEG")
    whole = np.frombuffer(file.getvalue(), np.uint8)
    header, scan = whole[:600], np.tile(whole[600:], 10)
    ends = np.arange(11) * (len(whole) - 600)
    parts = {f"{p}_{k}": v for p in ("train", "test") for k, v in (
        ("scan", scan), ("offset", ends), ("label", np.arange(10, dtype=np.uint8)))}  # fmt: skip
    np.savez(tmp_path / "cifar10_jpeg_30k.npz", jpeg_header=header, **parts)
    np.savez(tmp_path / "notmnist_10k.npz", x_test=np.zeros((9, 28, 28), np.uint8))
    np.savez(tmp_path / "cifar10_jpeg_30k.npz", jpeg_header=header[:50], **parts)
    with pytest.raises(ValueError, match=r"CIFAR-10, train image 0: no image of 32 by 32 pixels"):
        images.cifar(tmp_path)
