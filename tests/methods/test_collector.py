"""Snapshots of a user's own loop and of checkpoints: the same posterior, and every misfit named."""

import copy
import dataclasses

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

import singularbayes as sb
from singularbayes.methods.given import given_rows

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2])
Y = (X[:, 0] > 0).long()


def network(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(3, 6), middle, nn.Tanh(), nn.Linear(6, 2))


def states(net: nn.Module, count: int = 12) -> list[dict[str, Tensor]]:
    """State dicts at the ends of epochs of plain SGD."""
    own, found = copy.deepcopy(net).train(), []
    descent = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for _ in range(count):
        for x, y in zip(X.split(12), Y.split(12), strict=True):
            descent.zero_grad()
            nn.functional.cross_entropy(own(x), y).backward()
            descent.step()
        found.append(copy.deepcopy(own.state_dict()))
    return found


def fed(collector, found) -> sb.Posterior:
    for state in found:
        collector.collect(state)
    return collector.posterior()


def test_a_users_own_loop_gives_torchs_average_and_stays_untouched():
    net = network(norm=True).train()
    averaged, collector = AveragedModel(net), sb.SWA().collector(sb.Model(net, sb.Categorical()))
    descent = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        descent.zero_grad()
        nn.functional.cross_entropy(net(X), Y).backward()
        descent.step()
        averaged.update_parameters(net)
        before = copy.deepcopy(net.state_dict())
        collector.collect(net)
        assert net.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        assert all(p.requires_grad and p.grad is not None for p in net.parameters())
    posterior = collector.posterior((X, Y))
    update_bn([X], averaged)
    exact = averaged.module.eval()(X).softmax(-1)
    assert torch.allclose(posterior.predict(X).mean, exact, atol=1e-5)
    assert posterior.info["collected"] == 5
    assert posterior.info["method"] == "SWA"


def test_checkpoints_are_read_in_the_order_of_their_numbers(tmp_path):
    net = network()
    found = states(net)
    for number, state in enumerate(found):
        torch.save(state, tmp_path / f"epoch{number + 1}.pt")  # 10 is before 2 in the order of letters
    (tmp_path / "notes.txt").write_text("no checkpoint")
    collector = sb.SWAG(rank=3).collector(sb.Model(net, sb.Categorical()))
    files = collector.collect_folder(tmp_path)
    assert [file.name for file in files] == [f"epoch{n}.pt" for n in range(1, 13)]
    direct = fed(sb.SWAG(rank=3).collector(sb.Model(net, sb.Categorical())), found)
    assert torch.equal(collector.posterior().draw(5), direct.draw(5))
    letters = fed(
        sb.SWAG(rank=3).collector(sb.Model(net, sb.Categorical())),
        [found[i] for i in sorted(range(12), key=lambda i: f"epoch{i + 1}.pt")],
    )
    assert not torch.allclose(letters.distribution.variance, direct.distribution.variance, rtol=1e-2)


def test_safetensors_entries_of_a_file_and_patterns_are_read(tmp_path):
    net = network()
    found = states(net, 4)
    for number, state in enumerate(found):
        folder = tmp_path / f"checkpoint-{number + 8}"
        folder.mkdir()
        safetensors.torch.save_file(state, folder / "model.safetensors")
        torch.save({"model": state, "epoch": number}, tmp_path / f"{number}.ckpt")
    direct = fed(sb.SWAG().collector(sb.Model(net, sb.Categorical())), found).draw(3)
    for options in ({"pattern": "checkpoint-*/model.safetensors"}, {"pattern": "*.ckpt", "key": "model"}):
        collector = sb.SWAG().collector(sb.Model(net, sb.Categorical()))
        assert len(collector.collect_folder(tmp_path, **options)) == 4
        assert torch.equal(collector.posterior().draw(3), direct)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_wrapped_networks_are_unwrapped(wrapper):
    net = network()
    found = states(net, 3)
    wrapped = [{wrapper + name: tensor for name, tensor in state.items()} for state in found]
    one, two = (fed(sb.SWAG().collector(sb.Model(net, sb.Categorical())), each) for each in (found, wrapped))
    assert torch.equal(one.draw(3), two.draw(3))


def test_a_tied_parameter_is_found_under_any_of_its_names():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    found = states(net, 3)
    without = [{name: tensor for name, tensor in state.items() if name != "0.weight"} for state in found]
    one, two = (fed(sb.SWAG().collector(sb.Model(net, sb.Categorical())), each) for each in (found, without))
    assert torch.equal(one.draw(3), two.draw(3))


