"""Examples with a loop of their own: the loss is the ELBO in float64, a resumed run the unbroken one."""

import pytest
import torch

from .elbo import module_loss

# The peers' faults that the value would show: a KL averaged over layers or elements, divided by the batch
# size, or not there before the first forward pass (bayesian-torch#36, tensorflow/probability#651).
TOLERANCE = {"rel": 1e-5}  # float32 sums against float64


def same_state(one, two) -> None:
    first, second = one.state_dict(), two.state_dict()
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_own_loop(example, tmp_path):
    own_loop = example("own_loop")
    module = own_loop.main(steps=3)
    x, y = own_loop.data()
    assert module.temperature == pytest.approx(0.03)
    for number, rows in ((4, slice(0, 64)), (5, slice(64, 100))):
        expected = module_loss(module, x[rows], y[rows], number)
        assert module.loss(x[rows], y[rows]).item() == pytest.approx(expected, **TOLERANCE)
    unbroken = own_loop.main(steps=6)
    own_loop.main(steps=3, checkpoint=tmp_path / "run.pt")
    same_state(own_loop.main(steps=6, checkpoint=tmp_path / "run.pt"), unbroken)
    assert not torch.equal(unbroken.mean, module.mean)


def test_diffusion(example, tmp_path):
    diffusion = example("diffusion")
    module = diffusion.main(steps=2, rows=64)
    x, noise = diffusion.noisy(diffusion.points(64), torch.Generator().manual_seed(1))
    assert module.loss(x, noise).item() == pytest.approx(module_loss(module, x, noise, 3), **TOLERANCE)
    unbroken = diffusion.main(steps=4, rows=64)
    diffusion.main(steps=2, rows=64, checkpoint=tmp_path / "run.pt")
    same_state(diffusion.main(steps=4, rows=64, checkpoint=tmp_path / "run.pt"), unbroken)


def test_a_denoiser_makes_points_and_is_more_uncertain_far_from_its_data(example):
    diffusion = example("diffusion")
    posterior = diffusion.main(steps=150, rows=256).posterior()
    near = diffusion.spread(posterior, diffusion.points(64, seed=1)).mean()
    assert diffusion.spread(posterior, torch.tensor([[4.0, 4.0]])).item() > 3 * near.item()
    made = diffusion.generate(posterior, 5)
    assert made.shape == (5, 2)
    assert torch.equal(diffusion.generate(posterior, 5), made)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_lightning(example, tmp_path):
    pytest.importorskip("lightning", reason="the example needs Lightning")
    lightning_module = example("lightning_module")
    unbroken = lightning_module.main(epochs=2)
    lightning_module.main(epochs=1, checkpoint=tmp_path / "run.ckpt")
    resumed = lightning_module.main(epochs=2, resume=tmp_path / "run.ckpt")
    same_state(resumed, unbroken)
    module = unbroken.variational
    assert int(module.drawn_count) == 8
    x, y = lightning_module.data()
    loss = unbroken.train().training_step((x, y), 0)
    assert loss.item() == pytest.approx(module_loss(module, x, y, 9), **TOLERANCE)


def test_hugging_face_trainer(example, tmp_path):
    pytest.importorskip("transformers", reason="the example needs transformers")
    pytest.importorskip("accelerate", reason="the example needs accelerate")
    trainer = example("hugging_face_trainer")
    unbroken = trainer.main(steps=4, save_steps=2, folder=str(tmp_path / "unbroken"))
    resumed = trainer.main(
        steps=4, save_steps=4, folder=str(tmp_path), resume=str(tmp_path / "unbroken" / "checkpoint-2")
    )
    same_state(resumed, unbroken)
    module = unbroken.variational
    assert int(module.drawn_count) == 4
    rows = trainer.Sentences(16, seed=3)
    inputs = {"input_ids": rows.ids, "attention_mask": rows.mask}
    network = module.network
    for layer in network.modules():  # dropout draws from the global state, which the oracle does not follow
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    for layer in module.model.network.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    loss = unbroken.train()(**inputs, labels=rows.labels)["loss"]
    assert loss.item() == pytest.approx(module_loss(module, inputs, rows.labels, 5), **TOLERANCE)
