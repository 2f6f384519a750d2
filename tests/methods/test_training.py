"""The one training loop: exact resumption, early stop, a loss that diverges, what is refused."""

import itertools
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import singularbayes as sb
from singularbayes.methods import training
from singularbayes.posterior import Posterior

SOURCE = torch.Generator().manual_seed(1)
X = torch.randn(50, 3, generator=SOURCE) * torch.tensor([1.0, 10.0, 0.1])
Y = (X[:, 0] + X[:, 1] / 10 > 0).long()


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def normed() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def model_of(network: nn.Module | None = None) -> sb.Model:
    return sb.Model(network or normed(), sb.Categorical())


def loader() -> DataLoader:
    return DataLoader(
        TensorDataset(X, Y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0)
    )


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Every checkpoint is written, and the run dies in this step."""
    monkeypatch.setattr(training, "_CHECKPOINT_SECONDS", -1.0)
    calls = 0
    original = training.Run.step

    def die(self, *args, **options):
        nonlocal calls
        calls += 1
        if calls == step:
            raise Killed
        return original(self, *args, **options)

    monkeypatch.setattr(training.Run, "step", die)


def same(one: Posterior, two: Posterior) -> bool:
    return (
        torch.equal(one.draw(6), two.draw(6))
        and torch.equal(one.predict(X).mean, two.predict(X).mean)
        and one.info["history"] == two.info["history"]
        and all(torch.equal(t, two.network.state_dict()[n]) for n, t in one.network.state_dict().items())
    )


RUNS = {
    "MAP": (sb.MAP(epochs=5, batch_size=16), lambda: (X, Y)),
    "MeanField": (sb.MeanField(epochs=5, batch_size=16), lambda: (X, Y)),
    "MeanField, warm-up and cosine": (
        sb.MeanField(epochs=5, batch_size=16, kl_start=1, kl_full=4, schedule=sb.Schedule.COSINE),
        lambda: (X, Y),
    ),
    "MAP, loader": (sb.MAP(epochs=5), loader),
    "MeanField, loader": (sb.MeanField(epochs=5), loader),
    "MeanField, data set": (sb.MeanField(epochs=5, batch_size=16), lambda: TensorDataset(X, Y)),
    "MAP, early stop": (sb.MAP(epochs=30, batch_size=16, patience=2, learning_rate=0.1), lambda: (X, Y)),
    "MeanField, early stop": (
        sb.MeanField(epochs=30, batch_size=16, patience=2, learning_rate=0.1),
        lambda: (X, Y),
    ),
    "MCDropout": (sb.MCDropout(epochs=5, batch_size=16), lambda: (X, Y)),
    "DeepEnsemble": (sb.DeepEnsemble(members=2, member=sb.MAP(epochs=5, batch_size=16)), lambda: (X, Y)),
}


@pytest.mark.parametrize("step", [2, 11])  # in the first epoch, and in the middle of a later one
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch, name, step):
    method, data = RUNS[name]
    validation = (X[:20], Y[:20])
    unbroken = method.fit(model_of(), data(), validation, seed=4)
    with monkeypatch.context() as patch:
        killed_at(patch, step)
        with pytest.raises(Killed):
            method.fit(model_of(), data(), validation, seed=4, checkpoint=tmp_path)
    torch.rand(5)  # another global state
    resumed = method.fit(model_of(), data(), validation, seed=4, checkpoint=tmp_path)
    assert same(unbroken, resumed)
    finished = method.fit(model_of(), data(), validation, seed=4, checkpoint=tmp_path)
    assert same(unbroken, finished)


def test_resumption_without_the_optimisers_state_gives_other_numbers(tmp_path, monkeypatch):
    # the mutant of the test above
    method = sb.MAP(epochs=5, batch_size=16)
    unbroken = method.fit(model_of(), (X, Y), seed=4)
    with monkeypatch.context() as patch:
        killed_at(patch, 11)
        with pytest.raises(Killed):
            method.fit(model_of(), (X, Y), seed=4, checkpoint=tmp_path)
    original = training.Run.restore

    def forgets(self, parts):
        original(self, {n: t for n, t in parts.items() if not n.startswith("optimizer")})

    monkeypatch.setattr(training.Run, "restore", forgets)
    assert not same(unbroken, method.fit(model_of(), (X, Y), seed=4, checkpoint=tmp_path))


def test_a_run_ended_by_the_system_goes_on_to_the_same_numbers(tmp_path):
    program = textwrap.dedent("""
        import os, signal, sys, torch
        from torch import nn
        import singularbayes as sb
        from singularbayes.methods import training
        torch.set_num_threads(1)
        training._CHECKPOINT_SECONDS = -1.0
        source = torch.Generator().manual_seed(1)
        x = torch.randn(50, 3, generator=source) * torch.tensor([1.0, 10.0, 0.1])
        y = (x[:, 0] + x[:, 1] / 10 > 0).long()
        torch.manual_seed(2)
        layers = [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)]
        network = nn.Sequential(*layers)
        calls, original = 0, training.Run.step
        def die(self, *args):
            global calls
            calls += 1
            if calls == 11:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args)
        training.Run.step = die
        model = sb.Model(network, sb.Categorical())
        sb.MeanField(epochs=5, batch_size=16).fit(model, (x, y), seed=4, checkpoint=sys.argv[1])
    """)
    source = Path(sb.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "training.json").is_file()
    method = sb.MeanField(epochs=5, batch_size=16)
    resumed = method.fit(model_of(), (X, Y), seed=4, checkpoint=tmp_path)
    assert same(method.fit(model_of(), (X, Y), seed=4), resumed)


def test_more_epochs_go_on_where_the_shorter_run_ended(tmp_path):
    sb.MeanField(epochs=2).fit(model_of(), (X, Y), checkpoint=tmp_path)
    longer = sb.MeanField(epochs=4).fit(model_of(), (X, Y), checkpoint=tmp_path)
    assert same(longer, sb.MeanField(epochs=4).fit(model_of(), (X, Y)))


OTHERS = {
    "seed": {"seed": 1},
    "learning rate": {"method": sb.MAP(epochs=3, learning_rate=0.1)},
    "method": {"method": sb.MeanField(epochs=3)},
    "labels": {"data": (X, 1 - Y)},
    "inputs": {"data": (X + 1, Y)},
    "rows": {"data": (X[:40], Y[:40])},
    "prior": {"model": lambda: sb.Model(normed(), sb.Categorical(), prior=sb.Normal(3.0))},
    "choice": {"model": lambda: sb.Model(normed(), sb.Categorical(), deterministic="*bias")},
    "start": {"model": lambda: model_of(nn.Sequential(*[layer.apply(shifted) for layer in normed()]))},
}


def shifted(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        with torch.no_grad():
            parameter.add_(0.01)


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, what):
    sb.MAP(epochs=2).fit(model_of(), (X, Y), checkpoint=tmp_path)
    other = OTHERS[what]
    method = other.get("method", sb.MAP(epochs=3))
    model = other["model"]() if "model" in other else model_of()
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        method.fit(model, other.get("data", (X, Y)), seed=other.get("seed", 0), checkpoint=tmp_path)


# Divergence


def batches_with(bad: Tensor | None, at: int, count: int = 5) -> list[tuple[Tensor, Tensor]]:
    data = [(torch.full((3, 1), 1.0 + i), torch.full((3,), float(i))) for i in range(count)]
    return data if bad is None else [*data[:at], (data[at][0], bad), *data[at + 1 :]]


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_last_good_posterior():
    # the label 1e30 overflows the squared error of float32 in the fourth batch of the first epoch
    model = sb.Model(nn.Linear(1, 1), sb.Gaussian(noise=1.0))
    batches = batches_with(torch.full((3,), 1e30), 3)
    with pytest.raises(
        sb.TrainingDiverged, match=r"epoch 1, step 4.*end of epoch 0.*learning_rate"
    ) as caught:
        sb.MAP(epochs=3).fit(model, batches)
    assert torch.equal(caught.value.posterior.draw(1)[0], model.layout.flatten(model.network))


def test_the_last_good_posterior_is_that_of_the_epoch_before():
    torch.manual_seed(0)
    network = nn.Linear(1, 1)

    class Late(sb.Gaussian):
        def loss(self, outputs, y, parameters):
            late.append(1)
            loss = super().loss(outputs, y, parameters)
            return loss * float("inf") if len(late) == 13 else loss

    late: list[int] = []
    good = sb.MAP(epochs=2).fit(sb.Model(network, sb.Gaussian(noise=1.0)), batches_with(None, 0))
    with pytest.raises(sb.TrainingDiverged, match="epoch 3, step 3") as caught:
        sb.MAP(epochs=5).fit(sb.Model(network, Late(noise=1.0)), batches_with(None, 0))
    assert torch.equal(caught.value.posterior.draw(1), good.draw(1))
    assert torch.isfinite(caught.value.posterior.predict(torch.ones(2, 1)).mean).all()


class RootHead(nn.Module):
    """Finite at 0, with an infinite gradient there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(self.linear(x).abs())


