"""Bayesian LoRA: a belief over the adapters of a `peft` model, the rest of the model frozen.

    python examples/lora.py

LoRA's factors are a low-rank structure already, so `bayesian="*lora_*"` is all that it takes; the new head is
trained as a point estimate. The model is a tiny GPT-2 that starts at random, and the batches are the dicts
that a tokenizer gives; a pretrained model takes the same lines.
"""

from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification

import singularbayes as sb

WORDS, LENGTH = 50, 10


def data(rows: int, seed: int) -> dict[str, Tensor]:
    """Sentences of token ids; the label says whether word 7 occurs."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, WORDS, (rows, LENGTH), generator=source)
    labels = torch.arange(rows) % 2
    ids[labels == 1, 4] = 7
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def adapted() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    adapters = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True
    )
    return get_peft_model(GPT2ForSequenceClassification(config), adapters)


def build() -> sb.Model:
    return sb.Model(
        adapted(), sb.Categorical(), prior=sb.Normal(1.0),
        bayesian=["*lora_*", "*modules_to_save*"], deterministic="*modules_to_save*",
    )  # fmt: skip


def main(
    epochs: int = 25, rows: int = 256, batch_size: int = 32, checkpoint: Path | None = None
) -> sb.Posterior:
    train = data(rows, 0)
    batches = [{k: v[i : i + batch_size] for k, v in train.items()} for i in range(0, rows, batch_size)]
    method = sb.MeanField(epochs=epochs, learning_rate=1e-2, initial_std=0.02, temperature=0.1)
    return method.fit(build(), batches, checkpoint=checkpoint)


if __name__ == "__main__":
    posterior = main()
    test = data(128, 1)
    labels = test.pop("labels")
    predictive = posterior.predict(test, draws=16)
    right = (predictive.mean.argmax(1) == labels).float().mean().item()
    everything = sum(p.numel() for p in posterior.network.parameters())
    print(f"accuracy {right:.3f}, mean mutual information {predictive.epistemic.mean().item():.1e} nats, "
          f"{posterior.info['numbers']:,} trained numbers for {everything:,} weights")  # fmt: skip
