"""Mode connectivity: curves of low loss between independently trained networks, and draws on them.

    w_t = (1 - t)^2 w_0 + 2 t (1 - t) bend + t^2 w_1           (Bezier; or a chain of straight pieces)
    bend = argmin E_{t ~ U(0, 1)} [ mean NLL(w_t) - (T / N) log p(w_t) ]
    p(t | D)  prop.  p(D | w_t)^(1/T) p(w_t) |dw_t / dt|       (draws, jointly over all curves)

One curve for every pair of networks. On the straight line between independent networks the loss rises: its
points are looked at for the barrier, and never drawn. Draws on the curves are the posterior on a set of
dimension one, not that of all weights.

References:
    Garipov et al. 2018, arXiv 1802.10026, section 3 (the curve). arXiv 2402.01484, section 3 (the posterior
    on it).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..distributions import StoredDraws
from ..model import Model, check_model
from ..posterior import Posterior
from ..probing import checked_device
from ..random import derive, generator
from .curve_learner import BuildCurve, check_priors
from .curve_profile import CurveProfile
from .curve_weights import Along, LikelihoodWeights, Weights
from .curves import Bezier, Curve, slerp, speed
from .deep_ensemble import DeepEnsemble
from .full_data import FullData
from .given import given_rows
from .resume import digest_of
from .settings import OneOfSeveral, check_whole
from .training import Training, fit_learner

__all__ = ["Connection", "ModeCurve"]

_TOGETHER = 16  # rows of weights in memory at a time


@dataclass(frozen=True, eq=False)
class Connection:
    """Networks and the trained curves between all their pairs.

    Args:
        curve: which path.
        modes: rows of the networks ``(M, D)``.
        pairs: numbers of the two ends of each curve.
        control: end, bends, end of each curve, their trained numbers ``(C, bends + 2, trained)``.
        data: the training data: for likelihoods, and for the statistics of normalisation layers.
        seconds: that training the curves took.
    """

    curve: Curve
    modes: Float[Tensor, "M D"]
    pairs: tuple[tuple[int, int], ...]
    control: Float[Tensor, "C P n"]
    data: FullData
    seconds: float

    def _settled(self, trained: Tensor) -> Tensor:
        rest = self.modes[:1, trained.shape[1] :].expand(len(trained), -1)
        return self.data.settled(torch.cat([trained, rest], 1))

    def _blocks(self, control: Tensor, coefficients: Tensor) -> Iterator[Tensor]:
        """Rows of combinations of control points, some at a time."""
        for block in coefficients.split(_TOGETHER):
            yield self._settled(block.to(control) @ control)

    def rows(self, curve: int, t: Float[Tensor, " G"]) -> Float[Tensor, "G D"]:
        """Networks at places of one curve, the statistics of their normalisation layers estimated anew.

        Args:
            curve: its number in ``pairs``.
            t: places in [0, 1].
        """
        if len(t) == 0:
            return self.modes[:0]
        weights = self.curve.weights(t.to(self.control))
        return torch.cat(list(self._blocks(self.control[curve], weights)))

    def _log_likelihoods(self, control: Tensor, coefficients: Tensor, data: Any) -> Tensor:
        return torch.cat(
            [self.data.log_likelihood(rows, data) for rows in self._blocks(control, coefficients)]
        )

    def profile(self, curve: int, data: Any = None, points: int = 31) -> CurveProfile:
        """The loss along the straight line, the arc and the trained curve.

        Args:
            curve: its number in ``pairs``.
            data: ``(X, y)``, a Dataset or batches; the training data by default. Statistics of normalisation
                layers always come from the training data.
            points: places, evenly spaced.
        """
        check_whole(points=points - 1)
        source = self.data.source if data is None else self.data.other(data)
        control = self.control[curve]
        ends = control[[0, -1]]
        t = torch.linspace(0, 1, points, dtype=torch.float64, device=control.device)
        line = torch.stack([1 - t, t], 1)
        sums = [
            self._log_likelihoods(points, weights, source)
            for points, weights in (
                (ends, line),
                (ends, slerp(t, ends)),
                (control, self.curve.weights(t)),
            )
        ]
        losses = [(-part / source.num_data).cpu().numpy() for part in sums]
        return CurveProfile(self.pairs[curve], t.cpu().numpy(), *losses)

    def along(self, grid: int) -> Along:
        """Likelihood, prior and speed along all curves at ``grid`` places."""
        control = self.control
        t = torch.linspace(0, 1, grid, dtype=torch.float64, device=control.device)
        middles = (t[1:] + t[:-1]) / 2
        likelihoods, priors, speeds = [], [], []
        for points in control:
            weights = self.curve.weights(t)
            likelihoods.append(self._log_likelihoods(points, weights, None))
            priors.append(
                torch.cat(
                    [
                        self.data.model.log_prior((block.to(points) @ points).double())
                        for block in weights.split(_TOGETHER)
                    ]
                )
            )
            speeds.append(speed(self.curve, middles, points))
        return Along(*(torch.stack(part).cpu().numpy() for part in (likelihoods, priors, speeds)))


@dataclass(frozen=True, kw_only=True)
class ModeCurve(Training):
    """Curves through trained networks and all their pairs, and draws on them. Other fields: see ``Training``.

    The fields of ``Training`` are those of the curves; ``temperature`` weighs the prior in their loss. The
    networks at the ends stay as they are. Its ``info["curves"]`` holds the loss along each way between each
    pair (``CurveProfile.from_dict`` reads an entry), barriers, and each curve's share of the draws.

    Args:
        modes: the networks: a method that trains several (an ensemble), a posterior of several, or a list
            of posteriors or networks of the model's architecture. From different initial weights: networks of
            one start lie in one basin.
        curve: ``Bezier()`` or ``Polychain()``.
        weights: how draws are spread: ``LikelihoodWeights()``, or ``BetaWeights(2, 2)``, no posterior, to
            compare with.
        draws: stored draws on all curves together.
        grid: places on a curve at which the density is computed, each a pass over the training data.
        points: places of the profiles on the training data, three passes each; the same on the validation
            data, where given, goes into ``info["curves"]`` too.

    Example:
        >>> import torch, singularbayes as sb
        >>> x = torch.linspace(-1, 1, 32).unsqueeze(1)
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> modes = sb.DeepEnsemble(members=2, member=sb.MAP(epochs=5))
        >>> method = ModeCurve(modes=modes, epochs=5, draws=8, grid=11)
        >>> posterior = method.fit(sb.Model(net, sb.Gaussian(noise=0.5)), (x, x))
        >>> curve = posterior.info["curves"].pop()
        >>> posterior.predict(x).draws, curve["pair"] == [0, 1]
        (8, True)
    """

    modes: Any = field(default_factory=DeepEnsemble)
    curve: Curve = field(default_factory=Bezier)
    weights: Weights = field(default_factory=LikelihoodWeights)
    draws: int = 64
    grid: int = 101
    points: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(draws=self.draws, grid=self.grid, points=self.points)
        for name in ("grid", "points"):
            if getattr(self, name) < 3:
                raise ValueError(f"{name} must be at least 3 places: both ends and one between, got "
                                 f"{getattr(self, name)}")  # fmt: skip
        objects = {"curve": (Curve, "Bezier()"), "weights": (Weights, "LikelihoodWeights()")}
        for name, (kind, example) in objects.items():
            value = getattr(self, name)
            if isinstance(value, type) or not isinstance(value, kind):
                raise TypeError(f"{name} must be an object such as {example}, got {value!r}")
        if self.patience is not None:
            raise ValueError(
                f"a curve has no one network whose validation NLL could stop its training; leave "
                f"patience=None (got {self.patience}), and set it in modes= for the networks at its ends"
            )

    def connect(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Connection:
        """Train the networks, where they are not given, and the curves; nothing is drawn.

        Arguments, and errors: see :meth:`fit`.
        """
        check_model(model)
        check_priors(model)
        folder = None if checkpoint is None else Path(checkpoint)
        device = checked_device(self.device) if self.device else model.device
        data = FullData(model, train, device, self.batch_size, seed)  # all checks of the data before any work
        modes, seconds = self._modes(model, train, validation, seed, folder, progress)
        if len(modes) < 2:
            raise ValueError(
                f"a curve leads from one network to another, got {len(modes)}: give modes= two or more, or a "
                f"method that trains several, such as DeepEnsemble(members=3)"
            )
        modes, trained = modes.to(device), model.layout.trained
        pairs = tuple(itertools.combinations(range(len(modes)), 2))
        control = []
        for first, last in pairs:
            if torch.equal(modes[first, :trained], modes[last, :trained]):
                raise ValueError(f"networks {first} and {last} are equal: there is no way between them")
            build = BuildCurve(self.curve, modes[[first, last], :trained])
            own = None if folder is None else folder / f"curve-{first}-{last}"
            fitted = fit_learner(
                model,
                OneOfSeveral.of(self, self.curve, digest_of(build.ends)),
                build,
                train,
                validation,
                seed=derive(seed, "curve", first, last),
                checkpoint=own,
                progress=progress,
                facts={"method": type(self).__name__},
            )
            seconds += fitted.info["seconds"]
            control.append(build.control)
        return Connection(self.curve, modes, pairs, torch.stack(control), data, seconds)

    def _modes(
        self,
        model: Model,
        train: Any,
        validation: Any,
        seed: int,
        folder: Path | None,
        progress: bool | None,
    ) -> tuple[Tensor, float]:
        given, seconds = self.modes, 0.0
        if hasattr(given, "fit") and not isinstance(given, type):
            own = None if folder is None else folder / "modes"
            given = given.fit(model, train, validation, seed=seed, checkpoint=own, progress=progress)
            seconds = given.info.get("seconds", 0.0)
        return given_rows(model, given, "mode"), seconds

    def fit(
        self,
        model: Model,
        train: Any,
        validation: Any = None,
        *,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> Posterior:
        """Train the curves and draw on them. Arguments, returns and errors: see ``MAP.fit``.

        Args:
            model: network, likelihood, prior; the networks at the ends must have its layout.
            train: ``(X, y)``, a Dataset, or batches that can be iterated again.
            validation: for the log, for the networks at the ends, and for profiles.
            seed: of everything.
            checkpoint: folder to save to and to go on from.
            progress: show a bar (``None``: on a terminal only).

        Raises:
            ValueError: also for fewer than two networks, equal ones, or ones of another layout.
        """
        connection = self.connect(
            model, train, validation, seed=seed, checkpoint=checkpoint, progress=progress
        )
        curves = len(connection.pairs)
        along = connection.along(self.grid) if self.weights.needs_density else None
        source = generator(seed, "curve draws")
        uniforms = torch.rand(self.draws, generator=source, dtype=torch.float64).numpy()
        places = self.weights.places(along, curves, self.draws, uniforms)
        order = np.argsort(places.curve, kind="stable")
        chosen, t = places.curve[order], torch.from_numpy(places.t[order])
        parts = [connection.rows(number, t[chosen == number]) for number in range(curves)]
        distribution = StoredDraws(torch.cat(parts))
        network = model.copy_network().to(distribution.draws.device)
        model.layout.write(network, distribution.draws[0])
        info = {
            "method": type(self).__name__,
            "numbers": self.draws * model.layout.trained,
            "seconds": connection.seconds,
            "epochs": self.epochs,
            "seed": seed,
            "num_data": connection.data.num_data,
            "settings": self._settings(),
            "modes": len(connection.modes),
            "curves": self._facts(connection, places.share, validation),
        }
        return Posterior(network, distribution, model.likelihood, model.layout, info)

    def _settings(self) -> dict[str, Any]:
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        modes = named.pop("modes")
        return {**named, "modes": type(modes).__name__}

    def _facts(self, connection: Connection, shares: Any, validation: Any) -> list[dict[str, Any]]:
        """Of each curve, in plain types: profile, barriers, length, share of the draws' mass."""
        middles = (torch.arange(self.grid - 1, dtype=torch.float64) + 0.5) / (self.grid - 1)
        facts = []
        for number, share in enumerate(shares):
            profile = connection.profile(number, points=self.points)
            control = connection.control[number]
            length = speed(self.curve, middles.to(control.device), control).mean().item()
            fact = {
                **profile.to_dict(),
                "barriers": profile.barriers,
                "length": length,
                "share": float(share),
            }
            if validation is not None:
                held = connection.profile(number, validation, self.points)
                fact["validation"] = {**held.to_dict(), "barriers": held.barriers}
            facts.append(fact)
        return facts