@pytest.mark.parametrize("method", [sb.MAP(epochs=2), sb.MeanField(epochs=2)])
def test_a_gradient_that_is_not_finite_in_the_last_step_is_no_silent_nan(method):
    model = sb.Model(RootHead(), sb.Gaussian(noise=1.0))
    with pytest.raises(sb.TrainingDiverged, match="epoch 1, step 1") as caught:
        method.fit(model, (torch.zeros(4, 1), torch.ones(4)))
    assert torch.isfinite(caught.value.posterior.draw(2)).all()


# Early stop


@pytest.mark.parametrize("method", [sb.MAP, sb.MeanField])
def test_early_stop_keeps_the_best_epoch(method):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
    noisy = torch.randint(
        0, 2, (50,), generator=torch.Generator().manual_seed(3)
    )  # nothing to learn: it overfits
    held = (X[:25] + 0.5, 1 - noisy[:25])
    settings = {"epochs": 60, "learning_rate": 0.02}
    stopped = method(**settings, patience=3).fit(model_of(network), (X, noisy), held)
    losses = [record["validation_nll"] for record in stopped.info["history"]]
    best = stopped.info["kept_epoch"]
    assert best == 1 + losses.index(min(losses))
    assert len(losses) == best + 3 < 60
    alone = method(**{**settings, "epochs": best}).fit(model_of(network), (X, noisy), held)
    assert torch.equal(stopped.draw(3), alone.draw(3))
    last = method(**{**settings, "epochs": len(losses)}).fit(model_of(network), (X, noisy), held)
    assert not torch.equal(stopped.draw(3), last.draw(3))  # the mutant: the last epoch


