"""Hybrid VI-HMC against HMC on all parameters: what is kept, what is lost, what it costs.

    python benchmarks/hybrid_hmc.py sine --out build/bench/hybrid
    python benchmarks/hybrid_hmc.py kin8nm --out build/bench/hybrid --data FOLDER [--rows 1000]

`sine`: 1-10-10-1 tanh (141 parameters), 20 points of 4 sin 4x + 5 cos 12x on [-1, -.2] and [.2, 1], noise
.05, prior N(0, 1) (arXiv 2507.14652). `kin8nm`: 8-128-122-1 tanh (17,013 parameters) on --rows training rows.

Every row starts from one variational fit, and its chains at draws of it. Tables, as Markdown:

1. kept: entries that each rule keeps at tau .5, .8, .9, .95, .99;
2. same step: acceptance with one step size for all rows, unit mass in units of the weights, equally long
   moves;
3. predictions: mean and standard deviation of the outputs against those of HMC on all parameters: the largest
   gap over inputs in MCSE (of both), the ratio of the standard deviations, R-hat (the largest, the median);
   acceptance, adapted step size (in standard deviations of the variational fit, under the adapted mass),
   gradients a move, ESS of the outputs per 1,000 gradients, those of warm-up included.

Fits are kept in --out: a killed run goes on there.
"""

import argparse
import itertools
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import singularbayes as sb
from singularbayes import checkpoint
from singularbayes.methods import Candidates
from singularbayes.random import generator
from singularbayes.recipes.data.uci import load
from singularbayes.sampling.mass import UnitMass

TAUS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Problem:
    """What is fitted, and where predictions are compared."""

    models: list[sb.Model]  # of several starts: the best MAP of them is taken
    train: tuple[Tensor, Tensor]
    inputs: dict[str, Tensor]
    test: tuple[Tensor, Tensor] | None
    start: Any
    vi: sb.MeanField
    hmc: sb.HMC
    steps: tuple[float, ...]
    leaps: int


def network(widths: tuple[int, ...], scale: float, seed: int) -> nn.Sequential:
    """Weights of N(0, scale^2 / fan-in), biases of N(0, scale^2): wide enough to find the fast waves."""
    source = generator(seed, "start")
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Linear(a, b, dtype=torch.float64), *([nn.Tanh()] if number < len(widths) - 2 else [])]
    with torch.no_grad():
        for layer in layers[::2]:
            fan_in = layer.in_features
            size = layer.weight.shape
            layer.weight.copy_(torch.randn(size, generator=source, dtype=torch.float64) * scale / fan_in**0.5)
            layer.bias.copy_(torch.randn(size[:1], generator=source, dtype=torch.float64) * scale)
    return nn.Sequential(*layers)


