"""Spectra of trained networks by layer, beside their random starts: do embeddings decay fastest?

    python benchmarks/spectra.py --data FOLDER --out runs/spectra [--networks mlp lstm transformer]

- ``mlp``: 64-128-128-8 on the digits recipe; ``lstm``: the beijing recipe's 2 x LSTM 64; both by MAP.
- ``transformer``: pre-norm, d 64, 2 layers, 4 heads, feed-forward 128 on SST-2 phrases of at most 32 words,
  with the 6,000 commonest words of the training phrases (rarer ones are one token): rows of the table that no
  batch looks up would stay at their start and hide what training does. 20,000 phrases, MAP.

Every network is trained twice: with the prior's weight decay and without it (T = 0), since decay alone thins
a spectrum. Printed for every matrix: ranks for 90 and 99% of the energy over the smaller side, effective and
stable rank over it, decay; trained, and at the start of the same seed. Finished fits are kept in --out: run
it again after an interruption. About 40 minutes on one core with the defaults (the LSTM is most of it).
"""

import argparse
import csv
import gzip
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from kept import kept
from torch import Tensor, nn

import singularbayes as sb
from singularbayes.random import forked
from singularbayes.recipes import ALL
from singularbayes.report import singular_value_plot
from singularbayes.theory import Spectra, Spectrum, singular_values

WORDS, LENGTH, PHRASES, WIDTH = 6_000, 32, 20_000, 64


class Classifier(nn.Module):
    """Embedding with learned places, a pre-norm Transformer, the mean over words, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + 2, WIDTH, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        x = self.encoder(self.embedding(ids) + self.places, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(x)
        return self.head((x * kept).sum(1) / kept.sum(1))


def phrases(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Ids and labels of the first training phrases and of the development set; 0 pads, 1 is a rarer word."""

    def read(name: str) -> pd.DataFrame:
        with gzip.open(folder / "sst2" / name, "rt", encoding="utf-8") as file:
            table = pd.read_csv(file, sep="\t", quoting=csv.QUOTE_NONE, keep_default_na=False)
        return table.assign(words=[text.strip().split()[:LENGTH] for text in table["sentence"]])

    train = read("train.tsv.gz").sample(PHRASES, random_state=0)
    counts = Counter(word for words in train["words"] for word in words)
    known = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS))}

    def ids(table: pd.DataFrame) -> tuple[Tensor, Tensor]:
        rows = [
            [known.get(word, 1) for word in words] + [0] * (LENGTH - len(words)) for words in table["words"]
        ]
        return torch.tensor(rows), torch.tensor(table["label"].to_numpy())

    return ids(train), ids(read("dev.tsv.gz"))


def task(kind: str, data: Path, epochs: int | None) -> tuple[Any, Any, sb.MAP, Any, Any]:
    """How to make the network, likelihood, method, train and test data."""
    if kind == "transformer":
        train, test = phrases(data)
        method = sb.MAP(epochs=6, learning_rate=5e-4)
        make, likelihood = Classifier, sb.Categorical()
    else:
        recipe = ALL["digits" if kind == "mlp" else "beijing"]
        splits = recipe.load(data if recipe.needs_data else None, 0)
        plan = recipe.plans["MAP"]
        method = replace(plan.method, patience=None, epochs=30)
        make, likelihood, train, test = plan.network, recipe.likelihood, splits.train, splits.test
    return make, likelihood, method if epochs is None else replace(method, epochs=epochs), train, test


def fit(kind: str, temperature: float, seed: int, data: Path, epochs: int | None) -> dict[str, Any]:
    """The spectra of one network before and after training, and how good it is."""
    make, likelihood, method, train, test = task(kind, data, epochs)
    with forked(seed, "start"):
        network = make()
    model = sb.Model(network, likelihood, prior=sb.Normal(1.0))
    posterior = replace(method, temperature=temperature).fit(model, train, seed=seed, progress=False)
    x, y = (torch.as_tensor(part) for part in test)
    nll = -posterior.predict(x).log_prob(y).mean().item()
    start, trained = plain(singular_values(network)), plain(singular_values(posterior))
    return {"nll": nll, "seconds": posterior.info["seconds"], "start": start, "trained": trained}


def plain(spectra: Spectra) -> list[dict[str, Any]]:
    return [{"name": s.name, "matrix": s.matrix, "kind": s.kind, "shape": list(s.shape),
             "values": s.values.tolist()} for s in spectra]  # fmt: skip


def again(content: list[dict[str, Any]]) -> list[Spectrum]:
    return [
        Spectrum(c["name"], c["matrix"], c["kind"], tuple(c["shape"]), torch.tensor(c["values"]).double())
        for c in content
    ]


def line(spectrum: Spectrum) -> dict[str, float]:
    side = min(spectrum.shape)
    return {"r90": spectrum.rank_for(0.9) / side, "r99": spectrum.rank_for(0.99) / side,
            "effective": spectrum.effective_rank / side, "stable": spectrum.stable_rank / side,
            "decay": spectrum.decay}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/spectra"))
    parser.add_argument("--networks", nargs="*", default=["mlp", "lstm", "transformer"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="for a quick try; results then stand for nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in arguments.networks:
        for temperature in (1.0, 0.0):
            for seed in range(arguments.seeds):
                key = f"{kind}-{'decay' if temperature else 'plain'}-{seed}"
                make = partial(fit, kind, temperature, seed, arguments.data, arguments.epochs)
                found = kept(arguments.out / "jobs", key, {"epochs": arguments.epochs}, make)
                start, trained = again(found["start"]), again(found["trained"])
                if seed == 0 and temperature:
                    values = {name: {s.title: s.values.numpy() for s in spectra}
                              for name, spectra in (("start", start), ("trained", trained))}  # fmt: skip
                    singular_value_plot(values).savefig(arguments.out / f"{kind}.png", dpi=150)
                about = {
                    "network": kind,
                    "weight decay": bool(temperature),
                    "seed": seed,
                    "nll": found["nll"],
                }
                for before, after in zip(start, trained, strict=True):
                    shape = " x ".join(map(str, after.shape))
                    at_start = {f"{key} at start": value for key, value in line(before).items()}
                    layer = {"layer": after.title, "kind": after.kind, "shape": shape}
                    rows.append(about | layer | line(after) | at_start)
    table = pd.DataFrame(rows)
    table.to_csv(arguments.out / "spectra.csv", index=False)
    means = (
        table.drop(columns="seed")
        .groupby(["network", "weight decay", "layer", "kind", "shape"], sort=False)
        .mean()
    )
    print(means.to_string(float_format=lambda value: f"{value:.2f}"))
    for (kind, decay), group in means.groupby(level=[0, 1], sort=False):
        fastest = group["decay"].idxmax()[2]
        thinnest = (group["effective"] / group["effective at start"]).idxmin()[2]
        print(f"{kind}, weight decay {decay}: fastest decay {fastest}; furthest below its start {thinnest}")
    errors = table.groupby(["network", "weight decay", "layer"])["decay"].sem()
    print(f"standard error of the decay over seeds: at most {np.nanmax(errors.to_numpy()):.3f}")


if __name__ == "__main__":
    main()