def test_patience_without_validation_data_is_refused():
    with pytest.raises(ValueError, match="patience=3 needs validation data"):
        sb.MAP(epochs=1, patience=3).fit(model_of(), (X, Y))


def test_the_reported_validation_loss_is_the_kept_posteriors():
    posterior = sb.MAP(epochs=4, patience=4).fit(model_of(), (X, Y), (X[:20], Y[:20]))
    nll = -posterior.predict(X[:20]).log_prob(Y[:20]).mean().item()
    assert nll == pytest.approx(min(r["validation_nll"] for r in posterior.info["history"]), abs=1e-6)


# What stays untouched


class Frozen(nn.Module):
    """A frozen body, a tie, a gain and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.body = nn.Linear(3, 4).requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.relu(self.first(self.norm(self.body(x)))))))


METHODS = [sb.MAP(epochs=3), sb.MeanField(epochs=3), sb.DeepEnsemble(members=2, member=sb.MAP(epochs=3))]


@pytest.mark.filterwarnings("ignore:.* can be trained")  # on purpose
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("choice", [{}, {"bayesian": ["head.*", "norm.*"]}, {"bayesian": "second.weight"}])
def test_frozen_parameters_stay_bitwise_and_ties_stay_tied(method, choice):
    network = Frozen()
    model = sb.Model(network, sb.Categorical(), **choice)
    posterior = method.fit(model, (X, Y))
    moved = {slot.name for slot in model.layout.slots}
    after = dict(posterior.network.named_parameters())
    for name, parameter in network.named_parameters():
        if name not in moved:
            assert torch.equal(after[name], parameter), name
        elif not isinstance(method, sb.DeepEnsemble):
            assert not torch.equal(after[name], parameter), name
    assert posterior.network.second.weight is posterior.network.first.weight
    assert "body.weight" not in moved
    row = posterior.draw(1)[0]
    views = model.layout.views(row)
    oracle = Frozen()
    model.layout.write(oracle, row)
    assert torch.allclose(posterior.functions(row.unsqueeze(0), X)[0], oracle.eval()(X), atol=1e-5)
    assert set(views) == moved


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_fit_works_inside_no_grad_and_leaves_it_on(method):
    with torch.no_grad():
        posterior = method.fit(model_of(), (X, Y))
        assert not torch.is_grad_enabled()
    assert torch.equal(posterior.draw(2), method.fit(model_of(), (X, Y)).draw(2))


def test_the_users_loader_and_its_generator_are_untouched():
    own = torch.Generator().manual_seed(9)
    data = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=own)
    state, before = own.get_state(), torch.get_rng_state()
    one = sb.MAP(epochs=2).fit(model_of(), data, data)
    assert torch.equal(own.get_state(), state)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(one.draw(1), sb.MAP(epochs=2).fit(model_of(), data, data).draw(1))


def test_an_error_in_training_puts_the_global_state_back():
    def fail(*args):
        raise RuntimeError("stop")

    before = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Run, "step", fail)
        with pytest.raises(RuntimeError, match="stop"):
            sb.MAP(epochs=1).fit(model_of(), loader())
    assert torch.equal(torch.get_rng_state(), before)


# Kinds of data


class Words(nn.Module):
    """Takes a dict, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        weight = torch.ones(input_ids.shape) if attention_mask is None else attention_mask.float()
        h = (self.table(input_ids) * weight.unsqueeze(-1)).sum(1) / weight.sum(1, keepdim=True)
        return {"logits": self.head(h)}