def sine(_arguments: argparse.Namespace) -> Problem:
    x = torch.cat([torch.linspace(-1, -0.2, 10), torch.linspace(0.2, 1, 10)]).double()
    noise = 0.05 * torch.randn(20, generator=generator(0, "noise"), dtype=torch.float64)
    y = 4 * torch.sin(4 * x) + 5 * torch.cos(12 * x) + noise
    models = [sb.Model(network((1, 10, 10, 1), 2.0, seed), sb.Gaussian(noise=0.05)) for seed in range(6)]
    grid = torch.linspace(-1.2, 1.2, 97, dtype=torch.float64)
    between = grid[(grid.abs() < 0.2) | (grid.abs() > 1)]
    return Problem(
        models,
        (x.unsqueeze(1), y.unsqueeze(1)),
        {"data": x.unsqueeze(1), "off the data": between.unsqueeze(1)},
        None,
        sb.MAP(epochs=5000, learning_rate=1e-2, schedule=sb.Schedule.COSINE),
        sb.MeanField(epochs=12_000, learning_rate=1e-2, initial_std=0.1, schedule=sb.Schedule.COSINE,
                     gradient=sb.Gradient.LOCAL),
        sb.HMC(chains=16, warm_up=200, draws=150, max_steps=200),
        (5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
        50,
    )  # fmt: skip


def kin8nm(arguments: argparse.Namespace) -> Problem:
    splits = load(arguments.data, "kin8nm", 0)
    (x, y), (x_test, y_test) = (map(torch.as_tensor, pair) for pair in (splits.train, splits.test))
    keep = torch.randperm(len(x), generator=generator(0, "rows"))[: arguments.rows]
    start = network((8, 128, 122, 1), 1.0, 0).float()
    model = sb.Model(start, sb.Gaussian(noise=0.3), prior=sb.Normal(0.2))
    epochs = 300
    return Problem(
        [model],
        (x[keep], y[keep]),
        {"test": x_test[:40]},
        (x_test, y_test),
        sb.MAP(epochs=epochs, learning_rate=1e-3, schedule=sb.Schedule.COSINE),
        sb.MeanField(epochs=epochs, learning_rate=3e-3, initial_std=0.1, schedule=sb.Schedule.COSINE,
                     gradient=sb.Gradient.LOCAL),
        sb.HMC(chains=4, warm_up=100, draws=100, max_steps=30),
        (1e-4, 1e-3, 3e-3, 1e-2, 2e-2),
        20,
    )  # fmt: skip


def stored(folder: Path, model: sb.Model, fit: Any) -> sb.Posterior:
    """The posterior in ``folder``, fitted there if there is none."""
    if (folder / "posterior.json").is_file():
        return sb.load(folder, model.copy_network())
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # acceptance and divergences are in the tables
        posterior = fit(folder / "checkpoint")
    posterior.info["cpu_seconds"] = time.process_time() - began
    posterior.save(folder)
    print(f"{folder.name}: {posterior.info['cpu_seconds']:.0f} s of CPU", flush=True)
    return posterior


def log_joint(model: sb.Model, posterior: sb.Posterior, train: tuple[Tensor, Tensor]) -> float:
    row = posterior.distribution.mean
    outputs = posterior.functions(row.unsqueeze(0), train[0])[0]
    labels = model.likelihood.labels(outputs.shape, train[1])
    return float(model.likelihood.log_prob(outputs, labels, {}).sum() + model.log_prior(row))


def variational(problem: Problem, out: Path) -> tuple[sb.Model, sb.Posterior]:
    """The best MAP of several starts, and the variational fit from there."""
    points = [
        stored(out / f"map-{number}", model, lambda folder, model=model: problem.start.fit(
            model, problem.train, checkpoint=folder))
        for number, model in enumerate(problem.models)
    ]  # fmt: skip
    levels = [log_joint(m, p, problem.train) for m, p in zip(problem.models, points, strict=True)]
    print("log p(D, w) of the MAPs: " + ", ".join(f"{level:.1f}" for level in levels))
    best = int(np.argmax(levels))
    model = problem.models[best].started_at(points[best])
    q = stored(out / "vi", model, lambda folder: problem.vi.fit(model, problem.train, checkpoint=folder))
    outputs = q.functions(q.draw(400), problem.train[0])[..., 0]
    gap = outputs.mean(0) - problem.train[1].flatten()
    rmse, spread = gap.square().mean().sqrt().item(), outputs.std(0).mean().item()
    print(
        f"variational fit: RMSE on the training data {rmse:.3f}, mean standard deviation of outputs there "
        f"{spread:.3f}; objective {q.info['history'][-1]['objective']:.3f}"
    )
    return model, q


def markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines)) + "\n"


def kept_table(candidates: Candidates) -> str:
    lines = []
    for name, rule in (("sensitivity", sb.Sensitivity), ("gradient variance", sb.GradientVariance)):
        scores = rule().scores(candidates)
        lines.append([name, *(str(len(rule(share=tau).largest(scores))) for tau in TAUS)])
    return markdown([f"of {len(candidates.std):,}, at tau", *map(str, TAUS)], lines)


def rows_of(problem: Problem, q: sb.Posterior, candidates: Candidates) -> dict[str, sb.HybridHMC]:
    """All that is compared: the first is HMC on all parameters."""
    half = len(candidates.std) // 2

    def row(rule: Any, rest: Any = None) -> sb.HybridHMC:
        return sb.HybridHMC(vi=q, select=rule, sampler=problem.hmc, rest=rest or sb.Frozen())

    return {
        "all": row(sb.AllParameters()),
        "sensitivity .9": row(sb.Sensitivity(0.9)),
        "sensitivity, half": row(sb.Sensitivity(count=half)),
        "gradient variance, half": row(sb.GradientVariance(count=half)),
        "random, half": row(sb.RandomSelection(count=half)),
        "sensitivity .9, redrawn": row(sb.Sensitivity(0.9), sb.Redrawn()),
        "sensitivity .9, spread added": row(sb.Sensitivity(0.9), sb.SpreadAdded()),
    }


@dataclass(frozen=True)
class Outputs:
    """Of the network, by chain, at some inputs."""

    values: np.ndarray  # (C, N, B)

    def compared(self, full: "Outputs") -> list[str]:
        mean, std = (getattr(self.values, f)((0, 1)) for f in ("mean", "std"))
        mean_full, std_full = (getattr(full.values, f)((0, 1)) for f in ("mean", "std"))
        gaps = []
        for here, there, error in (
            (mean, mean_full, sb.chains.mcse_mean),
            (std, std_full, sb.chains.mcse_std),
        ):
            unit = np.sqrt(np.asarray(error(self.values)) ** 2 + np.asarray(error(full.values)) ** 2)
            gaps.append(np.abs(here - there) / unit)
        rhat = np.asarray(sb.chains.rhat(self.values))
        within = np.mean(np.maximum(*gaps) < 4)
        return [f"{gaps[0].max():.1f}", f"{gaps[1].max():.1f}", f"{within:.0%}",
                f"{np.exp(np.log(std / std_full).mean()):.2f}",
                f"{np.sqrt(np.mean((mean - mean_full) ** 2 / std_full**2)):.2f}",
                f"{rhat.max():.2f} ({np.median(rhat):.2f})"]  # fmt: skip


