"""Bias against step size of the samplers that never reject: MCLMC and SGHMC. It goes to zero with the step.

    python benchmarks/unadjusted_bias.py --data /path/to/data

Targets whose moments are known exactly:

* *gaussian*: 10 dimensions, standard deviations from 0.1 to 1 along random axes.
* *sblrc-blr* of posteriordb: y ~ N(X b, sigma), b ~ N(0, 10), sigma ~ half-N(0, 10), 100 data,
  correlated coefficients; coordinates are b and log sigma in units of their standard errors. Given sigma the
  coefficients are Gaussian, so the reference is a quadrature over sigma; it is checked against posteriordb's
  own expectations.

Many chains start from exact draws, run to the sampler's own law, and then long enough that the standard
error, of the means over chains, is small beside the bias. Columns: the mean over all axes of
``variance / exact - 1`` in percent, the largest such error of one axis, the largest error of a mean in
posterior standard deviations, each with its standard error; the slope is that of the log of the first error
against the log of the step size between this row and the one above, where both errors are beyond 3 standard
errors.
"""

import argparse
import json
import math
import time
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from singularbayes.sampling.mclmc import MCLMCSampler
from singularbayes.sampling.sampler import Sampler, Target
from singularbayes.sampling.sghmc import SGHMCSampler
from singularbayes.sampling.step_sequences import Constant
from singularbayes.sampling.target import AutogradTarget

F64 = torch.float64


class Gaussian:
    """``N(0, cov)``; ``noise`` is the standard deviation of what an estimate adds to its gradient."""

    def __init__(self, cov: Tensor) -> None:
        self.dimension, self.cov, self.precision = len(cov), cov, torch.linalg.inv(cov)
        self.mean = torch.zeros(len(cov), dtype=F64)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gradient = -x @ self.precision
        return 0.5 * (x * gradient).sum(1), gradient

    def draws(self, n: int, source: torch.Generator) -> Tensor:
        return torch.randn(n, self.dimension, generator=source, dtype=F64) @ torch.linalg.cholesky(self.cov).T


class NoisyGradient:
    """The exact gradient plus ``N(0, std^2)``, as a minibatch would have it."""

    exact = False

    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(self, target: Target, x: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        value, gradient = target(x)
        return value, gradient + self.std * torch.randn(x.shape, generator=source, dtype=x.dtype)


def gaussian() -> Gaussian:
    axes = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
    return Gaussian(axes @ torch.diag(torch.logspace(-1, 0, 10, dtype=F64).square()) @ axes.T)


def read(path: Path) -> dict:
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(file.namelist()[0]))


class Regression:
    """sblrc-blr in units of standard errors, with moments by quadrature over ``s = log sigma``."""

    def __init__(self, folder: Path) -> None:
        data = read(folder / "data" / "sblrc.json.zip")
        self.X, self.y = torch.tensor(data["X"], dtype=F64), torch.tensor(data["y"], dtype=F64)
        n, p = self.X.shape
        self.dimension = p + 1
        inverse = torch.linalg.inv(self.X.T @ self.X)
        fit = inverse @ self.X.T @ self.y
        sigma = (self.y - self.X @ fit).square().sum().div(n - p).sqrt()
        self.unit = torch.cat([sigma * inverse.diag().sqrt(), torch.tensor([(2 * n) ** -0.5], dtype=F64)])
        self.origin = torch.cat([fit, sigma.log().reshape(1)])
        self.target = AutogradTarget(self.log_density, self.dimension)
        self._moments()
        self._check(folder)

    def log_density(self, z: Tensor) -> Tensor:
        x = self.origin + self.unit * z
        b, s = x[:, :-1], x[:, -1]
        square = (self.y - b @ self.X.T).square().sum(1)
        prior = -0.5 * b.square().sum(1) / 100 - 0.5 * (2 * s).exp() / 100 + s
        return -len(self.y) * s - 0.5 * square * (-2 * s).exp() + prior

    def _moments(self) -> None:
        """Each value of ``s`` with its weight, and the Gaussian of the coefficients there."""
        self.s = self.origin[-1] + self.unit[-1] * torch.linspace(-8, 10, 2001, dtype=F64)
        gram, cross = self.X.T @ self.X, self.X.T @ self.y
        cov = torch.linalg.inv(
            gram / (2 * self.s).exp().reshape(-1, 1, 1) + torch.eye(len(gram), dtype=F64) / 100
        )
        mean = (cov @ (cross / (2 * self.s).exp().unsqueeze(1)).unsqueeze(2)).squeeze(2)
        at = torch.cat([mean, self.s.unsqueeze(1)], 1)
        log_weight = self.log_density((at - self.origin) / self.unit) + 0.5 * torch.logdet(cov)
        self.weight = torch.softmax(log_weight, 0)
        self.given = (mean, cov)
        center = self.weight @ at
        away = at - center
        total = torch.einsum("k,ki,kj->ij", self.weight, away, away)
        total[:-1, :-1] += torch.einsum("k,kij->ij", self.weight, cov)
        self.mean, self.cov = (center - self.origin) / self.unit, total / torch.outer(self.unit, self.unit)

    def _check(self, folder: Path) -> None:
        """posteriordb's means within 4 of its standard errors: 6 numbers, so a false alarm in 2,600 runs."""
        table = json.loads((folder / "mean_value" / "sblrc-blr.json").read_text())
        known, error = (torch.tensor(table[name], dtype=F64) for name in ("mean_value", "mcse_mean"))
        ours = torch.cat(
            [(self.origin + self.unit * self.mean)[:-1], (self.weight @ self.s.exp()).reshape(1)]
        )
        assert ((ours - known).abs() < 4 * error).all(), (ours, known)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.target(z)

    def draws(self, n: int, source: torch.Generator) -> Tensor:
        place = torch.multinomial(self.weight, n, replacement=True, generator=source)
        mean, cov = (part[place] for part in self.given)
        noise = torch.randn(mean.shape, generator=source, dtype=F64).unsqueeze(2)
        b = mean + (torch.linalg.cholesky(cov) @ noise).squeeze(2)
        return (torch.cat([b, self.s[place].unsqueeze(1)], 1) - self.origin) / self.unit


