"""The image recipes: networks of the stated sizes, tiny runs of every plan, the table's differences."""

import importlib.util
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from singularbayes.recipes import ALL, image_networks, run_recipe
from singularbayes.recipes.data import Splits
from singularbayes.recipes.data import images as data

EPOCH = {"epochs": 1, "members": 2}
# one epoch on a few random images: no signal to calibrate by, and posteriors as they began
pytestmark = pytest.mark.filterwarnings(
    "ignore:the calibration temperature", "ignore:the fit predicts the same", "ignore:the posterior collapsed"
)


def tiny(channels: int, side: int, classes: int) -> Splits:
    """Random images whose level tells the class."""
    rng = np.random.default_rng(0)

    def part(n: int, level: int = 0):
        y = np.arange(n) % classes
        pixels = rng.integers(0, 60, (n, channels, side, side)) + (20 * y + level)[:, None, None, None]
        return pixels.clip(0, 255).astype(np.uint8), y.astype(np.int64)

    sets = {"train": part(64), "validation": part(24), "test": part(24)}
    names = ("MNIST", "notMNIST") if channels == 1 else ("near", "far")
    others = {f"ood/{name}": (part(16, 40)[0], None) for name in names}
    return data.standardised({**sets, **others}, tuple(map(str, range(classes))), ())


SPLITS = {"images": tiny(1, 28, 10), "images-cifar": tiny(3, 32, 8)}


def small(name: str, draws: int = 4):
    """The recipe on a few images."""
    return replace(ALL[name], load=lambda _folder, _seed: SPLITS[name], draws=draws, needs_data=False)


def test_the_networks_have_the_sizes_of_the_docstring():
    def count(network: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    assert count(image_networks.cnn()) == count(image_networks.cnn_dropped()) == 55_338
    assert count(image_networks.resnet()) == count(image_networks.resnet_dropped()) == 77_912
    assert count(image_networks.cnn_low()) < count(image_networks.cnn()) / 3
    assert count(image_networks.resnet_low()) < count(image_networks.resnet()) / 2
    for network, shape in (
        (image_networks.cnn_low(), (2, 1, 28, 28)),
        (image_networks.resnet_low(), (2, 3, 32, 32)),
    ):
        assert network(torch.zeros(shape)).shape == (2, 10 if shape[1] == 1 else 8)


def test_a_block_adds_its_input_and_a_projection_where_the_shape_changes():
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    same, changing = image_networks.Block(4, 4, 1).eval(), image_networks.Block(4, 8, 2).eval()
    with torch.no_grad():
        for block in (same, changing):
            block.conv2.weight.zero_()
        assert torch.equal(same(x), x.relu())
        projected = changing.norm3(changing.project(x))
        assert torch.equal(changing(x), projected.relu())
    assert changing(x).shape == (2, 8, 3, 3)


def test_normalisations_of_the_resnet_are_point_estimates():
    recipe = ALL["images-cifar"]
    for plan in recipe.plans.values():
        layout = plan.model(plan.network(), recipe.likelihood).layout
        points = [slot.name for slot in layout.of_kind("point")]
        norms = [key for key, _ in plan.network().named_parameters() if "norm" in key]
        assert points == norms
        assert len(norms) == 2 * 9


@pytest.mark.parametrize("name", list(SPLITS))
def test_plans_run_and_are_evaluated_before_and_after_calibration(name, tmp_path, script):
    names = [
        "MAP",
        "DeepEnsemble",
        "MCDropout",
        "full rank",
        "MeanField, low rank",
        "SWAG, low",
        "last layer",
    ]
    folder = run_recipe(small(name), tmp_path, methods=names, overrides=EPOCH, bootstrap=10)
    assert len(folder.names) == len(names)
    for run in folder.runs:  # read by the diagnosis; once False where all low-rank layers are convolutions
        assert run.evaluation.info["low_rank"] is ("low rank" in run.name)
    text = script.side_by_side(folder)
    assert text.count("| uncalibrated |") == text.count("| calibrated |") == len(folder.names)
    text = script.regularities(folder)
    for part in ("1. Diagonal VI", "2. What the temperature", "3. Low-rank and subspace", "Cost: MeanField"):
        assert part in text
    # a temperature of one atom's logits keeps the order of classes
    line = next(line for line in text.splitlines() if line.startswith("| MAP - before calibration"))
    assert line.split(" | ")[1] == "+0.0000 (0 below, 0 above 0)"


def test_a_paired_difference_counts_the_seeds_that_leave_zero_out(tmp_path, script):
    folder = run_recipe(
        small("images"), tmp_path, methods=["map"], seeds=2, overrides={"epochs": 1}, bootstrap=20
    )
    runs = [run.evaluation for run in folder.runs]

    def worse(evaluation):
        arrays = evaluation.sets["test"]
        rows = {**arrays.rows, "negative_log_likelihood": arrays.rows["negative_log_likelihood"] + 0.25}
        return replace(evaluation, sets={**evaluation.sets, "test": replace(arrays, rows=rows)})

    pairs = [(worse(runs[0]), runs[0]), (runs[1], runs[1])]
    text = script.difference(pairs, "negative_log_likelihood", "test", None)
    assert text == "+0.1250 (0 below, 1 above 0)"


def test_a_recipe_without_data_says_how_to_get_them(tmp_path):
    for name in SPLITS:
        with pytest.raises(ValueError, match=r"add --data FOLDER; to get them: FashionMNIST"):
            run_recipe(ALL[name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_jpeg_files_without_their_header_are_read_from_the_users_folder(tmp_path):
    rng = np.random.default_rng(0)
    grey = [np.full((32, 32, 3), level, np.uint8) for level in range(0, 250, 25)]
    files = []
    for pixels in grey:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=75)
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    header = files[0][:600]
    assert all(np.array_equal(file[:600], header) for file in files)
    labels = np.tile(np.arange(10, dtype=np.uint8), 1200)
    scans = [files[label][600:] for label in labels]
    content = {"scan": np.concatenate(scans), "label": labels}
    content["offset"] = np.concatenate([[0], np.cumsum([len(scan) for scan in scans])]).astype(np.uint32)
    parts = {f"{part}_{key}": value for part in ("train", "test") for key, value in content.items()}
    np.savez(tmp_path / "cifar10_jpeg_30k.npz", jpeg_header=header, **parts)
    np.savez(tmp_path / "notmnist_10k.npz", x_test=rng.integers(0, 255, (2000, 28, 28), dtype=np.uint8))
    splits = data.cifar(tmp_path)
    x, y = splits.train
    levels = [np.unique(x[y == number].round(4)).size for number in range(8)]
    assert max(levels) <= 3, "one grey level a class, in three channels"
    assert np.all(np.diff([x[y == number].mean() for number in range(8)]) > 0)
    assert len(splits.ood["near"][0]) == 2400


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "images.py"
    spec = importlib.util.spec_from_file_location("images_table", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module
