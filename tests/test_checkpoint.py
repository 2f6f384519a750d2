"""Files are whole or absent, strict and free of pickle."""

import json
import os

import pytest
import torch

from singularbayes import checkpoint
from singularbayes.checkpoint import read_pair, write_json, write_pair, write_text

OLD = {"w": torch.arange(5.0)}
NEW = {"w": torch.arange(5.0) + 1}


class Killed(BaseException):
    """A kill, as Python code sees none."""


def test_a_pair_is_read_back_bitwise(tmp_path):
    tensors = {
        "a": torch.randn(3, 4).T,
        "b": torch.tensor(7),
        "c": torch.zeros(0),
        "d": torch.ones(2, dtype=torch.bfloat16),
    }
    write_pair(tmp_path, "x", tensors, {"name": "é", "list": [1, None]})
    read, content = read_pair(tmp_path, "x")
    assert content == {"name": "é", "list": [1, None]}
    assert all(
        torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


def test_one_tensor_stored_under_two_names_is_read_back(tmp_path):
    write_pair(tmp_path, "x", {"a": OLD["w"], "b": OLD["w"], "c": OLD["w"][1:3]}, {})
    read, _ = read_pair(tmp_path, "x")
    assert torch.equal(read["a"], read["b"])
    assert torch.equal(read["c"], OLD["w"][1:3])


@pytest.mark.parametrize("step", range(5))
def test_a_kill_at_any_move_leaves_the_old_or_the_new_pair(tmp_path, monkeypatch, step):
    write_pair(tmp_path, "x", OLD, {"which": "old"})
    calls = 0

    def count(real):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls > step:
                raise Killed
            return real(*args, **options)

        return call

    monkeypatch.setattr(os, "replace", count(os.replace))
    monkeypatch.setattr(checkpoint.Path, "write_bytes", count(checkpoint.Path.write_bytes))
    monkeypatch.setattr(checkpoint.Path, "write_text", count(checkpoint.Path.write_text))
    try:
        write_pair(tmp_path, "x", NEW, {"which": "new"})
        finished = True
    except Killed:
        finished = False
    monkeypatch.undo()
    read, content = read_pair(tmp_path, "x")
    assert finished == (step >= 4)
    assert content["which"] == ("new" if finished else "old")
    assert torch.equal(read["w"], (NEW if finished else OLD)["w"])


def test_leftovers_of_a_killed_writer_and_old_tensors_are_removed(tmp_path):
    (tmp_path / ".x-123.safetensors.99.part").write_bytes(b"half")
    write_pair(tmp_path, "x", OLD, {})
    write_pair(tmp_path, "x", NEW, {})
    write_pair(tmp_path, "x", NEW, {})
    assert len(list(tmp_path.iterdir())) == 2


def test_two_stems_live_in_one_folder(tmp_path):
    write_pair(tmp_path, "x", OLD, {})
    write_pair(tmp_path, "y", NEW, {})
    assert torch.equal(read_pair(tmp_path, "x")[0]["w"], OLD["w"])


def test_json_is_strict(tmp_path):
    write_json(tmp_path / "a" / "x.json", {"nan": float("nan"), "inf": [float("inf"), (1.5,)], 3: True})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (tmp_path / "a" / "x.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == {"nan": None, "inf": [None, [1.5]], "3": True}
    with pytest.raises(TypeError, match="Tensor is no plain JSON type"):
        write_json(tmp_path / "x.json", {"t": torch.zeros(1)})


def test_nothing_saved_is_told_with_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no x.json in {tmp_path}"):
        read_pair(tmp_path, "x")


@pytest.mark.parametrize(
    "damage", ["cut json", "list", "no tensors", "cut tensors", "lost tensors", "binary json"]
)
def test_damaged_files_are_told_with_the_path(tmp_path, damage):
    write_pair(tmp_path, "x", OLD, {"a": 1})
    path, blob = tmp_path / "x.json", next(tmp_path.glob("*.safetensors"))
    text = path.read_text()
    match damage:
        case "cut json":
            path.write_text(text[:-5])
        case "list":
            path.write_text("[1]")
        case "no tensors":
            path.write_text('{"a": 1}')
        case "cut tensors":
            blob.write_bytes(blob.read_bytes()[:-3])
        case "lost tensors":
            blob.unlink()
        case "binary json":
            path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"x\.json (is|names tensors that are) damaged"):
        read_pair(tmp_path, "x")


def test_text_is_written_whole(tmp_path):
    write_text(tmp_path / "deep" / "é.txt", "ü\n")
    assert (tmp_path / "deep" / "é.txt").read_text(encoding="utf-8") == "ü\n"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["é.txt"]
