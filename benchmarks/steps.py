"""Step and prediction time of our methods, as multiples of the deterministic full-rank network's in that run.

    python benchmarks/steps.py --out steps.json

Training steps of three MLPs (batch 256, rank 15), the Transformer (batch 64, length 16, rank 16) and the LSTM
(batch 64, ranks 14 and 20) of arXiv 2602.00387, under the mixture prior; then predictions with 32 draws.
``deterministic`` is the stock network with fused Adam, 1 in every row (torch's default Adam has a row too).
``floor`` is the deterministic factorised network: what the low-rank posterior costs when its randomness is
free. Medians of interleaved rounds; the quartiles say how quiet the machine was. Peak memory is that of a
fresh process.
"""

import argparse
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nets import POINTS, LazyAdam, Recurrent, Transformer, mlp, words
from timing import interleave, ratio
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.distributions import DiagonalGaussian
from singularbayes.methods.learner import prepare
from singularbayes.methods.mean_field import BuildMeanField
from singularbayes.methods.training import Run
from singularbayes.nn import LowRankLSTM

MLPS = {
    "44-128-128-2": (44, 128, 128, 2),
    "784-512-512-10": (784, 512, 512, 10),
    "1024-2048-2048-10": (1024, 2048, 2048, 10),
}
LAZY = "Transformer, lazy Adam"
NETS = (*MLPS, "Transformer", LAZY, "LSTM")
BATCH, RANK, DRAWS = 256, 15, 32
Step = Callable[[], Any]


# Networks, their factorised forms, a batch


