"""The flat vector: which tensors it holds, in which order, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from singularbayes.nn import LowRankLinear
from singularbayes.parameters import Layout, match_names


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


class Tied(nn.Module):
    """An embedding and a head that share their table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x).mean(1))


def test_the_order_is_belief_point_likelihood_statistic():
    layout = Layout.of(mlp(), deterministic="*bias", likelihood={"log_noise": torch.zeros(1)})
    kinds = [slot.kind for slot in layout.slots]
    assert kinds == sorted(kinds, key=["belief", "point", "likelihood", "statistic"].index)
    assert [slot.name for slot in layout.of_kind("belief")] == ["0.weight", "3.weight"]
    assert layout.belief == 25
    assert layout.trained == 25 + 5 + 5 + 5 + 2 + 1
    assert layout.size == layout.trained + 10
    assert [slot.start for slot in layout.slots[1:]] == [slot.stop for slot in layout.slots[:-1]]


def test_flatten_views_and_write_are_inverse_bitwise():
    network = mlp()
    with torch.no_grad():
        for buffer in network.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2)
    layout = Layout.of(network)
    w = layout.flatten(network)
    other = mlp()
    layout.write(other, w)
    for name, tensor in layout.views(w).items():
        assert torch.equal(tensor, network.state_dict()[name])
        assert torch.equal(tensor, other.state_dict()[name])
    rows = torch.stack([w, 2 * w])
    assert layout.views(rows)["3.weight"].shape == (2, 2, 5)
    assert torch.equal(layout.views(rows)["3.weight"][1], 2 * network[3].weight)


def test_a_tied_parameter_lies_there_once_and_either_name_matches_it():
    network = Tied()
    layout = Layout.of(network)
    assert layout.size == 7 * 4 + 7
    assert layout.slots[0].aliases == ("table.weight", "head.weight")
    chosen = Layout.of(network, bayesian="head.weight")
    assert [slot.name for slot in chosen.slots] == ["table.weight"]


def test_frozen_parameters_are_left_out():
    network = mlp()
    network[0].weight.requires_grad_(False)
    names = {slot.name for slot in Layout.of(network).slots}
    assert "0.weight" not in names
    assert "0.bias" in names


def test_gains_of_normalisation_layers_are_points_unless_asked_for():
    assert {s.name for s in Layout.of(mlp()).of_kind("point")} == {"1.weight", "1.bias"}
    assert not Layout.of(mlp(), normalization=True).of_kind("point")


def test_an_unknown_pattern_names_the_nearest_parameters():
    with pytest.raises(ValueError, match=r"bayesian pattern '3\.weigth' matches no parameter.*3\.weight"):
        Layout.of(mlp(), bayesian="3.weigth")
    with pytest.raises(ValueError, match="deterministic pattern"):
        Layout.of(mlp(), bayesian="0.*", deterministic="3.bias")


def test_patterns_choose_by_shell_rules():
    names = [("0.weight",), ("0.bias",), ("10.weight",)]
    assert match_names("*0.weight", names, "x") == {"0.weight", "10.weight"}
    assert match_names(["0.*", "10.*"], names, "x") == {"0.weight", "0.bias", "10.weight"}


def test_nothing_to_believe_about_is_an_error():
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        Layout.of(frozen)
    with pytest.raises(ValueError, match="every chosen parameter is deterministic"):
        Layout.of(nn.Linear(2, 2), deterministic="*")


def test_lazy_modules_are_refused_by_name():
    network = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"1\.weight is not initialised yet"):
        Layout.of(network)


class Pretender(nn.Module):
    """What torch.compile wraps a module in, without compiling."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(x)


@pytest.mark.parametrize(
    "network", [Pretender(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), Pretender(nn.Linear(2, 2)))]
)
def test_compiled_networks_and_compiled_parts_are_refused(network):
    with pytest.raises(ValueError, match=r"was compiled; use network(\.1)?\._orig_mod"):
        Layout.of(network)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its import
def test_torch_compile_itself_is_refused():
    with pytest.raises(ValueError, match="was compiled"):
        Layout.of(torch.compile(nn.Linear(2, 2)))


def test_the_old_weight_norm_is_refused_by_name():
    with pytest.warns(FutureWarning):
        network = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"0 uses the old torch\.nn\.utils\.weight_norm"):
        Layout.of(network)


def test_a_table_that_its_forward_pass_writes_to_is_refused_by_name():
    """Before: a forward pass changed the draws of a posterior, and the positions of chains, in place."""
    network = nn.Sequential(nn.Embedding(5, 3, max_norm=0.5), nn.Flatten(), nn.Linear(6, 1))
    with pytest.raises(ValueError, match=r"0 has max_norm=0\.5: its forward pass writes to its table"):
        Layout.of(network)


def test_the_new_weight_norm_is_taken():
    network = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert Layout.of(network).size == 2 + 2 + 4


def test_mixed_dtypes_are_refused_by_name():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"one dtype and one device.*float32.*float64"):
        Layout.of(network)


def test_complex_parameters_are_refused():
    network = nn.Module()
    network.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="real floating point"):
        Layout.of(network)


@pytest.mark.usefixtures("unchecked")
def test_something_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got function"):
        Layout.of(lambda x: x)


def test_the_plain_form_gives_the_same_layout():
    layout = Layout.of(mlp(), deterministic="*bias", likelihood={"log_noise": torch.zeros(1)})
    assert Layout.from_dict(layout.to_dict()) == layout
    assert (
        Layout.from_dict(copy.deepcopy(layout.to_dict())).with_masks({"2.mask": (5,)}).size == layout.size + 5
    )


def test_factors_of_a_low_rank_layer_are_ordinary_parameters():
    layout = Layout.of(nn.Sequential(LowRankLinear(6, 5, 2)))
    assert [(slot.name, slot.shape) for slot in layout.slots] == [
        ("0.A", (5, 2)),
        ("0.B", (6, 2)),
        ("0.bias", (5,)),
    ]


def test_a_parameter_of_a_single_number_lies_in_the_row():
    # torch's view() refuses an empty list of sizes
    network = nn.Linear(2, 1, bias=False)
    network.register_parameter("gain", nn.Parameter(torch.tensor(3.0)))
    layout = Layout.of(network)
    row = layout.flatten(network)
    assert layout.views(row)["gain"].shape == ()
    assert layout.views(row.expand(4, -1))["gain"].shape == (4,)
    layout.write(network, row + 1)
    assert network.gain.item() == 4