def measured(sampler: Sampler, target: Target, steps: int, chains: int, seed: int = 0) -> dict[str, float]:
    """Errors of the law that the sampler settles in; standard errors from the independent chains."""
    source = torch.Generator().manual_seed(seed)
    state = sampler.start(target, target.draws(chains, source), source)
    values, axes = torch.linalg.eigh(target.cov)
    first, second, energy = torch.zeros(chains, len(values), dtype=F64), 0.0, 0.0
    for step in range(steps // 4):
        state, _info = sampler.warm_up(state, step, steps // 4, target, source)
    for _ in range(steps):
        state, info = sampler.step(state, target, source)
        z = (sampler.point(state).position - target.mean) @ axes / values.sqrt()
        first, second, energy = first + z, second + z.square(), energy + info.energy_error.square().mean()
    mean, square = first / steps, second / steps
    errors = square - mean.mean(0).square() - 1
    each = errors.mean(1)
    per_axis = errors.mean(0)
    worst = int(per_axis.abs().argmax())
    far = int(mean.mean(0).abs().argmax())
    return {
        "variance": each.mean().item(),
        "variance_se": each.std().item() / math.sqrt(chains),
        "worst": per_axis[worst].item(),
        "worst_se": errors[:, worst].std().item() / math.sqrt(chains),
        "mean": mean.mean(0)[far].abs().item(),
        "mean_se": mean[:, far].std().item() / math.sqrt(chains),
        "energy": float(energy) / steps / target.dimension,
    }


def curve(name: str, build, sizes: list[float], target: Target, time_of_a_chain: float, chains: int) -> None:
    print(f"\n{name}")
    print("  step size   steps   variance %         worst axis %       mean / sd", end="")
    print("          E dE^2/d   slope  seconds")
    before = None
    for size in sizes:
        began, steps = time.perf_counter(), math.ceil(time_of_a_chain / size)
        found = measured(build(size), target, steps, chains)
        slope = math.nan
        clear = abs(found["variance"]) > 3 * found["variance_se"]
        if before is not None and clear:
            slope = math.log(abs(before[1] / found["variance"])) / math.log(before[0] / size)
        before = (size, found["variance"]) if clear else None
        pairs = [
            (100 * found["variance"], 100 * found["variance_se"]),
            (100 * found["worst"], 100 * found["worst_se"]),
        ]
        cells = "  ".join(f"{value:+8.3f} +- {error:5.3f}" for value, error in pairs)
        print(
            f"  {size:9.4f}  {steps:6d}  {cells}  {found['mean']:8.4f} +- {found['mean_se']:.4f}"
            f"  {found['energy']:9.2e}  {slope:5.1f}  {time.perf_counter() - began:6.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder with posteriordb in it; without it the Gaussian only"
    )
    parser.add_argument("--chains", type=int, default=4096)
    parser.add_argument(
        "--time", type=float, default=1.0, help="length of the runs, as a multiple of the default"
    )
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    chains, long = options.chains, options.time

    def mclmc(target: Target):
        length = math.sqrt(target.cov.trace().item())
        return lambda size: MCLMCSampler(step_size=size, length=length)

    def sghmc(friction: float, **settings):
        return lambda size: SGHMCSampler(step_sizes=Constant(size), friction=friction, **settings)

    target = gaussian()
    print(f"gaussian: 10 dimensions, standard deviations 0.1 to 1; {chains} chains")
    curve("MCLMC", mclmc(target), [0.8, 0.4, 0.2, 0.1], target, 60 * long, chains)
    curve("SGHMC, exact gradients", sghmc(2.0), [0.18, 0.09, 0.045], target, 40 * long, chains)
    noisy = NoisyGradient(10.0)
    few, sizes = max(chains // 16, 2), [0.02, 0.01, 0.005]
    title = f"SGHMC, gradients with noise of variance 100; {few} chains"
    curve(title, sghmc(2.0, gradient=noisy), sizes, target, 40 * long, few)
    known = sghmc(2.0, gradient=noisy, estimate_noise=True)
    curve(f"{title}, its variance estimated", known, sizes, target, 40 * long, few)
    if options.data is None:
        return
    target = Regression(options.data / "posteriordb")
    print(f"\nsblrc-blr: 6 dimensions; {chains} chains; the quadrature agrees with posteriordb's means")
    curve("MCLMC", mclmc(target), [4.0, 2.0, 1.0, 0.5], target, 200 * long, chains)
    curve("SGHMC, exact gradients", sghmc(1.0), [0.72, 0.36, 0.18], target, 100 * long, chains)


if __name__ == "__main__":
    main()
