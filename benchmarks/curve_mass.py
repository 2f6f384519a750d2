"""How much of a network's posterior lies near the curves of ``ModeCurve``? Measured with HMC on a small net.

    python benchmarks/curve_mass.py --out build/bench/curve_mass [--seeds 3]

1-16-1 tanh (49 weights), 30 points of a sine with noise of known deviation .1, prior N(0, 1). For each seed
two networks are trained and a Bezier curve between them. Draws come from

- *along*: chains that start on the curve, at 12 places of it, and
- *elsewhere*: chains that start at 12 other networks, trained from other initialisations.

What is near is said by the curve's own draws: the tube about the curve that holds 95% of the draws *along*
it. ``share`` is the part of the draws *elsewhere* inside that tube: 95% if the posterior is nowhere but about
the curve. A tube of that radius about anything holds something, in 49 dimensions much, so it is laid about
others too, as many points each:

- *turned*: the same curve, turned about the origin at random (the null: norms and shape are kept);
- *prior*: draws of the prior;
- *ends*: the two networks alone; *line*: the straight line between them;
- *draws*: draws of the posterior from half of the chains elsewhere (what as many points can cover at best);
  its share, as all others, is that of the draws of the other half.

Distances are Euclidean between weights, the least over all orders and signs of hidden units (an assignment
problem: a network and its 16! 2^16 copies are one), and between functions, root mean square over a grid that
reaches beyond the data. ``distance`` is the mean distance of draws elsewhere, in units of the mean distance
of two independent draws; a single point at the centre of a Gaussian has 1 / sqrt 2 = .71. The plane: share of
the variance of draws along the curve in the plane of its control points, beside 2/49 by chance and the two
largest principal components. Writes mass.csv and prints Markdown, mean +- standard error over seeds.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.methods.chains_fit import fit_chains
from singularbayes.random import derive, forked, generator

HIDDEN, NOISE, CHAINS, PLACES = 16, 0.1, 12, 61
MEMBER = sb.MAP(epochs=400, batch_size=30, learning_rate=0.02)
KERNEL = sb.HMC(warm_up=300, draws=400, max_steps=100)
KEPT = 20  # draws of each chain that are measured, evenly spaced
GRID = torch.linspace(-1.5, 1.5, 101).unsqueeze(1)


def problem(seed: int) -> tuple[sb.Model, tuple[Tensor, Tensor]]:
    source = generator(seed, "data")
    x = 2 * torch.rand(30, 1, generator=source) - 1
    y = torch.sin(4 * x[:, 0]) + NOISE * torch.randn(30, generator=source)
    with forked(seed, "start"):
        network = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    return sb.Model(network, sb.Gaussian(noise=NOISE), prior=sb.Normal(1.0)), (x, y)


def units(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Hidden units ``(S, H, 3)``: incoming weight, bias, outgoing weight; and the last bias ``(S,)``."""
    w = rows.double().numpy()
    hidden = (w.shape[1] - 1) // 3
    return w[:, :-1].reshape(len(w), 3, hidden).transpose(0, 2, 1), w[:, -1]


def weight_distance(draws: Tensor, points: Tensor) -> np.ndarray:
    """From each draw to the nearest point, over all orders and signs of hidden units, ``(S,)``."""
    (own, last), (theirs, ends) = units(draws), units(points)
    nearest = np.full(len(own), np.inf)
    squares, theirs_squared = (own**2).sum(2), (theirs**2).sum(2)
    for number, (unit, bias) in enumerate(zip(own, last, strict=True)):
        cost = (
            squares[number][:, None] + theirs_squared[:, None] - 2 * np.abs(unit @ theirs.transpose(0, 2, 1))
        )
        for point, table in enumerate(cost):
            matched = table[linear_sum_assignment(table)].sum() + (bias - ends[point]) ** 2
            nearest[number] = min(nearest[number], matched)
    return np.sqrt(np.maximum(nearest, 0))


def function_distance(draws: Tensor, points: Tensor) -> np.ndarray:
    """From each draw to the nearest point, root mean square over the grid, ``(S,)``."""
    values = [functions(rows) for rows in (draws, points)]
    return (torch.cdist(*values) / len(GRID) ** 0.5).amin(1).numpy()


def functions(rows: Tensor) -> Tensor:
    w, b, v = (rows[:, i * HIDDEN : (i + 1) * HIDDEN].double() for i in range(3))
    hidden = torch.tanh(GRID.double() @ w.unsqueeze(1) + b.unsqueeze(1))  # (S, G, H)
    return (hidden @ v.unsqueeze(2)).squeeze(2) + rows[:, -1:].double()


