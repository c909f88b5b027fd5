"""What the scripts that call TRL's trainers share: toy models in float64, ragged data, the trainers' settings.

The trainers are built around a tiny Llama because they want a model; their loss methods then get a toy, whose
log-probabilities per token are stored together with the loss and its gradient with respect to them.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedTokenizerFast

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

VOCABULARY = 11
PAD = 0
WORDS = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}


class Toy(nn.Module):
    """Gives the next tokens of its input random log-probabilities; answers like TRL's models, with a fused head too.

    seen: the log-probabilities of each call, leaves [B, T - 1], whose gradient is that of the token's log-probability.
    """

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = scale
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SimpleNamespace:
        targets = input_ids[:, 1:]
        uniform = torch.rand(targets.shape, generator=self.generator, dtype=torch.float64)
        log_probs = (self.scale * uniform.clamp(min=1e-9).log()).requires_grad_(torch.is_grad_enabled())
        self.seen.append(log_probs)
        outputs = SimpleNamespace(logits=logits(log_probs, targets))
        if labels is not None:
            outputs.label_mask = labels[:, 1:] != -100
            outputs.log_probs = torch.where(outputs.label_mask, log_probs, 0.0)
            outputs.entropy = outputs.mean_logits = torch.zeros_like(log_probs)
            outputs.is_top1 = torch.zeros_like(outputs.label_mask)
        return outputs


def logits(log_probs: Tensor, targets: Tensor) -> Tensor:
    """[B, T, V]: at each position but the last, the target has the given log-probability [B, T - 1]; the rest is even.

    They are normalised, so that the derivative of the target's log-probability by the given one is 1.
    """
    rest = torch.log(-torch.expm1(log_probs) / (VOCABULARY - 1))
    is_target = targets[..., None] == torch.arange(VOCABULARY)
    known = torch.where(is_target, log_probs[..., None], rest[..., None])
    return torch.cat([known, torch.zeros_like(known[:, :1])], dim=1)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny(cls: type) -> nn.Module:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return cls(LlamaConfig(vocab_size=VOCABULARY, pad_token_id=PAD, num_labels=1, **sizes))


def arguments(**more: Any) -> dict[str, Any]:
    """Of every trainer's config."""
    return {"output_dir": tempfile.mkdtemp(), "report_to": "none", "use_cpu": True, "bf16": False, **more}


def ragged(rng: random.Random, rows: int, longest: int) -> list[list[int]]:
    return [[rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(rows)]


def prefix_mask(rng: random.Random, rows: int, width: int) -> Tensor:
    """[rows, width] int64, ones at the left; the first row is full."""
    lengths = [width] + [rng.randint(1, width) for _ in range(rows - 1)]
    return torch.tensor([[int(t < length) for t in range(width)] for length in lengths])


@contextmanager
def no_float32() -> Iterator[None]:
    """Where TRL calculates in float32 whatever the model's precision, by a cast or by default, it is float64."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(Tensor, "float", Tensor.double):
            yield
    finally:
        torch.set_default_dtype(usual)
