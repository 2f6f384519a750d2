"""Speed of other mean-field libraries for PyTorch, as a multiple of the deterministic net of the same shape.

    python benchmarks/peers.py --out peers.json

Each peer builds three ReLU networks with its own Bayesian linear layer, in the way its documentation shows,
and is timed against `nn.Linear` in one process, baseline, peer, baseline, peer, ...:

- training step: batch 256, forward, the library's own KL, cross-entropy + KL / N, backward, Adam, zero_grad.
  Baselines: the same step of the deterministic net with Adam's default settings and with `fused=True`.
- prediction: 32 draws for one batch of 256 without gradients. Baseline: one forward pass.

Does not import singularbayes. A peer that cannot be imported is listed as not installed, with the reason.
`benchmarks/README.md` says how to install them.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import statistics
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import interleave, ratio
from torch import Tensor, nn

NETWORKS = {
    "44-128-128-2": (44, 128, 128, 2),
    "784-512-512-10": (784, 512, 512, 10),
    "1024-2048-2048-10": (1024, 2048, 2048, 10),
}
BATCH = 256
DRAWS = 32
DATA_SIZE = 60_000  # N of KL / N: any constant, it does not change the time
LEARNING_RATE = 1e-3


def mlp(sizes: tuple[int, ...], linear: Callable[[int, int], nn.Module] = nn.Linear) -> nn.Sequential:
    """A ReLU network of the given layer sizes; `linear(in, out)` makes its layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Standard normal inputs (256, in) and labels (256,) in [0, out), the same at every call."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, sizes[0], generator=generator)
    return x, torch.randint(sizes[-1], (BATCH,), generator=generator)


def training_step(
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    fused: bool | None = None,
) -> Callable[[], None]:
    """One step of torch's Adam on `loss(x, y)`, as a call to be timed; `fused=None` is Adam's default."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=fused)

    def step() -> None:
        loss(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def deterministic_step(sizes: tuple[int, ...], *, fused: bool | None = None) -> Callable[[], None]:
    """The baseline's training step: `nn.Linear`, cross-entropy, Adam."""
    network = mlp(sizes)
    return training_step(network, lambda x, y: F.cross_entropy(network(x), y), *batch(sizes), fused=fused)


def deterministic_pass(sizes: tuple[int, ...]) -> Callable[[], Tensor]:
    """The baseline's prediction: one forward pass of `nn.Linear` layers without gradients."""
    network, (x, _) = mlp(sizes).eval(), batch(sizes)
    return torch.no_grad()(lambda: network(x))


@dataclass(frozen=True)
class Built:
    """A peer's network, its training loss, and its function for S draws of the outputs: x -> (S, B, K)."""

    network: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    draws: Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library: its distribution's name, how it is called in words, and the builder from layer sizes."""

    name: str
    how: str
    build: Callable[[tuple[int, ...]], Built]


def loop_of_forwards(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """S forward passes, stacked: what every peer documents for prediction."""
    return lambda x: torch.stack([network(x) for _ in range(DRAWS)])


def bayesian_torch(sizes: tuple[int, ...]) -> Built:
    """Bayesian-Torch: the README's `dnn_to_bnn` with its own prior dictionary, and `get_kl_loss`."""
    library = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    network = mlp(sizes)
    prior = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": "Reparameterization",
        "moped_enable": False,
        "moped_delta": 0.5,
    }
    library.dnn_to_bnn(network, prior)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(network(x), y) + library.get_kl_loss(network) / DATA_SIZE

    return Built(network, loss, loop_of_forwards(network))


def blitz(sizes: tuple[int, ...]) -> Built:
    """BLiTZ: `@variational_estimator`, `BayesianLinear`, and `sample_elbo` with one draw."""
    linear = importlib.import_module("blitz.modules").BayesianLinear
    estimator = importlib.import_module("blitz.utils").variational_estimator

    @estimator
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(sizes, linear)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    network: Any = Network()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return network.sample_elbo(
            inputs=x, labels=y, criterion=F.cross_entropy, sample_nbr=1, complexity_cost_weight=1 / DATA_SIZE
        )

    return Built(network, loss, loop_of_forwards(network))