def sampled_table(problem: Problem, model: sb.Model, methods: dict[str, sb.HybridHMC], out: Path) -> str:
    lines, full = [], {}
    for name, method in methods.items():
        folder = out / name.replace(" ", "-").replace(",", "").replace(".", "")
        posterior = stored(folder, model, lambda at, method=method: method.fit(
            model, problem.train, checkpoint=at, progress=False))  # fmt: skip
        info = posterior.info
        gradients = sum(info["gradients"])
        moves = info["chains"] * (info["warm_up"] + info["thin"] * info["draws_per_chain"])
        for where, x in problem.inputs.items():
            outputs = Outputs(np.asarray(sb.chains.predictions(posterior, x, outputs=True)[..., 0]))
            full.setdefault(where, outputs)
            ess = np.asarray(sb.chains.ess_bulk(outputs.values))
            rate = [f"{1000 * value / gradients:.3g}" for value in (np.median(ess), ess.min())]
            lines.append(
                [name, str(info["selected"]), where, *outputs.compared(full[where]),
                 f"{np.mean(info['acceptance']):.2f}", f"{np.mean(info['step_size']):.3g}",
                 f"{gradients / moves:.0f}", " / ".join(rate)]
            )  # fmt: skip
        if problem.test is not None:
            predictive = posterior.predict(problem.test[0], draws=200)
            density = predictive.log_prob(problem.test[1]).mean().item()
            error = (predictive.mean - problem.test[1].flatten()).square().mean().sqrt().item()
            print(f"{name}: test log density {density:.3f}, RMSE {error:.3f} (standardised targets)")
    head = ["rows", "entries", "inputs", "mean: gap, MCSE", "sd: gap, MCSE", "within 4", "sd / full's",
            "rms gap of means / full's sd", "R-hat: max (median)", "acceptance", "step", "gradients a move",
            "ESS per 1,000 gradients: median / least"]  # fmt: skip
    return markdown(head, lines)


def same_step_table(
    problem: Problem, model: sb.Model, q: sb.Posterior, methods: dict[str, Any], out: Path
) -> str:
    lines = []
    names = [name for name in methods if "redrawn" not in name and "spread" not in name]
    for name in names:
        line = [name]
        for step in problem.steps:
            kernel = sb.HMC(chains=problem.hmc.chains, warm_up=0, draws=30, step_size=step,
                            trajectory=problem.leaps * step, mass=UnitMass())  # fmt: skip
            method = sb.HybridHMC(vi=q, select=methods[name].select, sampler=kernel, warm_start=False)
            folder = out / "same-step" / f"{name} {step:g}".replace(" ", "-").replace(",", "")
            kept = folder / "acceptance.json"
            if not kept.is_file():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    try:
                        found = method.fit(model, problem.train, progress=False).info["acceptance"]
                    except sb.ChainsStuck:
                        found = [0.0]
                checkpoint.write_json(kept, {"acceptance": float(np.mean(found))})
            line.append(f"{checkpoint.read_json(folder, 'acceptance')['acceptance']:.2f}")
        lines.append(line)
    return markdown(
        [f"acceptance, {problem.leaps} leapfrog steps of", *map("{:g}".format, problem.steps)], lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", choices=("sine", "kin8nm"))
    parser.add_argument("--out", required=True, help="folder of all fits and tables")
    parser.add_argument("--data", help="folder with uci_regression/, for kin8nm")
    parser.add_argument("--rows", type=int, default=1000, help="training rows of kin8nm")
    arguments = parser.parse_args()
    if arguments.problem == "kin8nm" and arguments.data is None:
        parser.error("kin8nm needs --data")
    torch.set_num_threads(1)
    problem = {"sine": sine, "kin8nm": kin8nm}[arguments.problem](arguments)
    out = Path(arguments.out) / arguments.problem
    model, q = variational(problem, out)
    candidates = Candidates.of(model, q, problem.train)
    methods = rows_of(problem, q, candidates)
    tables = [kept_table(candidates)]
    print(tables[0], flush=True)
    tables.append(same_step_table(problem, model, q, methods, out))
    print(tables[1], flush=True)
    tables.append(sampled_table(problem, model, methods, out))
    print(tables[2])
    checkpoint.write_text(out / "tables.md", "\n".join(tables))


if __name__ == "__main__":
    main()
