"""HMC of many small chains at once: ours, plain and compiled, against blackjax and pyro in one run.

    python benchmarks/chains.py --out chains.json

32 chains of a 1-10-10-1 tanh network (141 parameters, noise .05, prior N(0, 1)) on 20 and on 1,000 points.
Every sampler makes the same move: the same fixed number of leapfrog steps, one fixed step size, unit mass,
float32, from the same positions, which our HMC has warmed up. Calls are interleaved; ratios are of medians,
quartiles beside them. Compile time is left out, and printed. blackjax runs its chains under ``vmap`` and its
moves in one jitted ``lax.scan``; pyro has no batch of chains: one chain is timed, and a draw of all chains
counted as that time times the chains (processes would divide it by at most the number of cores). Effective
draws are arviz-stats' bulk ESS of predictions, the least over the points, each sampler on its own draws.

Needs the peers: ``pip install blackjax pyro-ppl``.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arviz_stats.base import array_stats
from timing import interleave, ratio
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.methods.network_density import NetworkDensity
from singularbayes.sampling.compiled import CompiledLeapfrog
from singularbayes.sampling.hmc import Adaptation, HamiltonianSampler
from singularbayes.sampling.leapfrog import Leapfrog
from singularbayes.sampling.mass import UnitMass
from singularbayes.sampling.step_size import FixedStep

CHAINS, NOISE, WIDTH = 32, 0.05, 10
SHAPES = [(WIDTH, 1), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (1, WIDTH), (1,)]
SIZES = [math.prod(shape) for shape in SHAPES]


@dataclass
class Problem:
    """Data, and where the chains start."""

    x: Tensor
    y: Tensor
    model: sb.Model
    start: Tensor
    step_size: float
    steps: int


def problem(points: int, steps: int, warm_up: int) -> Problem:
    torch.manual_seed(0)
    half = points // 2
    x = torch.cat([torch.linspace(-1, -0.2, half), torch.linspace(0.2, 1, points - half)]).unsqueeze(1)
    y = 4 * torch.sin(4 * x) + 5 * torch.cos(12 * x) + NOISE * torch.randn_like(x)
    tanh = nn.Tanh
    net = nn.Sequential(nn.Linear(1, WIDTH), tanh(), nn.Linear(WIDTH, WIDTH), tanh(), nn.Linear(WIDTH, 1))
    model = sb.Model(net, sb.Gaussian(noise=NOISE))
    rows = 0.5 * torch.randn(CHAINS, model.layout.size)
    target = NetworkDensity(model, (x, y), rows)
    sampler = sb.HMC(mass=UnitMass(), trajectory=0.05, max_steps=2 * steps, warm_up=warm_up).sampler()
    source = torch.Generator().manual_seed(0)
    state = sampler.start(target, target.start, source)
    for number in range(warm_up):
        state, _ = sampler.warm_up(state, number, warm_up, target, source)
    # one size for all samplers and chains: below what nine chains in ten have adapted to
    size = sampler.facts(state)["step_size"].quantile(0.1).item()
    return Problem(x, y, model, sampler.point(state).position, size, steps)


def outputs(draws: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Predictions ``(C, N, points)`` of draws ``(C, N, 141)``."""
    w1, b1, w2, b2, w3, b3 = np.split(draws, np.cumsum(SIZES)[:-1], -1)
    lead = draws.shape[:2]
    h = np.tanh(x @ w1.reshape(*lead, 1, WIDTH) + b1[..., None, :])
    h = np.tanh(h @ w2.reshape(*lead, WIDTH, WIDTH).swapaxes(-1, -2) + b2[..., None, :])
    return (h @ w3[..., None] + b3[..., None, :])[..., 0]


@dataclass
class Candidate:
    """A sampler that goes on: ``move(n)`` makes ``n`` moves and returns their draws ``(C, n, 141)``."""

    move: Callable[[int], np.ndarray]
    gradient: Callable[[], Any]
    chains: int
    compiled_in: float = 0.0
    accepted: Callable[[], float] = lambda: math.nan


