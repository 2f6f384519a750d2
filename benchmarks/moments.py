"""Moments without draws against draws: error by depth, time, and what OOD detection loses.

    python benchmarks/moments.py --out moments.json --data FOLDER

Networks: the MLP of the recipe ``digits`` and its low-rank form, a Transformer of two layers over the eight
rows of a digit, and the CNN of the recipe ``images`` (with ``--data`` alone) with its low-rank form; each
fitted by ``MeanField`` with that recipe's settings.

Error: of ``Propagation`` and ``Delta`` against 10,000 draws at 200 test inputs, after each module; medians
over inputs and units, the mean's in standard deviations of the draws, the sd's relative.
Time: in passes of the deterministic network over 256 rows, interleaved, medians.
AUROC: test inputs against each OOD set. With 64 draws by mutual information; without draws by the same mutual
information, of 64 Gaussian outputs (``MonteCarlo(64)``), which run through no network, and by the summed
variance of the logits.

Finished parts are kept in ``--out`` and not done again.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import interleave, ratio
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.functions import call
from singularbayes.metrics import auroc
from singularbayes.parameters import Layout
from singularbayes.posterior import Posterior
from singularbayes.random import forked
from singularbayes.recipes import ALL

DRAWS, ROWS, BATCH = 10_000, 200, 256
METHODS = {"Propagation": sb.Propagation(), "Delta": sb.Delta()}


def transformer() -> nn.Sequential:
    """Pre-norm, width 32, 4 heads, over the 8 rows of a digit as tokens."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    start: list[nn.Module] = [nn.Unflatten(1, (8, 8)), nn.Linear(8, 32)]
    return nn.Sequential(*start, *layers, nn.Flatten(), nn.Linear(8 * 32, 8))


# name: recipe, plan, and a network in the place of the plan's
NETWORKS: dict[str, tuple[str, str, Callable[[], nn.Module] | None]] = {
    "MLP": ("digits", "MeanField, full rank", None),
    "MLP, low rank": ("digits", "MeanField, low rank", None),
    "Transformer": ("digits", "MeanField, full rank", transformer),
    "CNN": ("images", "MeanField, full rank", None),
    "CNN, low rank": ("images", "MeanField, low rank", None),
}


def fitted(name: str, data: Path | None, epochs: int | None) -> tuple[Posterior, Any]:
    """The posterior and the splits."""
    recipe_name, plan_name, other = NETWORKS[name]
    recipe = ALL[recipe_name]
    splits, plan = recipe.load(data, 0), recipe.plans[plan_name]
    with forked(0, "start"):
        network = (other or plan.network)()
    method = plan.method if epochs is None else type(plan.method)(**{**vars(plan.method), "epochs": epochs})
    held = splits.validation if plan.uses_validation else None
    return method.fit(plan.model(network, recipe.likelihood), splits.train, held, seed=0), splits


# Error by depth


def prefix(posterior: Posterior, modules: int) -> Posterior:
    """The posterior over the first modules of a sequential network."""
    whole = posterior.network
    assert isinstance(whole, nn.Sequential)
    network = nn.Sequential()
    for name, module in list(whole.named_children())[:modules]:
        network.add_module(name, module)
    network.requires_grad_(True)
    layout = Layout.of(network)
    places = {slot.name: slot for slot in posterior.layout.slots}
    rows = [
        torch.cat([row[places[s.name].start : places[s.name].stop] for s in layout.slots])
        for row in (posterior.distribution.mean, posterior.distribution.std)
    ]
    return Posterior(network, DiagonalGaussian(*rows), posterior.likelihood, layout, {})