def torchbnn(sizes: tuple[int, ...]) -> Built:
    """torchbnn: `BayesLinear(0, 0.1, ...)` and `BKLLoss`, as in its demos (but the KL summed)."""
    library = importlib.import_module("torchbnn")
    network = mlp(
        sizes, lambda i, o: library.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=i, out_features=o)
    )
    divergence = library.BKLLoss(reduction="sum", last_layer_only=False)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(network(x), y) + divergence(network)[0] / DATA_SIZE

    return Built(network, loss, loop_of_forwards(network))


def torch_uncertainty(sizes: tuple[int, ...]) -> Built:
    """Torch-Uncertainty: `BayesLinear`, `ELBOLoss` with one draw, and `StochasticModel` for prediction.

    Its top-level package imports lightning, torchvision and timm. The layer, the loss and the wrapper need
    none of them, so empty packages stand in for three `__init__` files and the real submodules are imported.
    """
    if "torch_uncertainty" not in sys.modules:
        spec = importlib.util.find_spec("torch_uncertainty")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError("No module named 'torch_uncertainty'")
        folder = Path(spec.submodule_search_locations[0])
        for name in ("", ".utils", ".methods"):
            package = types.ModuleType(f"torch_uncertainty{name}")
            package.__path__ = [str(folder / name[1:])]
            sys.modules[package.__name__] = package
    linear = importlib.import_module("torch_uncertainty.layers.bayesian").BayesLinear
    elbo = importlib.import_module("torch_uncertainty.losses").ELBOLoss
    stochastic = importlib.import_module("torch_uncertainty.methods.stochastic").StochasticModel
    network = stochastic(mlp(sizes, linear), num_samples=DRAWS)
    loss = elbo(network, nn.CrossEntropyLoss(), kl_weight=1 / DATA_SIZE, num_samples=1)
    return Built(network, loss, lambda x: network(x).unflatten(0, (DRAWS, len(x))))


def torchbayesian(sizes: tuple[int, ...]) -> Built:
    """torchbayesian: `BayesianModule(network)` and its `kl_divergence()`."""
    network = importlib.import_module("torchbayesian.bnn").BayesianModule(mlp(sizes))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(network(x), y) + network.kl_divergence() / DATA_SIZE

    return Built(network, loss, loop_of_forwards(network))


PEERS = (
    Peer(
        name="bayesian-torch",
        how="dnn_to_bnn, LinearReparameterization; get_kl_loss (closed form, means); loop of forwards",
        build=bayesian_torch,
    ),
    Peer(
        name="blitz-bayesian-pytorch",
        how="BayesianLinear, default mixture prior; sample_elbo (one draw of the KL); loop of forwards",
        build=blitz,
    ),
    Peer(
        name="torchbnn",
        how="BayesLinear, prior N(0, 0.1^2); BKLLoss (closed form, sum); loop of forwards",
        build=torchbnn,
    ),
    Peer(
        name="torch-uncertainty",
        how="BayesLinear, default mixture prior; ELBOLoss (one draw of the KL, mean); StochasticModel",
        build=torch_uncertainty,
    ),
    Peer(
        name="torchbayesian",
        how="BayesianModule, prior N(0, 1); kl_divergence (closed form, sum); loop of forwards",
        build=torchbayesian,
    ),
)


def check(peer: Peer) -> None:
    """Refuses to time a peer that does not draw, or whose loss does not reach its parameters."""
    sizes = (3, 4, 2)
    built, (x, y) = peer.build(sizes), batch(sizes)
    built.loss(x, y).backward()
    reached = sum(p.grad.numel() for p in built.network.parameters() if p.grad is not None)
    expected = 2 * sum(p.numel() for p in mlp(sizes).parameters())
    if reached != expected:
        raise RuntimeError(
            f"gradients reach {reached} numbers; expected {expected}, a mean and a scale per weight"
        )
    built.network.eval()
    with torch.no_grad():
        draws = built.draws(x)
    if draws.shape != (DRAWS, BATCH, sizes[-1]) or bool((draws.var(0) == 0).any()):
        raise RuntimeError(f"got draws of shape {tuple(draws.shape)}; expected {DRAWS} different ones")


