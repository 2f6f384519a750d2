"""A Hugging Face model under Hugging Face's own `Trainer`, with checkpoints and resume.

    python examples/hugging_face_trainer.py

Shows a BERT classifier with low-rank factors in place of its linear layers and a belief over the factors.
`Trainer` asks of a module that it returns a loss and logits, which `ForTrainer` does. The model is tiny and
starts at random; in its place comes `BertForSequenceClassification.from_pretrained(...)` with `init="svd"`.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import singularbayes as sb

WORDS, LENGTH = 60, 12


class Sentences(Dataset):
    """Token ids; the label says whether word 7 stands before the padding."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        source = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(10, WORDS, (rows, LENGTH), generator=source)
        self.ids[::2, 3] = 7
        self.mask = torch.ones_like(self.ids)
        self.mask[:, LENGTH - 3 :] = 0
        self.labels = (torch.arange(rows) % 2 == 0).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[row], "attention_mask": self.mask[row], "labels": self.labels[row]}


class ForTrainer(nn.Module):
    """What `Trainer` calls: keywords in, a loss and logits out."""

    def __init__(self, variational: sb.VariationalModule) -> None:
        super().__init__()
        self.variational = variational

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.variational(input_ids=input_ids, attention_mask=attention_mask).logits
        return {"loss": self.variational.objective(logits, labels), "logits": logits}


def build(num_data: int) -> ForTrainer:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    network = sb.factorize(BertForSequenceClassification(config), rank={"*encoder*": 8})
    model = sb.Model(network, sb.Categorical(), prior=sb.Normal(1.0))
    return ForTrainer(sb.VariationalModule(model, num_data=num_data, initial_std=0.05))


def main(
    steps: int = 150, folder: str | None = None, save_steps: int = 50, resume: str | None = None
) -> ForTrainer:
    """Train; `resume` is a checkpoint folder of an earlier run."""
    train = Sentences(256)
    wrapped = build(len(train))
    with tempfile.TemporaryDirectory() as temporary:
        arguments = TrainingArguments(
            output_dir=folder or temporary, max_steps=steps, per_device_train_batch_size=32, seed=0,
            learning_rate=3e-3, lr_scheduler_type="constant", weight_decay=0.0, save_steps=save_steps,
            logging_steps=50, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        Trainer(wrapped, arguments, train_dataset=train).train(resume_from_checkpoint=resume)
    return wrapped


if __name__ == "__main__":
    posterior = main(folder=str(Path(tempfile.mkdtemp()))).variational.posterior()
    test = Sentences(128, seed=1)
    predictive = posterior.predict({"input_ids": test.ids, "attention_mask": test.mask}, draws=16)
    right = (predictive.mean.argmax(1) == test.labels).float().mean().item()
    print(f"accuracy {right:.3f}, mean mutual information {predictive.epistemic.mean().item():.1e} nats")