def ours(at: Problem, compiled: bool) -> Candidate:
    target = NetworkDensity(at.model, (at.x, at.y), at.start)
    sampler = HamiltonianSampler(
        adaptation=Adaptation(step_size=FixedStep(size=at.step_size), mass=UnitMass()),
        trajectory=(at.steps - 0.5) * at.step_size,
        jitter=0.0,
        max_steps=at.steps,
        integrator=CompiledLeapfrog() if compiled else Leapfrog(),
    )
    source = torch.Generator().manual_seed(1)
    state = sampler.start(target, target.start, source)
    seen: list[Tensor] = []

    def move(n: int) -> np.ndarray:
        nonlocal state
        draws = []
        with torch.no_grad():
            for _ in range(n):
                state, info = sampler.step(state, target, source)
                seen.append(info.acceptance)
                draws.append(state.point.position)
        return torch.stack(draws, 1).numpy()

    begin = time.perf_counter()
    move(1)
    return Candidate(
        move,
        lambda: target(at.start),
        CHAINS,
        time.perf_counter() - begin if compiled else 0.0,
        lambda: torch.stack(seen).mean().item(),
    )


def blackjax_chains(at: Problem) -> Candidate:
    import blackjax  # noqa: PLC0415 - a peer
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    x, y = jnp.asarray(at.x.numpy()), jnp.asarray(at.y.numpy()[:, 0])

    def log_density(w: Any) -> Any:
        parts = jnp.split(w, np.cumsum(SIZES)[:-1])
        w1, b1, w2, b2, w3, b3 = (part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True))
        h = jnp.tanh(x @ w1.T + b1)
        h = jnp.tanh(h @ w2.T + b2)
        residual = (h @ w3.T + b3)[:, 0] - y
        return -0.5 * (residual**2).sum() / NOISE**2 - 0.5 * (w**2).sum()

    kernel = blackjax.hmc(log_density, at.step_size, jnp.ones(sum(SIZES)), at.steps)
    state = jax.vmap(kernel.init)(jnp.asarray(at.start.numpy()))
    key = jax.random.key(1)
    seen: list[float] = []

    def run(n: int) -> Any:
        @jax.jit
        def moves(key: Any, state: Any) -> Any:
            def one(state: Any, key: Any) -> Any:
                state, info = jax.vmap(kernel.step)(jax.random.split(key, CHAINS), state)
                return state, (state.position, info.acceptance_rate.mean())

            return jax.lax.scan(one, state, jax.random.split(key, n))

        return moves

    made: dict[int, Any] = {}

    def move(n: int) -> np.ndarray:
        nonlocal state, key
        made[n] = made.get(n) or run(n)
        key, use = jax.random.split(key)
        state, (positions, acceptance) = made[n](use, state)
        seen.append(float(acceptance.mean()))
        return np.asarray(positions).swapaxes(0, 1)

    value_and_gradient = jax.jit(jax.vmap(jax.value_and_grad(log_density)))
    at_start = jnp.asarray(at.start.numpy())
    begin = time.perf_counter()
    move(1)
    return Candidate(
        move,
        lambda: jax.block_until_ready(value_and_gradient(at_start)),
        CHAINS,
        time.perf_counter() - begin,
        lambda: sum(seen) / len(seen),
    )


def pyro_chain(at: Problem) -> Candidate:
    from pyro.infer.mcmc import HMC  # noqa: PLC0415 - a peer
    from pyro.ops.integrator import potential_grad  # noqa: PLC0415

    y = at.y[:, 0]

    def potential(sites: dict[str, Tensor]) -> Tensor:
        w = sites["w"]
        w1, b1, w2, b2, w3, b3 = (p.view(s) for p, s in zip(w.split(SIZES), SHAPES, strict=True))
        h = torch.tanh(at.x @ w1.T + b1)
        h = torch.tanh(h @ w2.T + b2)
        residual = (h @ w3.T + b3)[:, 0] - y
        return 0.5 * residual.square().sum() / NOISE**2 + 0.5 * w.square().sum()

    kernel = HMC(
        potential_fn=potential,
        step_size=at.step_size,
        trajectory_length=at.steps * at.step_size * (1 + 1e-6),
        adapt_step_size=False,
        adapt_mass_matrix=False,
        full_mass=False,
    )
    sites = {"w": at.start[0].clone()}
    kernel.initial_params = sites
    kernel.setup(0)
    if kernel.num_steps != at.steps:
        raise RuntimeError(f"pyro takes {kernel.num_steps} steps, not {at.steps}")

    def move(n: int) -> np.ndarray:
        nonlocal sites
        draws = []
        for _ in range(n):
            sites = kernel.sample(sites)
            draws.append(sites["w"])
        return torch.stack(draws).numpy()[None]

    return Candidate(
        move,
        lambda: potential_grad(potential, {"w": at.start[0]}),
        1,
        0.0,
        lambda: kernel._mean_accept_prob,  # noqa: SLF001 - it has no other name
    )