def test_a_tied_parameter_that_a_checkpoint_holds_untied_is_named():
    """Taking the first of two different values would be another network's average."""

    def pair(tie: bool) -> nn.Module:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        if tie:
            network[2].weight = network[0].weight
        return network

    model, untied = sb.Model(pair(True), sb.Categorical()), pair(False)
    with pytest.raises(
        ValueError, match=r"0\.weight and 2\.weight differ, and are one parameter in the model"
    ):
        sb.SWA().collector(model).collect(untied)
    with pytest.raises(ValueError, match=r"snapshot 1: 0\.weight and 2\.weight differ"):
        given_rows(model, [pair(True), untied], "snapshot")


def test_a_factorised_network_is_collected_as_any_other():
    torch.manual_seed(0)
    layers = nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    net = sb.factorize(nn.Sequential(*layers), rank={"2": 2})
    posterior = fed(sb.SWAG().collector(sb.Model(net, sb.Categorical())), states(net, 4))
    assert posterior.layout.of_kind("belief")[2].name == "2.A"
    assert posterior.predict(X, draws=8).epistemic.min() > 0


def test_collecting_on_leaves_a_posterior_as_it_was():
    net = network()
    found = states(net)
    collector = sb.SWAG(rank=4).collector(sb.Model(net, sb.Categorical()))
    early = fed(collector, found[:6])
    draws = early.draw(5)
    assert torch.equal(collector.posterior().draw(5), draws)
    late = fed(collector, found[6:])
    assert torch.equal(early.draw(5), draws)
    whole = fed(sb.SWAG(rank=4).collector(sb.Model(net, sb.Categorical())), found)
    assert torch.allclose(late.draw(5), whole.draw(5), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(late.draw(5), draws, rtol=1e-2)


def test_running_statistics_need_the_training_data():
    net = network(norm=True)
    collector = sb.SWAG(stored_draws=3).collector(sb.Model(net, sb.Categorical()))
    for state in states(net, 3):
        collector.collect(state)
    with pytest.raises(
        ValueError, match=r"running statistics \(1.running_mean, ...\).*pass the training data"
    ):
        collector.posterior()
    posterior = collector.posterior((X, Y))
    for row in posterior.distribution.draws:
        own = copy.deepcopy(posterior.network)
        posterior.layout.write(own, row)
        assert torch.allclose(own[1].running_mean, own[0](X).mean(0), atol=1e-4)
    again = collector.posterior((X, Y))
    assert torch.equal(posterior.draw(3), again.draw(3))
    assert not torch.equal(posterior.draw(3), collector.posterior((X, Y), seed=1).draw(3))


def test_the_method_is_not_moved_by_its_collectors():
    method = sb.SWAG(rank=4)
    net = network()
    one, two = (method.collector(sb.Model(net, sb.Categorical())) for _ in range(2))
    one.collect(net)
    assert (one.trajectory.count, two.trajectory.count) == (1, 0)
    assert repr(one) == "Collector(SWAG, Trajectory(1 vectors, 1 of at most 4 deviations))"
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.rank = 5
    again = copy.deepcopy(one)
    again.collect(net)
    assert one.trajectory.count == 1


def test_zero_snapshots_are_an_error(tmp_path):
    collector = sb.SWAG().collector(sb.Model(network(), sb.Categorical()))
    with pytest.raises(ValueError, match=r"zero snapshots.*collect\(network\)"):
        collector.posterior()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        ValueError, match=r"zero snapshots: no file in .* ends in \.bin, \.ckpt, \.pt, \.pth, \.safetensors"
    ):
        collector.collect_folder(tmp_path)
    with pytest.raises(ValueError, match=r"zero snapshots: no file in .* matches '\*\.ckpt'"):
        collector.collect_folder(tmp_path, pattern="*.ckpt")
    with pytest.raises(FileNotFoundError, match="is no folder"):
        collector.collect_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("3.bias"), "epoch2.pt: there is no tensor 3.bias; it is of another architecture"),
        (
            lambda s: s.update({"0.weight": torch.zeros(7, 3)}),
            r"epoch2.pt: 0.weight has shape \(7, 3\), the model's has \(6, 3\)",
        ),
        (
            lambda s: s.update({"4.weight": torch.zeros(2)}),
            "epoch2.pt: the model's network has no tensor 4.weight",
        ),
        (lambda s: s.clear(), "epoch2.pt: there is no tensor 0.weight"),
    ],
)
def test_another_architecture_is_named_with_file_and_tensor(tmp_path, change, words):
    net = network()
    good, bad = copy.deepcopy(net.state_dict()), copy.deepcopy(net.state_dict())
    change(bad)
    torch.save(good, tmp_path / "epoch1.pt")
    torch.save(bad, tmp_path / "epoch2.pt")
    collector = sb.SWAG().collector(sb.Model(net, sb.Categorical()))
    with pytest.raises(ValueError, match=words):
        collector.collect_folder(tmp_path)
    with pytest.raises(ValueError, match=words.replace("epoch2.pt", "the network")):
        collector.collect(bad)
    assert collector.trajectory.count == 1


