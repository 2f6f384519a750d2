"""Spectra of every layer of a network, of a posterior, of a checkpoint's tensors."""

import pytest
import safetensors.torch
import torch
from torch import nn

import singularbayes as sb
from singularbayes.theory import (
    effective_rank,
    singular_values,
    singular_values_of_tensors,
    stable_rank,
)
from singularbayes.theory.tensor_files import read_tensors


def every_kind() -> nn.ModuleDict:
    return nn.ModuleDict({
        "linear": nn.Linear(7, 9), "embedding": nn.Embedding(11, 6), "conv": nn.Conv2d(2, 8, 3),
        "rnn": nn.LSTM(5, 6, bidirectional=True), "attention": nn.MultiheadAttention(8, 2),
        "norm": nn.LayerNorm(9),
    })  # fmt: skip


def test_every_matrix_of_every_kind_of_layer_has_the_values_of_a_dense_decomposition():
    network = every_kind()
    found = {layer.title: layer for layer in singular_values(network)}
    q, k, v = network["attention"].in_proj_weight.chunk(3)
    expected = {
        "linear": network["linear"].weight, "embedding": network["embedding"].weight,
        "conv": network["conv"].weight.flatten(1),
        **{f"rnn.{x}": w for x, w in network["rnn"].named_parameters() if "weight" in x},
        "attention.q_proj_weight": q, "attention.k_proj_weight": k, "attention.v_proj_weight": v,
        "attention.out_proj.weight": network["attention"].out_proj.weight,
    }  # fmt: skip
    assert set(found) == set(expected)
    for title, weight in expected.items():
        values = torch.linalg.svdvals(weight.detach().double())
        torch.testing.assert_close(found[title].values, values, rtol=1e-9, atol=1e-12)
        assert found[title].shape == tuple(weight.shape)


def test_low_rank_layers_are_read_as_products_and_their_rank_shows():
    low = sb.factorize(every_kind(), 2)
    spectra = singular_values(low)
    assert {layer.rank for layer in spectra} == {2}
    product = torch.linalg.svdvals(low["linear"].weight.detach().double())
    torch.testing.assert_close(spectra["linear"].values[:2], product[:2], rtol=1e-6, atol=1e-9)


def test_the_spectra_of_a_posterior_are_those_of_its_mean_and_ties_are_listed_once(words):
    titles = [layer.title for layer in singular_values(words)]
    assert titles.count("embedding") == 1
    assert "head" not in titles
    merged = singular_values(words.merged())
    for layer in singular_values(words):
        torch.testing.assert_close(layer.values, merged[layer.title].values)


def test_ranks_of_a_matrix_and_of_its_values_are_the_same():
    covariance = torch.tensor([[2.5, 1.5, 0.0], [1.5, 2.5, 0.0], [0.0, 0.0, 1.0]])  # eigenvalues 4, 1, 1
    assert effective_rank(covariance) == pytest.approx(2.0, rel=1e-6)  # of its entries it would be another
    assert effective_rank(torch.tensor([4.0, 1.0, 1.0])) == 2.0
    assert stable_rank(covariance) == pytest.approx(18 / 16, rel=1e-6)


def test_a_truncation_says_what_is_kept_lost_and_saved():
    network = nn.Linear(12, 10)
    values = torch.linalg.svdvals(network.weight.detach().double())
    cut = singular_values(network).layers[0].at(3)
    assert cut.kept == pytest.approx((values[:3].square().sum() / values.square().sum()).item(), rel=1e-9)
    assert cut.frobenius == pytest.approx(values[3:].norm().item(), rel=1e-9)
    assert cut.spectral == pytest.approx(values[3].item(), rel=1e-9)
    assert (cut.numbers, cut.saved) == (3 * 22, 120 - 66)
    full = singular_values(network).layers[0].at(10)
    assert (full.spectral, full.frobenius, full.kept) == (0.0, 0.0, 1.0)
    assert full.saved == 120 - 220  # the factors of full rank are larger than the matrix
    with pytest.raises(ValueError, match=r"rank 11 is outside 1\.\.10"):
        singular_values(network).layers[0].at(11)


def test_the_break_even_rank_is_where_factors_stop_being_smaller_not_the_smaller_side():
    layer = singular_values(nn.Linear(64, 64)).layers[0]
    assert layer.break_even == 32.0
    assert layer.at(31).saved > 0
    assert layer.at(32).saved == 0


def test_the_table_names_every_matrix_and_prints_in_columns():
    spectra = singular_values(every_kind())
    assert len(str(spectra).splitlines()) == len(spectra) + 1
    table = spectra.table()
    assert list(table["layer"]) == [layer.title for layer in spectra]
    assert (table["stable"] <= table["effective"] + 1e-9).all()
    assert (table["r for 90%"] <= table["r for 99%"]).all()
    with pytest.raises(KeyError, match="no matrix 'x'; there are linear"):
        spectra["x"]


def test_networks_without_a_spectrum_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="no layer with a weight matrix"):
        singular_values(nn.LayerNorm(3))
    broken = nn.Sequential(nn.Linear(3, 3))
    with torch.no_grad():
        broken[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"0\.weight: .*not finite"):
        singular_values(broken)
    with pytest.raises(ValueError, match="meta device"):
        singular_values(nn.Linear(3, 3, device="meta"))


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_tensors_of_a_checkpoint_give_the_same_spectra_as_the_network(diagonal):
    low = sb.factorize(every_kind(), 2, diagonal=diagonal)
    with torch.no_grad():
        for name, scale in low.named_parameters():
            if name.rpartition(".")[2].startswith("s"):  # s starts at 1
                scale.copy_(torch.tensor([3.0, 0.2]))
    for network in (every_kind(), low):
        by_network, by_tensors = (
            sorted(((s.shape, s.values) for s in spectra), key=lambda pair: (pair[0], float(pair[1].sum())))
            for spectra in (singular_values(network), singular_values_of_tensors(network.state_dict()))
        )
        assert [shape for shape, _ in by_network] == [shape for shape, _ in by_tensors]
        for (_, one), (_, other) in zip(by_network, by_tensors, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_tensors_called_a_and_b_that_are_no_pair_are_read_alone():
    tensors = {"A": torch.randn(5, 3), "B": torch.randn(4, 2), "step": torch.tensor(3), "x": torch.ones(4)}
    assert {layer.shape for layer in singular_values_of_tensors(tensors)} == {(5, 3), (4, 2)}
    with pytest.raises(ValueError, match="none of the 1 tensors has two axes"):
        singular_values_of_tensors({"x": torch.ones(4)})


def test_checkpoint_files_are_read_and_nothing_in_them_is_run(tmp_path):
    network = nn.Sequential(nn.Linear(4, 5))
    torch.save(network.state_dict(), tmp_path / "plain.pt")
    torch.save({"state_dict": network.state_dict(), "epoch": 3}, tmp_path / "lightning.ckpt")
    safetensors.torch.save_file(dict(network.state_dict()), tmp_path / "x.safetensors")
    for name in ("plain.pt", "lightning.ckpt", "x.safetensors"):
        assert set(read_tensors(tmp_path / name)) == {"0.weight", "0.bias"}
    torch.save(network, tmp_path / "whole.pt")  # a pickle of classes
    (tmp_path / "text.pt").write_text("no tensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    for name, message in {"whole.pt": "cannot be read as tensors alone", "text.pt": "cannot be read",
                          "text.safetensors": "no safetensors file", "numbers.pt": "holds no tensors by name",
                          "absent.pt": "is no file"}.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_tensors(tmp_path / name)