def test_dict_batches_train_as_the_same_tensors_do():
    ids = torch.randint(0, 20, (12, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::2, 3:] = 0
    y = ids[:, 0] % 2
    features = {"input_ids": ids, "attention_mask": mask}
    batches = [{**{k: v[i : i + 6] for k, v in features.items()}, "labels": y[i : i + 6]} for i in (0, 6)]
    method = sb.MAP(epochs=2, batch_size=6)
    one = method.fit(model_of(Words()), batches)
    two = method.fit(model_of(Words()), batches[:1] + batches[1:], batches)
    assert torch.equal(one.draw(1), two.draw(1))
    assert one.predict(features).mean.shape == (12, 2)
    whole = sb.MAP(epochs=2, batch_size=12).fit(model_of(Words()), (features, y))
    joined = sb.MAP(epochs=2).fit(model_of(Words()), [{**features, "labels": y}])
    assert torch.allclose(whole.draw(1), joined.draw(1), atol=1e-6)


def test_a_dataset_trains_as_its_tensors_do():
    method = sb.MeanField(epochs=2, batch_size=16)
    one, two = method.fit(model_of(), (X, Y)), method.fit(model_of(), TensorDataset(X, Y))
    assert torch.equal(one.draw(2), two.draw(2))
    assert one.info["num_data"] == two.info["num_data"] == 50


@pytest.mark.parametrize("shape", ["(N,)", "(N, 1)", "int", "float64"])
def test_labels_of_any_usual_shape_give_the_same_fit(shape):
    y = {"(N,)": Y, "(N, 1)": Y.unsqueeze(1), "int": Y.int(), "float64": Y.double()}[shape]
    method = sb.MAP(epochs=1)
    assert torch.equal(method.fit(model_of(), (X, y)).draw(1), method.fit(model_of(), (X, Y)).draw(1))
    regression = sb.Model(nn.Linear(3, 1), sb.Gaussian(noise=1.0))
    assert torch.equal(method.fit(regression, (X, y)).draw(1), method.fit(regression, (X, Y.float())).draw(1))


def test_numpy_float64_trains_a_float32_network_to_the_same_numbers():
    method = sb.MAP(epochs=1)
    assert torch.equal(
        method.fit(model_of(), (X.double().numpy(), Y.numpy())).draw(1),
        method.fit(model_of(), (X, Y)).draw(1),
    )


def test_a_float64_network_stays_float64():
    posterior = sb.MeanField(epochs=1).fit(model_of(normed().double()), (X, Y))
    assert posterior.draw(1).dtype == torch.float64
    assert posterior.predict(X).mean.dtype == torch.float64


def test_a_last_batch_of_one_row_trains_a_batch_norm():
    sb.MAP(epochs=1, batch_size=7).fit(model_of(), (X, Y))  # 50 = 7 x 7 + 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((X, Y + 1), "label 2 in row"),
        ((X, Y - 1), "label -1 in row"),
        ((X[:, :2], Y), r"the network failed on inputs of shape \(2, 2\)"),
        ((X, Y[:7]), "X has 50 rows and y has 7"),
        ((X, torch.rand(50)), "is no class index"),
        ((X, torch.zeros(50, 2)), "one class index per row"),
        ([(X[:5], Y[:5]), (X[5:], Y[5:] + 7)], "label 7 in row|label 8 in row"),
    ],
)
def test_data_that_do_not_fit_the_model_are_named(data, words):
    with pytest.raises(ValueError, match=words):
        sb.MAP(epochs=1).fit(model_of(), data)


def test_a_generator_is_refused():
    with pytest.raises(TypeError, match="read only once"):
        sb.MAP(epochs=1).fit(model_of(), ((X, Y) for _ in range(3)))


def test_the_temperature_weighs_the_prior():
    def norm(temperature: float) -> float:
        posterior = sb.MAP(epochs=60, learning_rate=0.05, temperature=temperature).fit(
            model_of(nn.Linear(3, 2)), (X, Y)
        )
        return posterior.draw(1).norm().item()

    assert norm(0.0) > norm(1.0) > norm(100.0)


