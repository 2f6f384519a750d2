"""Wrong inputs of recurrent layers: each a message with what was got and what was expected."""

import warnings

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from singularbayes.nn import LowRankGRU, LowRankLSTM
from singularbayes.nn.recurrence import _quiet_compaction


def lstm(**options) -> LowRankLSTM:
    return LowRankLSTM(7, 5, 2, 2, **options)


def test_time_and_features_swapped_is_said():
    got = (
        r"has 6 features \(shape \(4, 7, 6\)\), expected input_size = 7 on the last axis of \(time, batch, f"
    )
    with pytest.raises(ValueError, match=got + r".*; axis 1 has that size: are time and features swapped"):
        lstm()(torch.ones(4, 7, 6))
    with pytest.raises(ValueError, match=r"input_size = 7 on the last axis of \(batch, time, features\)"):
        lstm(batch_first=True)(torch.ones(4, 6, 3))


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4, 7), ()])
def test_another_number_of_axes_is_an_error(shape):
    with pytest.raises(
        ValueError, match=r"the input has shape .*; expected \(time, batch, features\) or \(time"
    ):
        lstm()(torch.ones(shape))


def test_a_sequence_without_steps_is_an_error():
    for shape, first in (((0, 4, 7), False), ((4, 0, 7), True), ((0, 7), False)):
        with pytest.raises(ValueError, match="has no time step"):
            lstm(batch_first=first)(torch.ones(shape))


def test_another_dtype_is_an_error_outside_autocast():
    with pytest.raises(ValueError, match=r"input is torch.float64 and the layer torch.float32; convert"):
        lstm()(torch.ones(3, 2, 7).double())


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_sequence_is_a_type_error():
    with pytest.raises(TypeError, match=r"got tuple; .*pack_padded_sequence"):
        lstm()((torch.ones(3, 2, 7), torch.tensor([3, 1])))
    with pytest.raises(TypeError, match="got list"):
        LowRankGRU(7, 5, 2)([1.0])


def test_packed_data_of_another_feature_size_or_with_extra_axes_is_an_error():
    swapped = pack_padded_sequence(torch.ones(2, 7, 3), torch.tensor([7, 2]), batch_first=True)
    with pytest.raises(ValueError, match=r"has 3 features .* = 7 on the last axis of what was packed"):
        lstm(batch_first=True)(swapped)
    deep = pack_padded_sequence(torch.ones(4, 2, 3, 7), torch.tensor([4, 2]))
    with pytest.raises(
        ValueError, match=r"shape \(6, 3, 7\); expected packed values of shape \(all steps, features\)"
    ):
        lstm()(deep)


@pytest.mark.parametrize("sizes", [[1, 2, 1], [2, 1], [2, 2, 0], [3, 2]])
def test_packed_data_in_the_wrong_order_is_an_error(sizes):
    # torch's kernel takes batch sizes as they are: rows of several sequences run into one another
    packed = PackedSequence(torch.ones(4, 7), torch.tensor(sizes))
    with pytest.raises(ValueError, match=r"batch sizes .* for 4 steps in all; expected sizes that fall"):
        lstm()(packed)


def test_a_batch_packed_as_if_time_came_first_meets_its_states():
    x = torch.ones(3, 6, 7)  # 3 sequences of 6 steps, packed as 6 sequences of 3
    wrong = pack_padded_sequence(x, torch.tensor([3, 3, 2, 2, 1, 1]))
    states = torch.zeros(2, 3, 5)
    with pytest.raises(ValueError, match=r"h_0 has shape \(2, 3, 5\), expected .* = \(2, 6, 5\)"):
        lstm(batch_first=True)(wrong, (states, states))


@pytest.mark.parametrize("packed", [False, True])
def test_initial_states_of_a_wrong_shape_are_errors(packed):
    layer = lstm(batch_first=True)
    x = torch.ones(4, 3, 7)
    x = pack_padded_sequence(x, torch.tensor([3, 3, 2, 1]), batch_first=True) if packed else x
    good = torch.zeros(2, 4, 5)
    axes = r"\(layers \* directions, batch, hidden\) = \(2, 4, 5\)"
    with pytest.raises(
        ValueError, match=rf"h_0 has shape \(4, 2, 5\), expected {axes}; .*h_0.transpose\(0, 1\)"
    ):
        layer(x, (good.transpose(0, 1), good))
    with pytest.raises(
        ValueError, match=r"c_0 has shape \(1, 4, 5\), expected .*\(2, 4, 5\): one for each layer"
    ):
        layer(x, (good, good[:1]))
    with pytest.raises(ValueError, match=r"h_0 has shape \(2, 5\), expected .*\(2, 4, 5\)"):
        layer(x, (good[:, 0], good[:, 0]))
    with pytest.raises(ValueError, match=r"h_0 is torch.float64 on cpu, the input torch.float32"):
        layer(x, (good.double(), good))


def test_the_states_of_an_unbatched_sequence_have_two_axes():
    layer = LowRankGRU(7, 5, 2, bidirectional=True)
    with pytest.raises(
        ValueError, match=r"h_0 has shape \(2, 1, 5\), expected \(layers \* directions, hidden\) = \(2, 5\)"
    ):
        layer(torch.ones(3, 7), torch.zeros(2, 1, 5))


@pytest.mark.usefixtures("unchecked")
def test_states_of_another_kind_are_type_errors():
    x, h = torch.ones(3, 4, 7), torch.zeros(2, 4, 5)
    with pytest.raises(TypeError, match=r"a pair \(h_0, c_0\), got Tensor"):
        lstm()(x, h)
    with pytest.raises(TypeError, match="got 3 of them"):
        lstm()(x, (h, h, h))
    with pytest.raises(TypeError, match="h_0 must be a tensor, got tuple"):
        LowRankGRU(7, 5, 2, 2)(x, (h, h))


def test_advice_to_flatten_the_parameters_is_not_passed_on(recwarn):
    with _quiet_compaction():  # cuDNN's words
        warnings.warn("RNN module weights are not part of single contiguous chunk of memory.", stacklevel=1)
    assert not recwarn.list