def errors(posterior: Posterior, x: Tensor, draws: int) -> list[dict[str, Any]]:
    """One row for each module that has parameters or comes after one."""
    children = list(posterior.network.named_children())
    first = next(i for i, (_, module) in enumerate(children) if any(True for _ in module.parameters()))
    rows = []
    for depth in range(first + 1, len(children) + 1):
        part = prefix(posterior, depth)
        count = part.functions(part.draw(1), x[:1]).numel()
        # few rows of wide layers, so that neither the draws nor the delta method's Jacobian fills the memory
        own = x[: max(2, min(len(x), 20_000 // count))]
        total, squares = torch.zeros(1), torch.zeros(1)
        centre = part.functions(part.distribution.mean.unsqueeze(0), own)[0].double().flatten(1)
        done = 0
        while done < draws:
            outputs = part.functions(part.draw(min(500, draws - done), seed=done), own).double().flatten(2)
            total = total + (outputs - centre).sum(0)
            squares = squares + (outputs - centre).square().sum(0)
            done += len(outputs)
        mean, std = centre + total / done, (squares / done - (total / done).square()).sqrt()
        row: dict[str, Any] = {
            "after": children[depth - 1][0],
            "module": type(children[depth - 1][1]).__name__,
        }
        live = std > 1e-3 * std.median()
        for name, method in METHODS.items():
            if name == "Delta" and count > 512:
                continue
            found = sb.moments(part, own, method)
            row[name] = {
                "mean": ((found.mean - mean) / std).abs()[live].median().item(),
                "sd": (found.variance.sqrt() / std - 1).abs()[live].median().item(),
                "sd ratio": (found.variance.sqrt() / std)[live].median().item(),
            }
        rows.append(row)
    return rows


# Time


def times(posterior: Posterior, x: Tensor, rounds: int) -> dict[str, Any]:
    """Multiples of one deterministic pass."""
    network = posterior.merged()  # stock layers: what a network without a posterior would be
    rows = x[:BATCH]

    @torch.no_grad()
    def plain() -> Tensor:
        return call(network, rows)

    @torch.no_grad()
    def own() -> Tensor:
        return call(posterior.network, rows)

    candidates: dict[str, Callable[[], Any]] = {"deterministic": plain, "its own factors": own}
    candidates |= {name: lambda m=method: sb.moments(posterior, rows, m) for name, method in METHODS.items()}
    candidates["64 draws"] = lambda: posterior.predict(rows, draws=64)
    timed = interleave(candidates, rounds, warmup=2)
    found = {name: vars(ratio(timed, name, "deterministic")) for name in candidates}
    return {"rows": len(rows), "passes": found}


# Out of distribution


def scores_of(posterior: Posterior, x: Tensor) -> dict[str, Tensor]:
    found = {"64 draws, mutual information": sb.scores.mutual_information(posterior.predict(x, draws=64))}
    for name, method in METHODS.items():
        moments = sb.moments(posterior, x, method)
        drawn = moments.predictive(sb.MonteCarlo(draws=64))
        found[f"{name}, mutual information"] = sb.scores.mutual_information(drawn)
        found[f"{name}, logit variance"] = moments.variance.sum(1)
    return found


def detection(posterior: Posterior, splits: Any, rows: int | None) -> dict[str, dict[str, float]]:
    """AUROC by score, of each OOD set; higher scores are more OOD."""
    inside = scores_of(posterior, torch.as_tensor(splits.test[0])[:rows])
    table: dict[str, dict[str, float]] = {}
    for name, (x, _) in splits.ood.items():
        outside = scores_of(posterior, torch.as_tensor(x)[:rows])
        for score, values in inside.items():
            both = torch.cat([values, outside[score]]).double().numpy()
            positive = torch.cat([torch.zeros(len(values)), torch.ones(len(outside[score]))]).long().numpy()
            table.setdefault(score, {})[name] = auroc(both, positive)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--epochs", type=int, help="fewer, for a trial")
    parser.add_argument("--rows", type=int, help="of each OOD set and of the test set; all by default")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.networks:
        if NETWORKS[name][0] == "images" and arguments.data is None:
            print(f"{name}: left out, it needs --data")
            continue
        done = results.setdefault(name, {})
        parts: dict[str, Callable[[Posterior, Any], Any]] = {
            "errors": lambda p, s: errors(p, torch.as_tensor(s.test[0])[:ROWS], arguments.draws),
            "times": lambda p, s: times(p, torch.as_tensor(s.test[0]), arguments.rounds),
            "detection": lambda p, s: detection(p, s, arguments.rows),
        }
        missing = [part for part in parts if part not in done]
        if not missing:
            continue
        posterior, splits = fitted(name, arguments.data, arguments.epochs)
        for part in missing:
            done[part] = parts[part](posterior, splits)
            fresh = arguments.out.with_suffix(".new")
            fresh.write_text(json.dumps(results, indent=1))
            fresh.replace(arguments.out)
            print(name, part, json.dumps(done[part], indent=1))


if __name__ == "__main__":
    main()