def test_info_holds_plain_facts():
    info = sb.MAP(epochs=2).fit(model_of(), (X, Y), seed=3).info
    assert info["method"] == "MAP"
    assert info["epochs"] == info["kept_epoch"] == 2
    assert info["seed"] == 3
    assert info["numbers"] == sum(p.numel() for p in normed().parameters())
    assert [sorted(record) for record in info["history"]] == [["nll", "objective"]] * 2


# Each of these fails for one small change of the loop


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("method", [sb.MAP, sb.MeanField])
def test_a_fit_inside_a_callers_autocast_gives_the_same_numbers(method, autocast):
    # the caller's cache of cast weights would keep those of the first step
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, "autocast": autocast}
    outside = method(**settings).fit(model_of(), (X, Y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = method(**settings).fit(model_of(), (X, Y))
    assert same(outside, inside)


def test_the_cosine_schedule_moves_at_every_step(monkeypatch):
    rates = []
    original = training.Run.step

    def note(self, *args, **options):
        rates.append(self.optimizer.param_groups[0]["lr"])
        return original(self, *args, **options)

    monkeypatch.setattr(training.Run, "step", note)
    method = sb.MAP(epochs=2, batch_size=10, learning_rate=0.1, schedule=sb.Schedule.COSINE)
    method.fit(model_of(), (X, Y))
    expected = [0.05 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]
    assert rates == pytest.approx(expected, abs=1e-12)


def test_early_stop_keeps_the_lowest_validation_loss_however_small_the_gain():
    # the validation set is the training set and steps are small: every epoch is better, by less than .01
    method = sb.MAP(epochs=12, batch_size=50, learning_rate=1e-3, patience=3)
    torch.manual_seed(0)
    info = method.fit(model_of(nn.Linear(3, 2)), (X / X.std(0), Y), (X / X.std(0), Y)).info
    losses = [record["validation_nll"] for record in info["history"]]
    gains = [before - after for before, after in itertools.pairwise(losses)]
    assert 0 < min(gains) <= max(gains) < 0.01
    assert info["kept_epoch"] == 1 + losses.index(min(losses)) == 12
    torch.manual_seed(0)
    grows = sb.MAP(epochs=12, learning_rate=1e-3, patience=3).fit(
        model_of(nn.Linear(3, 2)), (X / X.std(0), Y), (X / X.std(0), 1 - Y)
    )
    worse = [record["validation_nll"] for record in grows.info["history"]]
    assert 0 < worse[1] - worse[0] < 0.01  # a little worse is worse
    assert grows.info["kept_epoch"] == 1 + worse.index(min(worse)) == 1
    assert len(worse) == 4


class Follows(nn.Module):
    """Subtracts a running mean that it keeps in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
            self.seen = self.seen + 1
        return x - self.centre


@pytest.mark.parametrize("method", [sb.MAP, sb.MeanField])
def test_the_posterior_holds_the_final_value_of_a_buffer_that_moves(method):
    torch.manual_seed(0)
    network = nn.Sequential(Follows(), nn.Linear(3, 2))
    posterior = method(epochs=3, batch_size=50).fit(model_of(network), (X, Y))
    expected = torch.zeros(3)
    for _ in range(3):
        expected = 0.9 * expected + 0.1 * X.mean(0)
    assert torch.allclose(posterior.network[0].centre, expected, rtol=1e-5)
    assert posterior.network[0].seen == 3
    assert not network[0].centre.any()


def test_a_checkpoint_of_another_frozen_weight_is_refused(tmp_path):
    sb.MAP(epochs=2).fit(model_of(Frozen()), (X, Y), checkpoint=tmp_path)
    other = Frozen()
    with torch.no_grad():
        other.body.weight[0, 0] += 0.01
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        sb.MAP(epochs=3).fit(model_of(other), (X, Y), checkpoint=tmp_path)


def test_a_batch_of_one_row_before_a_batch_normalisation_is_named():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    data = TensorDataset(torch.randn(9, 2), torch.tensor([0, 1, 1] * 3))
    model = sb.Model(net, sb.Categorical())
    with pytest.raises(ValueError, match=r"train on a batch of one row \(Expected more.*drop_last=True"):
        sb.MAP(epochs=1).fit(model, DataLoader(data, batch_size=8))
    sb.MAP(epochs=1).fit(model, DataLoader(data, batch_size=8, drop_last=True))
