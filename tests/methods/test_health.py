"""A fit that went wrong says so; what a checkpoint or an ensemble cannot carry is refused or named."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import singularbayes as sb

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def model(prior=None, network=None) -> sb.Model:
    return sb.Model(
        network or nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)), sb.Categorical(), prior=prior
    )


def test_collapse_to_the_prior_is_named():
    with pytest.warns(UserWarning, match="collapsed to the prior"):
        sb.MeanField(epochs=150, learning_rate=0.05, temperature=1e4).fit(model(sb.Normal(1e-3)), (X, Y))


def test_collapse_to_the_mean_is_named():
    with pytest.warns(UserWarning, match="collapsed to its mean"):
        sb.MeanField(epochs=1, initial_std=1e-6, temperature=0).fit(model(), (X, Y))


def test_a_healthy_fit_is_silent(recwarn):
    sb.MeanField(epochs=5).fit(model(), (X, Y))
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_the_mean_of_an_ensemble_is_refused():
    posterior = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model(), (X, Y))
    with pytest.raises(ValueError, match="separate networks"):
        posterior.at_mean()
    assert sb.MAP(epochs=1).fit(model(), (X, Y)).at_mean().predict(X).draws == 1


def test_a_checkpoint_beyond_the_epochs_asked_for_is_refused(tmp_path):
    start = model()
    sb.MAP(epochs=3).fit(start, (X, Y), checkpoint=tmp_path)
    assert sb.MAP(epochs=4).fit(start, (X, Y), checkpoint=tmp_path).info["epochs"] == 4
    with pytest.raises(ValueError, match="beyond epochs=2"):
        sb.MAP(epochs=2).fit(start, (X, Y), checkpoint=tmp_path)


def test_a_checkpoint_of_other_frozen_weights_or_dict_data_is_refused(tmp_path):
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    network[0].requires_grad_(False)
    sb.MAP(epochs=1).fit(model(network=network), (X, Y), checkpoint=tmp_path / "frozen")
    with torch.no_grad():
        network[0].weight.add_(1)
    with pytest.raises(ValueError, match="another fit"):
        sb.MAP(epochs=2).fit(model(network=network), (X, Y), checkpoint=tmp_path / "frozen")

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, values):
            return self.layer(values)

    named = sb.Model(Named(), sb.Categorical())
    sb.MAP(epochs=1).fit(named, ({"values": X}, Y), checkpoint=tmp_path / "dict")
    with pytest.raises(ValueError, match="another fit"):
        sb.MAP(epochs=2).fit(named, ({"values": X + 1}, Y), checkpoint=tmp_path / "dict")


def test_members_with_spectral_norm_keep_their_own_vectors():
    network = nn.Sequential(spectral_norm(nn.Linear(3, 6)), nn.Tanh(), nn.Linear(6, 2))
    member = sb.MAP(epochs=6, learning_rate=0.1, batch_size=8)
    ensemble = sb.DeepEnsemble(members=2, member=member, reinitialize=False)
    joint = ensemble.fit(model(network=network), (X, Y))
    rows = joint.draw(2)
    kinds = {slot.name: slot for slot in joint.layout.slots if slot.kind == "statistic"}
    assert len(kinds) == 2
    assert any(not torch.equal(rows[0, s.start : s.stop], rows[1, s.start : s.stop]) for s in kinds.values())


def test_members_that_moved_other_buffers_apart_keep_their_own():
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("memory", torch.zeros(3))

        def forward(self, x):
            if self.training:
                self.memory += x.detach().sum(0) * self.layer.weight.detach().sum()
            return self.layer(x + self.memory)

    joint = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=1)).fit(model(network=Counter()), (X, Y))
    one, two = joint.members
    assert not torch.equal(one.network.memory, two.network.memory)
    by_hand = torch.stack([member.predict(X).mean for member in (one, two)]).mean(0)
    assert torch.allclose(joint.predict(X).mean, by_hand, atol=1e-6)


def test_half_precision_parameters_are_refused_with_the_way_out():
    # sigma's steps of 1e-3 vanish in bfloat16: before, it never moved
    network = nn.Sequential(nn.Linear(3, 2)).bfloat16()
    with pytest.raises(ValueError, match="autocast=True"):
        sb.MeanField(epochs=1).fit(model(network=network), (X, Y))


def test_a_learned_prior_is_refused_where_nothing_learns_it():
    with pytest.raises(ValueError, match="needs MeanField"):
        sb.MAP(epochs=1).fit(model(sb.ScaleMixture(learned=True)), (X, Y))


def test_a_checkpoint_of_other_validation_data_is_refused(tmp_path):
    sb.MAP(epochs=1).fit(model(), (X, Y), (X, Y), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another fit"):
        sb.MAP(epochs=2).fit(model(), (X, Y), (X, 1 - Y), checkpoint=tmp_path)


def test_batchnorm_without_running_statistics_is_refused_by_name():
    with pytest.raises(ValueError, match="1 is a BatchNorm1d without running statistics"):
        model(
            network=nn.Sequential(
                nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
            )
        )
    instance = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1), nn.Flatten(), nn.Linear(3, 2))
    assert model(network=instance).layout.size == 8


def test_a_device_that_is_not_there_is_one_clear_error():
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used"):
        sb.MAP(device="nowhere")


def test_a_learned_noise_that_runs_away_is_bounded_and_named():
    x = torch.zeros(20, 1)
    with pytest.warns(UserWarning, match="learned noise ran to its bound"):
        posterior = sb.MAP(epochs=600, learning_rate=0.3, temperature=0).fit(
            sb.Model(nn.Linear(1, 1, bias=False), sb.Gaussian(initial_noise=1e-4)), (x, torch.zeros(20))
        )
    assert bool(torch.isfinite(posterior.predict(x).variance).all())


def test_masks_name_the_lengths_that_do_not_fit():
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.5), nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(self.drop(x).mean(1))

    fitted = sb.MCDropout(epochs=1).fit(sb.Model(Sequence(), sb.Categorical()), (torch.randn(8, 6, 3), Y[:8]))
    with pytest.raises(ValueError, match=r"mask of shape \(6, 3\) meets an activation of shape \(9, 3\)"):
        fitted.predict(torch.randn(4, 9, 3))


class Frozen(nn.Module):
    """An encoder that is not trained, with dropout and batch normalisation, and a head that is."""

    def __init__(self, stays: bool = False) -> None:
        super().__init__()
        self.encoder = Resting() if stays else nn.Sequential()
        self.encoder.extend([nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Dropout(0.0)])
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Resting(nn.Sequential):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


def head_alone(network: nn.Module, by_pattern: bool = True) -> sb.Model:
    if by_pattern:
        return sb.Model(network, sb.Categorical(), bayesian="head.*")
    network.get_submodule("encoder").requires_grad_(False)
    return sb.Model(network, sb.Categorical())


@pytest.mark.parametrize("by_pattern", [True, False])
def test_a_frozen_encoder_that_train_mode_changes_is_named(by_pattern):
    # torch's train() switches dropout on and moves statistics, whatever is frozen: the head is then trained
    # on other features than it predicts from
    message = r"nothing in encoder is trained.*: encoder\.1, encoder\.2 \(dropout"
    with pytest.warns(UserWarning, match=message):
        sb.MeanField(epochs=1).fit(head_alone(Frozen(), by_pattern), (X, Y))


def test_a_frozen_encoder_that_stays_in_eval_mode_is_silent_and_stays_as_it_is():
    network = Frozen(stays=True)
    before = network.encoder[1].running_mean.clone()
    posterior = sb.MeanField(epochs=1).fit(head_alone(network), (X, Y))
    assert torch.equal(posterior.network.encoder[1].running_mean, before)


def test_monte_carlo_dropout_means_the_dropout_of_frozen_parts():
    network = Frozen()
    network.encoder[1] = nn.Identity()
    sb.MCDropout(epochs=1).fit(head_alone(network), (X, Y))
    with pytest.warns(UserWarning, match=r"encoder is trained.*encoder\.1 \("):
        sb.MCDropout(epochs=1).fit(head_alone(Frozen()), (X, Y))
