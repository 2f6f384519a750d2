"""Memory of SWAG: a million weights, 20 columns, each measured in a fresh process as growth of peak RSS.

    python benchmarks/swag_memory.py

Three cases have the limit of 100 MB, each above the peak of the same process without SWAG:

* *collect*: the network is there, and 40 of its snapshots are collected by ``swag.collect(network)``.
* *posterior*: the same, then ``swag.posterior()``, with the collector still there and the copy of the network
  that any posterior has.
* *fit*: ``SWAG.fit`` above ``SWA.fit`` of the same epochs, which trains the same way and keeps the mean.

Two more are for orientation: *predict*, with blocks of 8 draws of a million numbers as for every method; and
*checkpoint*, a fit that saves its state (the file is made in memory before it is written).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile

import torch
from torch import nn

import singularbayes as sb

LIMIT = 100.0  # MB of 10^6 bytes
# freed blocks go back to the system at once: glibc keeps some MB of them, more or less from run to run
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}
CASES = {
    "collect": ("net", True),
    "posterior": ("net", True),
    "fit": ("fit without columns", True),
    "predict": ("net", False),
    "checkpoint": ("fit without columns", False),
}
BASELINES = ("net", "fit without columns")
WIDTH = 1000


def peak() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(case: str, rank: int) -> float:
    """Peak resident size of one case in MB; imports, data and kernels are there in all of them."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Flatten())
    x = torch.randn(64, WIDTH)
    model = sb.Model(network, sb.Gaussian(noise=1.0))
    settings = {"epochs": 30, "start_epoch": 2, "batch_size": 32, "collect_rate": 1e-3, "learning_rate": 1e-3}
    with torch.no_grad():
        network(x)
    tiny = sb.Model(nn.Linear(2, 2), sb.Gaussian(noise=1.0))  # imports and kernels
    warm = sb.SWAG(epochs=3, start_epoch=0)
    warm.fit(tiny, (torch.randn(8, 2), torch.randn(8, 2)), progress=False).predict(torch.randn(8, 2))
    if case == "fit without columns":
        sb.SWA(**settings).fit(model, (x, x), progress=False)
    elif case == "fit":
        sb.SWAG(rank=rank, **settings).fit(model, (x, x), progress=False)
    elif case == "checkpoint":
        with tempfile.TemporaryDirectory() as folder:
            sb.SWAG(rank=rank, **settings).fit(model, (x, x), progress=False, checkpoint=folder)
    elif case != "net":
        collector = sb.SWAG(rank=rank).collector(model)
        for _ in range(40):
            with torch.no_grad():
                for rows in network[0].weight.split(100):  # training of the user's, with next to no memory
                    rows.add_(torch.randn(100, WIDTH), alpha=1e-3)
            collector.collect(network)
        if case in ("posterior", "predict"):
            posterior = collector.posterior()
        if case == "predict":
            posterior.predict(x, draws=32)
    return peak()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--case", choices=[*BASELINES, *CASES], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.rank)))
        return
    found = {}
    for case in (*BASELINES, *CASES):
        command = [sys.executable, __file__, "--case", case, "--rank", str(arguments.rank)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **ALLOCATOR}
        )
        found[case] = json.loads(done.stdout)
    print(f"1,000,000 weights in float32 (4 MB), rank {arguments.rank}; peak RSS above its baseline, MB")
    failed = False
    for case, (baseline, limited) in CASES.items():
        above = found[case] - found[baseline]
        bad = limited and above >= LIMIT
        failed |= bad
        verdict = f"limit {LIMIT:.0f}: {'FAILED' if bad else 'ok'}" if limited else "no limit"
        print(f"{case:<11}{above:7.1f} above '{baseline}'   {verdict}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