def test_files_that_are_no_state_dict_are_named(tmp_path):
    collector = sb.SWAG().collector(sb.Model(network(), sb.Categorical()))

    def refused(content: object, words: str, **options) -> None:
        file = tmp_path / "a.pt"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            torch.save(content, file)
        with pytest.raises(ValueError, match=words):
            collector.collect_folder(tmp_path, **options)

    refused(
        {"model": {}, "epoch": 3}, r"a.pt is no state dict; it holds model, epoch; name the right one: key="
    )
    refused({"model": {}, "epoch": 3}, r"a.pt has no entry 'net'; it holds model, epoch", key="net")
    refused(torch.zeros(3), "a.pt is no state dict; it holds a Tensor")
    refused(network(), r"a.pt cannot be read as tensors alone.*save network.state_dict\(\)")  # pickled code
    refused(b"", "a.pt cannot be read as tensors alone")
    refused(b"half a file", "a.pt cannot be read as tensors alone")
    (tmp_path / "a.pt").unlink()
    (tmp_path / "b.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"b\.safetensors cannot be read as tensors alone"):
        collector.collect_folder(tmp_path)


def test_frozen_parameters_of_another_network_are_named():
    net = network()
    net[0].requires_grad_(False)
    collector = sb.SWAG().collector(sb.Model(net, sb.Categorical()))
    state = copy.deepcopy(net.state_dict())
    collector.collect(state)
    collector.collect({name: tensor for name, tensor in state.items() if name.startswith("3.")})
    state["0.bias"] += 1
    with pytest.raises(ValueError, match=r"the network: 0\.bias is frozen in the model, but differs"):
        collector.collect(state)
    assert collector.trajectory.count == 2


def test_a_noise_that_is_learned_and_a_bare_network_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"learns likelihood.log_noise.*Gaussian\(noise=0.1\)"):
        sb.SWAG().collector(sb.Model(nn.Linear(3, 1), sb.Gaussian()))
    for method in (sb.SWA(), sb.SWAG()):
        with pytest.raises(TypeError, match=r"fits an sb\.Model"):
            method.collector(nn.Linear(3, 1))


def test_weights_that_are_not_finite_are_refused():
    net = network()
    collector = sb.SWAG().collector(sb.Model(net, sb.Categorical()))
    state = copy.deepcopy(net.state_dict())
    state["0.bias"][2] = torch.inf
    with pytest.raises(ValueError, match="vector 1 has entries that are nan or infinite"):
        collector.collect(state)


def test_a_million_weights_with_twenty_columns_take_80_mb():
    net = nn.Linear(1000, 1000, bias=False)
    collector = sb.SWAG().collector(sb.Model(net, sb.Gaussian(noise=1.0)))
    for _ in range(21):
        with torch.no_grad():
            net.weight.mul_(1.01)
        collector.collect(net)
    posterior = collector.posterior()
    held = [*posterior.distribution.tensors().values(), *collector.trajectory._columns.unsqueeze(0)]
    held += [collector.trajectory._mean, collector.trajectory._sum]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    # 20 columns of 4 MB, the mean, the sum of squares and the standard deviations; d x d would be 4 TB
    assert sum(storages.values()) == 4 * 23 * 10**6


def test_checkpoints_of_a_lightning_module_are_read(tmp_path):
    net = network()
    state = {f"model.net.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "epoch=3.ckpt")
    collector = sb.SWA().collector(sb.Model(net, sb.Categorical()))
    assert len(collector.collect_folder(tmp_path, key="state_dict")) == 1
    row = collector.model.layout.flatten(net, {})[: collector.model.layout.trained]
    assert torch.equal(collector.trajectory.mean.float(), row)


def test_what_is_no_network_and_no_state_dict_is_named(unchecked, tmp_path):
    net = network()
    collector = sb.SWAG().collector(sb.Model(net, sb.Categorical()))
    for other in (None, "epoch1.pt", sb.MAP(epochs=1)):
        with pytest.raises(TypeError, match=r"collect takes a network or its state dict, got a (No|st|MA)"):
            collector.collect(other)
    with pytest.raises(ValueError, match="got no state dict: it holds model, epoch; take the right one"):
        collector.collect({"model": net.state_dict(), "epoch": 3})
    torch.save(torch.optim.Adam(net.parameters()).state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ValueError, match=r"key='...', or choose the files of networks: pattern="):
        collector.collect_folder(tmp_path)
    assert collector.trajectory.count == 0


def test_a_pickled_network_is_refused_without_advice_to_run_it(tmp_path):
    torch.save(network(), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"tensors alone \(it holds pickled objects, or is damaged\)"):
        sb.SWAG().collector(sb.Model(network(), sb.Categorical())).collect_folder(tmp_path)
