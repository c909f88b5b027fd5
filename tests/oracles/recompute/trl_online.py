"""TRL's trainers that learn from their own samples: GRPO with its many losses, RLOO."""

from __future__ import annotations

import random
from typing import Any

import datasets
import torch
import trl
from torch import Tensor
from toys import arguments, no_float32, prefix_mask, ragged, tiny, tokenizer
from transformers import LlamaForCausalLM

ROWS, WIDTH, GROUP = 8, 6, 4


def trainer_of(trainer_class: type, config: type, beta: float, settings: dict[str, Any]) -> Any:
    trainer = trainer_class(
        model=tiny(LlamaForCausalLM),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config(
            beta=0.0,
            num_generations=GROUP,
            per_device_train_batch_size=ROWS,
            max_completion_length=WIDTH,
            **settings,
            **arguments(),
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * ROWS),
        processing_class=tokenizer(),
    )
    trainer.beta = beta  # set late: the constructor would load a reference model by its name
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def samples(seed: int, noise: float) -> dict[str, Tensor]:
    """Ragged rows with the log-probabilities of the policy now, when it sampled, and of the reference."""
    generator = torch.Generator().manual_seed(seed)
    old, moved, shift = (torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    old = -old.abs()
    return {
        "mask": prefix_mask(random.Random(seed), ROWS, WIDTH),
        "old": old,
        "policy": (old + noise * moved).requires_grad_(),
        "reference": old + 0.3 * shift,
        "advantages": torch.randn(ROWS, generator=generator, dtype=torch.float64),
    }


def batch_of(rows: dict[str, Tensor], **more: Tensor) -> dict[str, Tensor]:
    one = torch.ones(ROWS, 1, dtype=torch.long)
    return {
        "prompt_ids": one,
        "prompt_mask": one,
        "completion_ids": one.expand(ROWS, WIDTH),
        "completion_mask": rows["mask"],
        "advantages": rows["advantages"],
        **more,
    }


def result(trainer: Any, rows: dict[str, Tensor], batch: dict[str, Tensor], **more: Any) -> dict[str, Any]:
    with no_float32():
        loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    clipped = {key: values[-1] for key, values in trainer._metrics["train"].items() if "clip" in key}
    stored = {name: values.tolist() for name, values in rows.items()}
    return {**more, **stored, "loss": loss.item(), "gradient": rows["policy"].grad.tolist(), "clipped": clipped}


def grpo(seed: int, beta: float = 0.0, noise: float = 0.4, **settings: Any) -> dict[str, Any]:
    trainer = trainer_of(trl.GRPOTrainer, trl.GRPOConfig, beta, {"use_bias_correction_kl": False, **settings})
    rows = samples(seed, noise)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (rows["policy"], torch.zeros_like(rows["old"]), None)
    batch = batch_of(
        rows,
        old_per_token_logps=rows["old"],
        ref_per_token_logps=rows["reference"],
        num_items_in_batch=rows["mask"].sum(),
    )
    return result(trainer, rows, batch, beta=beta, settings=settings)


def rloo(seed: int, noise: float = 0.15, **settings: Any) -> dict[str, Any]:
    trainer = trainer_of(trl.RLOOTrainer, trl.RLOOConfig, 0.0, settings)
    rows = samples(seed, noise)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (rows["policy"], torch.zeros_like(rows["old"]), None)
    batch = batch_of(rows, old_logps=(rows["old"] * rows["mask"]).sum(1))
    return result(trainer, rows, batch, settings=settings)


def grpo_advantages(seed: int, scores: list[float], **settings: Any) -> dict[str, Any]:
    trainer = trainer_of(trl.GRPOTrainer, trl.GRPOConfig, 0.0, settings)
    completions = ragged(random.Random(seed), ROWS, WIDTH)
    generated = ([[3]] * ROWS, completions, None, ["a"] * ROWS, None, {}, None, None)
    trainer._generate = lambda prompts: generated
    return {"settings": settings, **advantages(trainer, scores, completions)}


def rloo_advantages(seed: int, scores: list[float], beta: float) -> dict[str, Any]:
    """With the KL penalty in the reward."""
    trainer = trainer_of(trl.RLOOTrainer, trl.RLOOConfig, beta, {"normalize_advantages": False})
    completions = ragged(random.Random(seed), ROWS, WIDTH)
    trainer._generate = lambda prompts: ([[3]] * ROWS, completions, ["a"] * ROWS)
    trainer.ref_model = object()
    width, generator = max(map(len, completions)), torch.Generator().manual_seed(seed)
    old, shift = (torch.randn(ROWS, width, generator=generator, dtype=torch.float64) for _ in range(2))
    known = {id(trainer.model): old, id(trainer.ref_model): old + shift}
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (known[id(model)], None, None)
    found = advantages(trainer, scores, completions)
    return {"beta": beta, "old": old.tolist(), "reference": (old + shift).tolist(), **found}


def advantages(trainer: Any, scores: list[float], completions: list[list[int]]) -> dict[str, Any]:
    """NaN for a score that is none is stored as None."""
    table = torch.tensor(scores, dtype=torch.float64)[:, None]
    trainer._calculate_rewards = lambda *_: table
    with no_float32():
        output = trainer._generate_and_score_completions([{"prompt": "a"}] * ROWS)
    return {
        "scores": [None if score != score else score for score in scores],
        "lengths": [len(ids) for ids in completions],
        "advantages": output["advantages"].tolist(),
    }
