"""What both sides of the training curves get: the same model, rows, order of rows and settings, as plain numbers.

Nothing of it depends on a library's random numbers: `random.random` alone is drawn from, whose values Python promises.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SEED, STEPS, MINIBATCH = 3, 50, 8
ROWS, VOCABULARY = 64, 300
PAD, BOS, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3, 10

MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
SETTINGS: dict[str, dict[str, float]] = {
    "sft": {"learning_rate": 1e-2},
    "reward_model": {"learning_rate": 2e-3},
    "dpo": {"learning_rate": 2e-3, "beta": 0.2},
    "kto": {"learning_rate": 2e-3, "beta": 0.2, "desirable_weight": 1.0, "undesirable_weight": 1.5},
}
COMMON: dict[str, Any] = {"schedule": "linear", "max_grad_norm": 1.0, "weight_decay": 0.0}


@dataclass(frozen=True)
class Example:
    """Token ids: a prompt that no other row has, and a better and a worse completion that end with EOS."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    def labelled(self, number: int) -> tuple[list[int], bool]:
        """The completion of row `number` and its label: rows with even numbers have the better one."""
        return (self.chosen, True) if number % 2 == 0 else (self.rejected, False)


def examples() -> list[Example]:
    """ROWS ragged rows. Better completions are of even ids, worse ones of odd ids."""
    draw = random.Random(SEED)

    def below(limit: int) -> int:
        return int(draw.random() * limit)

    def words(least: int, most: int, parity: int) -> list[int]:
        count = least + below(most - least + 1)
        return [FIRST_WORD + 2 * below((VOCABULARY - FIRST_WORD) // 2) + parity for _ in range(count)]

    return [
        Example([BOS, FIRST_WORD + i, *words(0, 6, below(2))], [*words(1, 12, 0), EOS], [*words(1, 12, 1), EOS])
        for i in range(ROWS)
    ]


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Weights that depend on their names alone: even in -0.35..0.35, of norms in 0.9..1.1."""
    for name, parameter in model.named_parameters():
        draw = random.Random(name)
        uniform = [2 * draw.random() - 1 for _ in range(parameter.numel())]
        values = torch.tensor(uniform).view(parameter.shape)
        parameter.copy_(1 + 0.1 * values if parameter.ndim == 1 else 0.35 * values)