def sampled(model: sb.Model, data: tuple[Tensor, Tensor], rows: Tensor, kernel: sb.HMC, seed: int) -> Tensor:
    """Draws of chains from these rows, ``(C, KEPT, D)``."""
    posterior = fit_chains(kernel, model, data, seed=seed, checkpoint=None, progress=None, rows=rows)
    draws = sb.chains.by_chain(posterior)
    return draws[:, torch.linspace(0, draws.shape[1] - 1, min(KEPT, draws.shape[1])).round().long()]


def turned(points: Tensor, seed: int) -> Tensor:
    """By a random rotation about the origin."""
    source = generator(seed, "turn")
    size = points.shape[1]
    q, r = torch.linalg.qr(torch.randn(size, size, generator=source, dtype=torch.float64))
    return (points.double() @ (q * r.diagonal().sign())).to(points)


def one(seed: int, member: sb.MAP, kernel: sb.HMC) -> list[dict]:
    model, data = problem(seed)
    ends = sb.DeepEnsemble(members=2, member=member)
    method = sb.ModeCurve(modes=ends, epochs=member.epochs, batch_size=30, learning_rate=0.01)
    connection = method.connect(model, data, seed=seed)
    curve = connection.rows(0, torch.linspace(0, 1, PLACES))
    starts = connection.rows(0, torch.linspace(0, 1, CHAINS))
    others = sb.DeepEnsemble(members=CHAINS, member=member).fit(model, data, seed=derive(seed, "others"))
    along = sampled(model, data, starts, kernel, derive(seed, "along")).flatten(0, 1)
    elsewhere = sampled(model, data, others.distribution.draws, kernel, derive(seed, "elsewhere"))
    half = CHAINS // 2
    judges, tested = elsewhere[:half].flatten(0, 1), elsewhere[half:].flatten(0, 1)
    t = torch.linspace(0, 1, PLACES).unsqueeze(1)
    references = {
        "curve": curve,
        "turned": turned(curve, seed),
        "prior": torch.randn(PLACES, curve.shape[1], generator=generator(seed, "prior")),
        "ends": connection.modes,
        "line": (1 - t) * connection.modes[0] + t * connection.modes[1],
        "draws": judges[torch.linspace(0, len(judges) - 1, PLACES).round().long()],
    }
    rows = []
    for space, distance in (("weights", weight_distance), ("functions", function_distance)):
        radius = np.quantile(distance(along, curve), 0.95)
        pairs = np.concatenate([distance(tested[i : i + 1], judges[i : i + 1]) for i in range(len(tested))])
        for name, points in references.items():
            found = distance(tested, points)
            row = {"space": space, "about": name, "share": (found <= radius).mean(),
                   "distance": found.mean() / pairs.mean(), "radius": radius / pairs.mean()}  # fmt: skip
            rows.append({"seed": seed, **row})
    rows.append({"seed": seed, "space": "plane", **plane(along, connection.control[0], model.layout.belief)})
    return rows


def plane(draws: Tensor, control: Tensor, size: int) -> dict[str, float]:
    """Share of the draws' variance in the plane of the control points, and in the best plane."""
    centred = (draws[:, :size] - draws[:, :size].mean(0)).double()
    basis = torch.linalg.qr((control[1:, :size] - control[0, :size]).double().T).Q
    total = centred.square().sum()
    best = torch.linalg.svdvals(centred)[:2].square().sum()
    return {"in its plane": (centred @ basis).square().sum().div(total).item(), "by chance": 2 / size,
            "in the best plane": best.div(total).item()}  # fmt: skip


def shown(table: pd.DataFrame) -> str:
    lines = ["| space | about | share in the tube | distance | radius of the tube |", "|" + "---|" * 5]
    tubes = table[table["space"] != "plane"]
    for (space, about), group in tubes.groupby(["space", "about"], sort=False):
        cells = [f"{group[c].mean():.3f} +- {group[c].sem():.3f}" for c in ("share", "distance", "radius")]
        lines.append("| " + " | ".join([str(space), str(about), *cells]) + " |")
    flat = table[table["space"] == "plane"]
    words = [f"{c} {flat[c].mean():.3f}" for c in ("in its plane", "by chance", "in the best plane")]
    return "\n".join(lines) + f"\n\nVariance of draws along the curve: {', '.join(words)}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench/curve_mass"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="to see that it runs; the numbers mean nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    member, kernel = MEMBER, KERNEL
    if arguments.quick:
        member = dataclasses.replace(member, epochs=10)
        kernel = dataclasses.replace(kernel, warm_up=5, draws=5)
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(arguments.seeds):
        file = arguments.out / f"seed-{seed}{'-quick' if arguments.quick else ''}.json"
        if not file.exists():
            file.write_text(json.dumps(one(seed, member, kernel), default=float), encoding="utf-8")
        rows += json.loads(file.read_text("utf-8"))
        print(f"seed {seed}: done", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(arguments.out / "mass.csv", index=False)
    text = shown(table)
    (arguments.out / "mass.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