def effective(candidate: Candidate, at: Problem, draws: int) -> float:
    """Effective draws of predictions in so many moves of the candidate's chains, the least over points."""
    points = at.x.numpy()[:: max(1, len(at.x) // 20)]
    values = outputs(candidate.move(draws), points)
    return min(float(array_stats.ess(values[..., i], chain_axis=0, draw_axis=1)) for i in range(len(points)))


def measure(points: int, arguments: argparse.Namespace) -> dict[str, Any]:
    at = problem(points, arguments.steps, arguments.warm_up)
    candidates = {
        "ours": ours(at, compiled=False),
        "ours, compiled": ours(at, compiled=True),
        "blackjax": blackjax_chains(at),
        "pyro": pyro_chain(at),
    }
    count = max(1, 400 // points)
    calls = {name: (lambda c=candidate: c.move(count)) for name, candidate in candidates.items()}
    moves = interleave(calls, arguments.rounds, seconds=arguments.seconds)
    gradients = interleave({n: c.gradient for n, c in candidates.items()}, arguments.rounds, seconds=5)
    rows = {}
    for name, candidate in candidates.items():
        seconds = sorted(moves[name])[len(moves[name]) // 2] / count * CHAINS / candidate.chains
        single = sorted(gradients[name])[len(gradients[name]) // 2] / candidate.chains
        found = effective(candidate, at, arguments.draws) / arguments.draws / candidate.chains
        rows[name] = {
            "milliseconds a move of all chains": 1e3 * seconds,
            "gradients a second, in moves": CHAINS * at.steps / seconds,
            "gradients a second, alone": 1 / single,
            "effective draws a move": found,
            "effective draws a second": found * CHAINS / seconds,
            "acceptance": candidate.accepted(),
            "compile seconds": candidate.compiled_in,
            "time over blackjax's": vars(ratio(moves, name, "blackjax")) if candidate.chains > 1 else None,
        }
    for name in ("ours", "ours, compiled"):
        of_pyro = vars(ratio(moves, "pyro", name))
        rows[name]["times pyro"] = {key: value * CHAINS for key, value in of_pyro.items()}
        rows[name]["times blackjax"] = vars(ratio(moves, "blackjax", name))
    return {"points": points, "step size": at.step_size, "steps": at.steps, "samplers": rows}


def show(result: dict[str, Any]) -> None:
    print(
        f"\n{result['points']} points, {result['steps']} steps of {result['step size']:.2g}, {CHAINS} chains"
    )
    print(f"{'':16s} {'ms a move':>10s} {'grad/s':>10s} {'alone':>10s} {'ESS/s':>8s} {'accept':>7s} "
          f"{'compile, s':>10s} {'x blackjax':>20s} {'x pyro':>8s}")  # fmt: skip
    for name, row in result["samplers"].items():
        of, pyro = row.get("times blackjax"), row.get("times pyro")
        blackjax = f"{of['value']:.2f} ({of['low']:.2f}-{of['high']:.2f})" if of else ""
        pyro_text = f"{pyro['value']:.0f}" if pyro else ""
        print(f"{name:16s} {row['milliseconds a move of all chains']:10.3f} "
              f"{row['gradients a second, in moves']:10.0f} {row['gradients a second, alone']:10.0f} "
              f"{row['effective draws a second']:8.1f} {row['acceptance']:7.2f} "
              f"{row['compile seconds']:10.1f} "
              f"{blackjax:>20s} {pyro_text:>8s}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--points", type=int, nargs="*", default=[20, 1000])
    parser.add_argument("--steps", type=int, default=20, help="leapfrog steps of a move")
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument(
        "--draws", type=int, default=200, help="moves that the effective draws are counted on"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60, help="longest time of the moves of one problem")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for points in arguments.points:
        results.append(measure(points, arguments))
        show(results[-1])
    if arguments.out:
        machine = platform.processor() or platform.machine()
        content = {
            "torch": torch.__version__,
            "machine": machine,
            "threads": arguments.threads,
            "rows": results,
        }
        arguments.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
