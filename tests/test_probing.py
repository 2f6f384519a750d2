"""Networks that a posterior cannot carry are refused, each by what it does; ordinary ones pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import singularbayes as sb

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def fit(network: nn.Module, x: torch.Tensor = X) -> sb.Posterior:
    return sb.MAP(epochs=1).fit(sb.Model(network, sb.Categorical()), (x, Y))


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        x -= 1
        return self.layer(x)


class AlwaysRandom(Changes):
    def forward(self, x):
        return self.layer(F.dropout(x, 0.5))


class Squeezes(Changes):
    def forward(self, x):
        return self.layer(x).squeeze()


class UsesTheBatch(Changes):
    def forward(self, x):
        return self.layer(x - x.mean(0))


class KeepsALambda(Changes):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(3, 2)
        self.head = lambda x: 2 * self.other(x)

    def forward(self, x):
        return self.layer(x) + self.head(x)


class BatchSecond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)  # batch_first forgotten

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


REFUSED = [
    (Changes(), "changes its input in place"),
    (nn.Sequential(nn.LeakyReLU(inplace=True), nn.Linear(3, 2)), "changes its input in place"),
    (AlwaysRandom(), "random in eval mode"),
    (Squeezes(), "drops the batch axis"),
    (UsesTheBatch(), "depends on the other rows"),
    (KeepsALambda(), "still uses the original's parameters"),
]


@pytest.mark.parametrize(("network", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_a_posterior_cannot_carry_is_refused(network, message):
    kept = X.clone()
    with pytest.raises(ValueError, match=message):
        fit(network)
    assert torch.equal(X, kept), "the user's data were changed"
    assert all(p.grad is None for p in network.parameters())


def test_a_forgotten_batch_first_is_named():
    with pytest.raises(ValueError, match="batch_first=True"):
        fit(BatchSecond(), torch.randn(12, 5, 3))


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(3, 2),
        nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 2)
        ),
    ],
)
def test_ordinary_networks_pass(network):
    assert fit(network).predict(X).mean.shape == (12, 2)


def test_one_row_of_data_is_enough():
    sb.MAP(epochs=1).fit(sb.Model(nn.Linear(3, 2), sb.Categorical()), (X[:1], Y[:1]))


def test_a_fit_inside_a_callers_autocast_gives_the_same_numbers():
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    model = sb.Model(network, sb.Categorical())
    plain = sb.MAP(epochs=5, learning_rate=0.05).fit(model, (X, Y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = sb.MAP(epochs=5, learning_rate=0.05).fit(model, (X, Y))
    assert torch.equal(plain.draw(1), inside.draw(1))


def test_a_last_step_that_was_too_large_is_an_error_with_the_start():
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(sb.TrainingDiverged) as caught:
        sb.MAP(epochs=1, learning_rate=1e30).fit(sb.Model(network, sb.Categorical()), (X, Y))
    assert bool(torch.isfinite(caught.value.posterior.predict(X).mean).all())


def test_whole_numbers_that_the_dtype_would_round_are_refused():
    with pytest.raises(ValueError, match="would round"):
        fit(nn.Linear(3, 2), torch.full((12, 3), 2**24 + 1))


@pytest.mark.usefixtures("unchecked")
def test_complex_inputs_and_loaders_as_inputs_are_named():
    with pytest.raises(TypeError, match="complex"):
        fit(nn.Linear(3, 2), X + 1j)
    posterior = fit(nn.Linear(3, 2))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y))
    with pytest.raises(TypeError, match="the inputs themselves"):
        posterior.predict(loader)
    with pytest.raises(ValueError, match=r"x\[:1\], not x\[0\]"):
        posterior.predict(X[0])


def test_a_checkpoint_of_another_architecture_or_other_batches_is_refused(tmp_path):
    def network(activation):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))

    sb.MAP(epochs=1).fit(sb.Model(network(nn.ReLU()), sb.Categorical()), (X, Y), checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="another fit"):
        sb.MAP(epochs=2).fit(
            sb.Model(network(nn.Tanh()), sb.Categorical()), (X, Y), checkpoint=tmp_path / "a"
        )
    model = sb.Model(network(nn.ReLU()), sb.Categorical())
    sb.MAP(epochs=1).fit(model, [(X, Y)], checkpoint=tmp_path / "b")
    with pytest.raises(ValueError, match="another fit"):
        sb.MAP(epochs=2).fit(model, [(5 * X, Y)], checkpoint=tmp_path / "b")


def test_loading_into_another_activation_warns_and_hidden_buffers_are_saved(tmp_path):
    posterior = fit(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    posterior.save(tmp_path / "one")
    with pytest.warns(UserWarning, match="prints otherwise"):
        sb.load(tmp_path / "one", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))

    class Hidden(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("shift", torch.full((3,), shift), persistent=False)

        def forward(self, x):
            return self.layer(x + self.shift)

    hidden = fit(Hidden(2.0))
    hidden.save(tmp_path / "two")
    assert torch.equal(sb.load(tmp_path / "two", Hidden(0.0)).predict(X).mean, hidden.predict(X).mean)


def test_saving_leaves_the_users_files_alone(tmp_path):
    other = tmp_path / "posterior-backup.safetensors"
    other.write_bytes(b"mine")
    posterior = fit(nn.Linear(3, 2))
    posterior.save(tmp_path)
    posterior.save(tmp_path)
    assert other.read_bytes() == b"mine"