def problem(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Full and factorised network, inputs and labels."""
    torch.manual_seed(0)
    if name in MLPS:
        sizes = MLPS[name]
        full: nn.Module = mlp(*sizes)
        x, y = torch.randn(BATCH, sizes[0]), torch.randint(sizes[-1], (BATCH,))
        return full, sb.factorize(full, rank=RANK), x, y
    if name == "LSTM":
        full, low = Recurrent(), Recurrent()
        low.lstm = LowRankLSTM.from_layer(full.lstm, {"weight_ih*": 14, "weight_hh*": 20})
        return full, low, torch.randn(64, 24, 15), torch.randn(64)
    full = Transformer()
    return full, sb.factorize(full, rank={"table": 16, "encoder*": 16}), *words(64, 16)


def loss_of(outputs: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(outputs.squeeze(-1), y) if y.is_floating_point() else F.cross_entropy(outputs, y)


def table_of(network: nn.Module) -> nn.Parameter:
    table = network.get_submodule("table")
    return table.weight if isinstance(table, nn.Embedding) else table.A


# Steps


def deterministic(net: nn.Module, x: Tensor, y: Tensor, lazy: bool = False, fused: bool = True) -> Step:
    table = table_of(net) if lazy else None
    adam = torch.optim.Adam([p for p in net.parameters() if p is not table], lr=1e-3, fused=fused)
    rows = None if table is None else LazyAdam(table, x.unique, 1e-3)

    def step() -> None:
        net.zero_grad()
        loss_of(net(x), y).backward()
        adam.step()
        if table is not None and rows is not None:
            rows.step(table.grad)

    return step


class LazyOptimizer:
    """Lazy Adam for a table's means and rhos, fused Adam for all other numbers of a mean-field fit."""

    def __init__(self, run: Run, x: Tensor) -> None:
        learner: Any = run.learner
        layout = run.model.layout
        slot = next(s for s in layout.of_kind("belief") if s.name in ("table.weight", "table.A"))
        edges = [slot.start, slot.stop, layout.trained + slot.start, layout.trained + slot.stop]
        parts = list(zip([0, *edges], [*edges, len(learner.vector)], strict=True))
        self.gradient, self.tables = learner.gradient, [parts[1], parts[3]]
        rest = [learner.vector[a:b] for a, b in parts[::2] if b > a]
        for view, (a, b) in zip(rest, [part for part in parts[::2] if part[1] > part[0]], strict=True):
            view.grad = learner.gradient[a:b]
        self.adam, self.shape, rows = torch.optim.Adam(rest, lr=1e-3, fused=True), slot.shape, x.unique
        self.lazy = [LazyAdam(learner.vector[a:b].view(slot.shape), rows, 1e-3) for a, b in self.tables]

    def step(self) -> None:
        self.adam.step()
        for (a, b), lazy in zip(self.tables, self.lazy, strict=True):
            lazy.step(self.gradient[a:b].view(self.shape))


def variational(net: nn.Module, x: Tensor, y: Tensor, lazy: bool = False, **settings: Any) -> Step:
    method = sb.MeanField(batch_size=len(x), **settings)
    points = POINTS if isinstance(net, Transformer) else ()
    likelihood = sb.Gaussian(noise=1.0) if y.is_floating_point() else sb.Categorical()
    model = sb.Model(net, likelihood, prior=sb.ScaleMixture(), deterministic=points)
    data = prepare(model, None, (x, y), None, model.device)
    run = Run(model, method, BuildMeanField(method), data, model.device, 0)
    if lazy:
        run.optimizer = LazyOptimizer(run, x)  # type: ignore[assignment]
    noise, labels = torch.Generator().manual_seed(0), data.train.y
    return lambda: run.step(x, labels, 1 / 10_000, 1.0, noise).item()


def candidates(name: str) -> dict[str, Step]:
    full, low, x, y = problem(name)
    lazy = name == LAZY
    steps = {
        "deterministic": deterministic(problem(name)[0], x, y, lazy),
        "deterministic, default Adam": deterministic(problem(name)[0], x, y, lazy, fused=False),
        "floor": deterministic(problem(name)[1], x, y, lazy),
        "low rank": variational(low, x, y, lazy),
        "low rank, bound": variational(low, x, y, lazy, kl=sb.KL.BOUND),
        "full rank": variational(full, x, y, lazy),
    }
    if name == "Transformer":
        steps["low rank, all rows drawn"] = variational(low, x, y, kl=sb.KL.MONTE_CARLO)
    return steps


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    steps = candidates(name)
    times = interleave(steps, rounds, seconds=seconds)
    unit = sorted(times["deterministic"])
    row = {
        "net": name,
        "what": "training step",
        "milliseconds": 1e3 * unit[len(unit) // 2],
        "ratios": {key: vars(ratio(times, key, "deterministic")) for key in steps},
    }
    if name == "Transformer":
        row["peak_mb"] = {
            key: fresh(name, key) for key in ("deterministic", "floor", "low rank", "full rank")
        }
    return row


# Memory, in a fresh process


def peak(call: Step) -> float:
    """Peak resident MB that a call adds to this process (Linux)."""

    def status(key: str) -> int:
        line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
        return int(line.split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    call()
    return (status("VmHWM") - before) / 1024


def fresh(name: str, what: str) -> float:
    command = [sys.executable, __file__, "--memory", name, what]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def step_memory(name: str, what: str) -> float:
    """Peak MB of making what a training step needs, network aside, and of three steps."""
    full, low, x, y = problem(name)
    net = full if what in ("deterministic", "full rank") else low
    del full, low
    make = deterministic if what in ("deterministic", "floor") else variational
    held = sum(p.numel() * p.element_size() for p in net.parameters()) / 2**20

    def steps() -> None:
        step = make(net, x, y)
        for _ in range(3):
            step()

    return held + peak(steps)


def predictions(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    sizes = MLPS[name]
    x, y = torch.randn(BATCH, sizes[0]), torch.randint(sizes[-1], (BATCH,))
    full = mlp(*sizes).eval()
    fits = {
        key: sb.MeanField(epochs=1, batch_size=BATCH).fit(
            sb.Model(net, sb.Categorical(), prior=sb.ScaleMixture()), (x, y)
        )
        for key, net in {"low rank": sb.factorize(full, rank=RANK), "full rank": full}.items()
    }

    def once() -> torch.Tensor:
        with torch.no_grad():
            return full(x)

    low = fits["low rank"]
    buffer, generator = torch.empty(DRAWS, low.layout.size), torch.Generator().manual_seed(0)
    stored = low.draw(DRAWS)
    calls: dict[str, Callable[[], Any]] = {
        "one pass": once,
        "low rank": lambda: low.predict(x, draws=DRAWS).mean,
        "low rank, draws at hand": lambda: low.functions(stored, x),
        "noise alone": lambda: buffer.normal_(generator=generator),
        "full rank": lambda: fits["full rank"].predict(x, draws=DRAWS).mean,
    }
    times = interleave(calls, rounds, seconds=seconds)
    command = [sys.executable, __file__, "--memory", name, "prediction"]
    growth = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    unit = sorted(times["one pass"])
    return {
        "net": name,
        "what": f"prediction, {DRAWS} draws",
        "milliseconds": 1e3 * unit[len(unit) // 2],
        "ratios": {key: vars(ratio(times, key, "one pass")) for key in calls},
        "peak_growth_mb": growth,
    }


def memory(name: str) -> float:
    """Peak resident MB that one prediction adds to a fresh process (Linux)."""
    sizes = MLPS[name]
    x = torch.randn(BATCH, sizes[0])
    network = sb.factorize(mlp(*sizes), rank=RANK)
    model = sb.Model(network, sb.Categorical())
    mean = model.layout.flatten(network)
    posterior = sb.Posterior(
        model.copy_network(), DiagonalGaussian(mean, 0.1 * mean.abs()), model.likelihood, model.layout, {}
    )
    with torch.no_grad():
        network(x)  # what one plain pass needs is there already

    return peak(lambda: posterior.predict(x, draws=DRAWS))


# The table


def show(rows: list[dict[str, Any]]) -> None:
    """All ratios in one table, the floor beside each."""
    print(f"\n{'training step':44s} {'unit, ms':>9s} {'ratio':>7s} {'floor':>7s}   quartiles")
    for row in rows:
        if row["what"] != "training step":
            continue
        floor = row["ratios"]["floor"]["value"]
        for key, value in row["ratios"].items():
            if key == "floor":
                continue
            numbers = f"{row['milliseconds']:9.2f} {value['value']:7.2f} {floor:7.2f}"
            name = f"{row['net']}: {key}"
            print(f"{name:44s} {numbers}   {value['low']:.2f} - {value['high']:.2f}")
        for key, value in row.get("peak_mb", {}).items():
            print(f"{row['net'] + ': peak MB, ' + key:44s} {value:9.0f}")
    for row in rows:
        if row["what"] == "training step":
            continue
        print(f"\n{row['net']}: {row['what']}; unit {row['milliseconds']:.3f} ms; "
              f"memory above the inputs {row['peak_growth_mb']:.1f} MB")  # fmt: skip
        for key, value in row["ratios"].items():
            print(f"  {key:28s} {value['value']:8.2f}   ({value['low']:.2f} - {value['high']:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=40, help="longest time for one net and table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nets", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--memory", nargs=2, metavar=("NET", "WHAT"), help="print a peak in MB, and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", "the rank saves no parameters")  # the heads, on purpose
    if arguments.memory:
        name, what = arguments.memory
        print(memory(name) if what == "prediction" else step_memory(name, what))
        return
    rows = [measure(name, arguments.rounds, arguments.seconds) for name in arguments.nets]
    rows += [predictions(n, arguments.rounds, arguments.seconds) for n in arguments.nets if n in MLPS]
    show(rows)
    if arguments.out:
        content = {
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
