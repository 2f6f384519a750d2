"""The contract that every inference method passes, ours or a user's: ``check_method(method)``."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import numpy as np
import torch
from torch import Tensor, nn

from .functions import Way, evaluate
from .likelihoods import Categorical, Likelihood
from .loading import load
from .mixture_posterior import MixturePosterior
from .model import Model
from .predictive import GaussianPredictive
from .random import snapshot

__all__ = ["ContractError", "check_method"]

_TOLERANCE = 1e-5
_MANY_ROWS = 512  # more than a usual batch: the order of the rows then decides what a step sees


class ContractError(AssertionError):
    """A method breaks the contract; the message names the clause."""


class _NotApplicableError(Exception):
    """A clause about draws of a vector, and a posterior that has none."""


Data = tuple[Tensor, Tensor]


def _require(holds: bool, clause: str, got: str = "") -> None:
    if not holds:
        raise ContractError(f"{clause}{f' ({got})' if got else ''}")


def _default_problem() -> tuple[nn.Module, Likelihood, Data]:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(60, 4, generator=source) * torch.tensor([1.0, 10.0, 0.1, 1.0])  # badly scaled on purpose
    y = (x[:, 0] + x[:, 1] / 10 > 0).long() + (x[:, 3] > 0.5).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        fixed = nn.Linear(3, 3, bias=False).requires_grad_(False)
        network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3), fixed)
    del fixed.bias  # a buffer instead: like the frozen weight outside the vector, so a file must hold it too
    fixed.register_buffer("bias", torch.tensor([0.5, -0.3, 0.1]))
    return network, Categorical(), (x, y)


def check_method(
    method: Any,
    *,
    network: nn.Module | None = None,
    likelihood: Likelihood | None = None,
    data: Data | None = None,
    exempt: tuple[str, ...] = (),
) -> list[str]:
    """Run the contract on a small problem.

    A posterior without a flat vector (no ``draw`` and no ``functions``, as a mixture of networks) is held to
    it by its predictions: every number of them for a seed, in place of draws. Its ``support`` says how many
    distinct draws it has: ``None`` for no end of them, 1 for none that differ.

    Args:
        method: anything with ``.fit(model, data, seed=...) -> Posterior``; give it few epochs.
        network: the network to fit; by default a small MLP with dropout and a last layer that is
            not trained (a frozen weight, a buffer).
        likelihood: must fit the network.
        data: ``(X, y)``; needed with a network of your own.
        exempt: clauses that the method breaks by its authors' design, by name; for a fit without any
            randomness that is ``"another seed, another fit"``.

    Returns:
        The names of the clauses that were checked; those that are about draws alone are left out where there
        are none.

    Raises:
        ContractError: naming the clause that fails and what was seen.
        ValueError: an unknown name in ``exempt``, or a network without data.

    Example:
        >>> import singularbayes as sb
        >>> "same seed, same draws" in check_method(sb.MAP(epochs=1))
        True
    """
    default_network, default_likelihood, default_data = _default_problem()
    if network is not None and data is None:
        raise ValueError("a network of your own needs data=(X, y) that fit it")
    network = default_network if network is None else network
    likelihood = default_likelihood if likelihood is None else likelihood
    data = default_data if data is None else data
    unknown = set(exempt) - set(CLAUSES)
    if unknown:
        raise ValueError(f"unknown clauses {sorted(unknown)}; known are {sorted(CLAUSES)}")
    done = []
    for name, check in CLAUSES.items():
        if name in exempt:
            continue
        try:
            check(method, network, likelihood, data)
        except ContractError:
            raise
        except _NotApplicableError:
            continue
        except Exception as error:
            raise ContractError(f"{name} ({type(error).__name__}: {error})") from error
        done.append(name)
    return done


def _fit(method: Any, network: nn.Module, likelihood: Likelihood, data: Data, seed: int = 0) -> Any:
    return method.fit(Model(network, likelihood), data, seed=seed)


def _has_draws(posterior: Any) -> bool:
    return hasattr(posterior, "draw")


def _drawn(posterior: Any, x: Tensor, seed: int = 0) -> Tensor:
    """Four draws; where there are none, every number of a prediction."""
    if _has_draws(posterior):
        return posterior.draw(4, seed=seed)
    return _numbers(posterior.predict(x, draws=4, seed=seed))


def _numbers(predictive: Any) -> Tensor:
    """Every number of a predictive in one row."""
    tensors = [getattr(predictive, field.name) for field in dataclasses.fields(predictive)]
    return torch.cat([tensor.double().flatten() for tensor in tensors if tensor is not None])


def _varies(posterior: Any) -> bool:
    """Whether another seed must give other draws."""
    if posterior.support is not None:
        return False
    return not _has_draws(posterior) or bool((posterior.distribution.variance > 0).any())


def _network_untouched(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    flags = [(p.requires_grad, p.grad is None) for p in network.parameters()]
    posterior = _fit(method, network, likelihood, data)
    posterior.predict(data[0], draws=3)
    moved = [name for name, tensor in network.state_dict().items() if not torch.equal(tensor, state[name])]
    _require(not moved, "the user's network is untouched", f"{', '.join(moved)} changed")
    _require(
        modes == [m.training for m in network.modules()],
        "the user's network is untouched",
        "train/eval mode changed",
    )
    same = flags == [(p.requires_grad, p.grad is None) for p in network.parameters()]
    _require(same, "the user's network is untouched", "requires_grad or .grad changed")


def _model_untouched(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    model = Model(network, likelihood)
    fields, settings = dict(vars(model)), likelihood.to_dict()
    method.fit(model, data, seed=0)
    clause = "the user's model is untouched"
    now = vars(model)
    replaced = sorted(name for name in fields | now if fields.get(name) is not now.get(name))
    _require(not replaced, clause, f"{', '.join(replaced)} replaced")
    _require(likelihood.to_dict() == settings, clause, "the likelihood's settings changed")


def _data_untouched(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    own = (data[0].clone(), data[1].clone())
    _fit(method, network, likelihood, own).predict(own[0], draws=3)
    for name, before, after in zip(("X", "y"), data, own, strict=True):
        _require(torch.equal(before, after), "the user's data are untouched", f"{name} changed")


def _global_state_untouched(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    clause, grad, put_back = "the global random state is untouched", torch.is_grad_enabled(), snapshot()
    try:
        # away from where a fit that seeds would have left it the time before
        _ = torch.rand(1), np.random.random(), random.random()  # noqa: NPY002, S311
        before = _global_states()
        with _annotations_unchecked():
            _fit(method, network, likelihood, data).predict(data[0], draws=3)
        after = _global_states()
    finally:
        put_back()
    moved = [name for name, state in before.items() if state != after[name]]
    _require(not moved, clause, f"that of {', '.join(moved)} moved")
    _require(grad == torch.is_grad_enabled(), clause, "grad mode changed")


@contextmanager
def _annotations_unchecked() -> Iterator[None]:
    """Without the check of annotations that tests may have on: beartype draws from Python's state."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _global_states() -> dict[str, str]:
    return {
        "torch": str(torch.get_rng_state().tolist()),
        "numpy": str([np.asarray(part).tolist() for part in np.random.get_state()]),  # noqa: NPY002
        "Python": str(random.getstate()),
    }