def measure(
    peer: Peer, network: str, *, rounds: int, least: int, seconds: float, warmup: int, fused: bool | None
) -> list[dict[str, Any]]:
    """Two rows, training step and prediction, of one peer on one network; `fused` is the peer's own Adam."""
    sizes = NETWORKS[network]
    torch.manual_seed(0)
    built, (x, y) = peer.build(sizes), batch(sizes)
    built.network.train()
    step = {
        "Adam": deterministic_step(sizes),
        "peer": training_step(built.network, built.loss, x, y, fused=fused),
        "fused Adam": deterministic_step(sizes, fused=True),
    }
    stepped = interleave(step, rounds, warmup=warmup, seconds=seconds, least=least)
    if not math.isfinite(float(built.loss(x, y).detach())):
        raise RuntimeError(
            f"the loss of {peer.name} on {network} is no longer finite: these times mean nothing"
        )
    built.network.eval()
    prediction = {"forward": deterministic_pass(sizes), "peer": torch.no_grad()(lambda: built.draws(x))}
    predicted = interleave(prediction, rounds, warmup=warmup, seconds=seconds, least=least)
    rows: list[dict[str, Any]] = []
    for what, times in (("training step", stepped), ("prediction", predicted)):
        row: dict[str, Any] = {
            "library": peer.name,
            "version": importlib.metadata.version(peer.name),
            "how": peer.how,
            "network": network,
            "measure": what,
            "optimizer": "fused Adam" if fused else "Adam",
            "batch": BATCH,
            "draws": 1 if what == "training step" else DRAWS,
            "rounds": len(times["peer"]),
            "seconds": statistics.median(times["peer"]),
            "baselines": {
                name: {"seconds": statistics.median(t), "ratio": asdict(ratio(times, "peer", name))}
                for name, t in times.items()
                if name != "peer"
            },
        }
        rows.append(row)
        against = ", ".join(f"{b['ratio']['value']:.2f} x {name}" for name, b in row["baselines"].items())
        print(f"{peer.name:24s}{network:20s}{what:15s}{row['seconds'] * 1e3:9.1f} ms = {against}", flush=True)
    return rows


def environment() -> dict[str, Any]:
    """What the times depend on beside the code."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def save(result: dict[str, Any], path: Path) -> None:
    """Writes strict JSON; called after every network, so that a run cut short keeps what it has."""
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def main() -> int:
    """Times all peers that can be imported and writes one JSON file; 1 if none can be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds per measurement (default 30)")
    parser.add_argument("--least", type=int, default=10, help="rounds run however slow they are (default 10)")
    parser.add_argument(
        "--warmup", type=int, default=3, help="untimed rounds before, fewer when slow (default 3)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="after --least rounds stop a measurement at this time (default 4)",
    )
    parser.add_argument(
        "--fused", action="store_true", help="peers step with fused Adam too (default: Adam's default)"
    )
    parser.add_argument(
        "--peer", action="append", choices=[p.name for p in PEERS], help="only these (repeatable)"
    )
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="only these (repeatable)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {"environment": environment(), "rows": [], "not_installed": []}
    for peer in PEERS:
        if arguments.peer and peer.name not in arguments.peer:
            continue
        try:
            check(peer)
        except ImportError as error:
            result["not_installed"].append(
                {"library": peer.name, "status": "not installed", "reason": str(error)}
            )
            print(f"{peer.name:24s}not installed: {error}", flush=True)
            continue
        for network in arguments.network or NETWORKS:
            result["rows"] += measure(
                peer,
                network,
                rounds=arguments.rounds,
                least=arguments.least,
                seconds=arguments.seconds,
                warmup=arguments.warmup,
                fused=True if arguments.fused else None,
            )
            save(result, arguments.out)
    save(result, arguments.out)
    return 0 if result["rows"] else 1


if __name__ == "__main__":
    sys.exit(main())