def _same_seed(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    one, two = (_fit(method, network, likelihood, data, seed=3) for _ in range(2))
    clause, drawn = "same seed, same draws", _drawn(one, data[0], seed=1)
    _require(torch.equal(drawn, _drawn(two, data[0], seed=1)), clause)
    _require(torch.equal(drawn, _drawn(one, data[0], seed=1)), clause, "of one posterior")
    if _varies(one):
        _require(not torch.equal(drawn, _drawn(one, data[0], seed=2)), clause, "the seed is ignored")


def _another_seed(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    x, y = (part.repeat(-(-_MANY_ROWS // len(part)), *[1] * (part.dim() - 1)) for part in data)
    one, two = (_fit(method, network, likelihood, (x, y), seed=seed) for seed in (3, 4))
    _require(
        not torch.equal(_drawn(one, data[0], seed=1), _drawn(two, data[0], seed=1)),
        "another seed, another fit",
        "fits with seeds 3 and 4 are equal; exempt this clause only if nothing in the fit is random",
    )


def _numpy(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    x, y = (part.numpy() for part in data)
    clause = "numpy data give what the same tensors give"
    posterior = _fit(method, network, likelihood, data)
    _same_predictions(posterior, method.fit(Model(network, likelihood), (x, y), seed=0), data[0], clause)
    same = torch.equal(posterior.predict(x, draws=4).mean, posterior.predict(data[0], draws=4).mean)
    _require(same, clause, "predictions differ")


def _minibatches(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    posterior = _fit(method, network, likelihood, data)
    clause = "minibatches give the full batch's outputs"
    if _has_draws(posterior):
        draws = posterior.draw(5)
        whole, parts = posterior.functions(draws, data[0]), posterior.functions(draws, data[0], batch_size=7)
        _require_close(whole, parts, clause)
    once, again = (posterior.predict(data[0], draws=5, seed=4, batch_size=size) for size in (None, 7))
    _require_close(once.mean, again.mean, clause)
    if not _has_draws(posterior):
        _require_close(_numbers(once), _numbers(again), clause)


def _require_close(one: Tensor, two: Tensor, clause: str) -> None:
    gap = (one - two).abs().max().item()
    _require(gap < _TOLERANCE * (1 + one.abs().max().item()), clause, f"gap {gap:.2g}")


def _ways(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    posterior = _fit(method, network, likelihood, data)
    if not _has_draws(posterior):
        raise _NotApplicableError
    draws, x = posterior.draw(3), data[0][:9]
    loop = evaluate(posterior.network, posterior.layout, draws, x, Way.LOOP)
    batched = evaluate(posterior.network, posterior.layout, draws, x, posterior.way)
    _require_close(loop, batched, "batched draws equal a loop over draws")


def _same_predictions(one: Any, two: Any, x: Tensor, clause: str) -> None:
    _require(torch.equal(_drawn(one, x), _drawn(two, x)), clause, "draws differ")
    _require(
        torch.equal(one.predict(x, draws=4).mean, two.predict(x, draws=4).mean), clause, "predictions differ"
    )


def _files(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    posterior = _fit(method, network, likelihood, data)
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(folder)
        again = load(folder, _emptied(posterior, network))
        _same_predictions(posterior, again, data[0], "a saved posterior loads to the same predictions")


def _emptied(posterior: Any, network: nn.Module) -> Any:
    """What a posterior is loaded with: zeroed copies of the user's network, or of a member's own."""
    if isinstance(posterior, MixturePosterior):
        return [_emptied(member, network) for member in posterior.members]
    own = getattr(posterior, "network", network)
    fits = [(n, p.shape) for n, p in own.named_parameters()] == [
        (n, p.shape) for n, p in network.named_parameters()
    ]
    other = copy.deepcopy(network if fits else own)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()  # everything must come from the file
    return other


def _copies(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    posterior = _fit(method, network, likelihood, data)
    posterior.predict(data[0], draws=2)
    clause = "deepcopy and pickle keep the posterior and the method"
    _same_predictions(posterior, copy.deepcopy(posterior), data[0], clause)
    _same_predictions(posterior, pickle.loads(pickle.dumps(posterior)), data[0], clause)  # noqa: S301
    again = _fit(pickle.loads(pickle.dumps(method)), network, likelihood, data)  # noqa: S301
    _same_predictions(posterior, again, data[0], clause)


def _total_variance(method: Any, network: nn.Module, likelihood: Likelihood, data: Data) -> None:
    predictive = _fit(method, network, likelihood, data).predict(data[0], draws=6)
    clause = "total uncertainty is the sum of its parts"
    if isinstance(predictive, GaussianPredictive):
        total, parts = predictive.variance, predictive.epistemic + predictive.aleatoric
    else:
        total, parts = predictive.entropy, predictive.epistemic + predictive.aleatoric
    _require(bool(torch.isfinite(total).all()), clause, "not finite")
    _require(torch.allclose(total, parts, atol=1e-5), clause)
    _require(bool((predictive.epistemic >= 0).all()), clause, "negative epistemic uncertainty")


CLAUSES: dict[str, Callable[[Any, nn.Module, Likelihood, Data], None]] = {
    "the user's network is untouched": _network_untouched,
    "the user's model is untouched": _model_untouched,
    "the user's data are untouched": _data_untouched,
    "the global random state is untouched": _global_state_untouched,
    "same seed, same draws": _same_seed,
    "another seed, another fit": _another_seed,
    "numpy data give what the same tensors give": _numpy,
    "minibatches give the full batch's outputs": _minibatches,
    "batched draws equal a loop over draws": _ways,
    "a saved posterior loads to the same predictions": _files,
    "deepcopy and pickle keep the posterior and the method": _copies,
    "total uncertainty is the sum of its parts": _total_variance,
}
