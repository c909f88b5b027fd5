"""TRL's trainers that learn from stored data: SFT, reward, DPO, KTO, CPO (and SimPO), ORPO."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import datasets
import torch
import trl
from toys import Toy, arguments, no_float32, ragged, tiny, tokenizer
from transformers import LlamaForCausalLM, LlamaForSequenceClassification
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

PAIR = {"prompt": "a ", "chosen": "b c", "rejected": "d"}


def rewards(metrics: dict[str, list[float]]) -> dict[str, float]:
    return {key.partition("/")[2]: values[-1] for key, values in metrics.items() if "rewards/" in key}


def sft(seed: int, batches: int) -> dict[str, Any]:
    """Micro-batches whose losses, given the count of all their tokens, add up."""
    trainer = trl.SFTTrainer(
        model=tiny(LlamaForCausalLM),
        args=trl.SFTConfig(**arguments()),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a ", "completion": "b c"}] * 4),
        processing_class=tokenizer(),
    )
    rng, policy = random.Random(seed), Toy(seed, 1.0)
    made = []
    for _ in range(batches):
        columns = zip(ragged(rng, 3, 3), ragged(rng, 3, 7), strict=True)
        rows = [{"input_ids": p + c, "labels": [-100] * len(p) + c} for p, c in columns]
        made.append(trainer.data_collator(rows))
    masks = [batch["labels"][:, 1:] != -100 for batch in made]
    tokens = sum(mask.sum() for mask in masks)
    losses = [trainer.compute_loss(policy, batch, num_items_in_batch=tokens) for batch in made]
    sum(losses).backward()
    return {
        "masks": [mask.int().tolist() for mask in masks],
        "policy": [seen.tolist() for seen in policy.seen],
        "losses": [loss.item() for loss in losses],
        "gradients": [seen.grad.tolist() for seen in policy.seen],
    }


def reward(seed: int, margins: bool, centring: float | None) -> dict[str, Any]:
    trainer = trl.RewardTrainer(
        model=tiny(LlamaForSequenceClassification),
        args=trl.RewardConfig(center_rewards_coefficient=centring, **arguments()),
        train_dataset=datasets.Dataset.from_list([{"chosen": "a b c", "rejected": "d"}] * 4),
        processing_class=tokenizer(),
    )
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(12, 1, generator=generator, dtype=torch.float64)).requires_grad_()
    inputs = {"attention_mask": torch.ones(12, 1, dtype=torch.long)}
    if margins:
        inputs["margin"] = torch.rand(6, generator=generator, dtype=torch.float64)
    with no_float32():
        loss = trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores), inputs)
    loss.backward()
    chosen, rejected = scores.detach()[:, 0].chunk(2)
    return {
        "centring": centring,
        "margins": inputs["margin"].tolist() if margins else None,
        "chosen": chosen.tolist(),
        "rejected": rejected.tolist(),
        "loss": loss.item(),
        "gradient": scores.grad[:, 0].tolist(),
        "accuracy": trainer._metrics["train"]["accuracy"][-1],
        "margin": trainer._metrics["train"]["margin"][-1],
    }


def dpo(seed: int, pairs: int = 6, **settings: Any) -> dict[str, Any]:
    trainer = trl.DPOTrainer(
        model=tiny(LlamaForCausalLM),
        ref_model=tiny(LlamaForCausalLM),
        args=trl.DPOConfig(**settings, **arguments()),
        train_dataset=datasets.Dataset.from_list([PAIR] * 4),
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    columns = zip(ragged(rng, pairs, 3), ragged(rng, pairs, 7), ragged(rng, pairs, 7), strict=True)
    batch = trainer.data_collator([{"prompt_ids": p, "chosen_ids": c, "rejected_ids": r} for p, c, r in columns])
    policy, trainer.ref_model = Toy(seed, 1.0), Toy(seed + 100, 1.2)
    with no_float32():
        loss = trainer.compute_loss(policy, batch)
    loss.backward()
    return {
        "trainer": "dpo",
        "settings": settings,
        "mask": batch["completion_mask"][:, 1:].tolist(),
        "policy": policy.seen[0].tolist(),
        "reference": trainer.ref_model.seen[0].tolist(),
        "loss": loss.item(),
        "gradient": policy.seen[0].grad.tolist(),
        "metrics": rewards(trainer._metrics["train"]),
    }


def cpo(seed: int, **settings: Any) -> dict[str, Any]:
    return without_reference(CPOTrainer, CPOConfig, "cpo", seed, 3, settings)


def orpo(seed: int, **settings: Any) -> dict[str, Any]:
    """The prompts are one token long, for TRL's ORPO trains on them too, and no label falls on the first token."""
    return without_reference(ORPOTrainer, ORPOConfig, "orpo", seed, 1, settings)


def without_reference(
    trainer_class: type, config: type, name: str, seed: int, longest_prompt: int, settings: dict[str, Any]
) -> dict[str, Any]:
    trainer = trainer_class(
        model=tiny(LlamaForCausalLM),
        args=config(remove_unused_columns=False, **settings, **arguments()),
        train_dataset=datasets.Dataset.from_list([PAIR] * 4),
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    columns = zip(ragged(rng, 6, longest_prompt), ragged(rng, 6, 7), ragged(rng, 6, 7), strict=True)
    rows = [{**fields("chosen", p, c), **fields("rejected", p, r)} for p, c, r in columns]
    batch, policy = trainer.data_collator(rows), Toy(seed, 1.0)
    with no_float32():
        loss = trainer.compute_loss(policy, batch)
    loss.backward()
    labels = trainer.concatenated_inputs(batch, padding_value=0)["concatenated_labels"]
    return {
        "trainer": name,
        "settings": settings,
        "mask": (labels[:, 1:] != -100).int().tolist(),
        "policy": policy.seen[0].tolist(),
        "reference": None,
        "loss": loss.item(),
        "gradient": policy.seen[0].grad.tolist(),
        "metrics": rewards(trainer._stored_metrics["train"]),
    }


def fields(name: str, prompt: list[int], completion: list[int]) -> dict[str, list[int]]:
    ids = prompt + completion
    return {
        f"{name}_input_ids": ids,
        f"{name}_attention_mask": [1] * len(ids),
        f"{name}_labels": [-100] * len(prompt) + completion,
    }


def kto(seed: int, labels: list[bool], **settings: Any) -> dict[str, Any]:
    text = [{"prompt": "a ", "completion": "b c", "label": i % 2 == 0} for i in range(4)]
    trainer = trl.KTOTrainer(
        model=tiny(LlamaForCausalLM),
        ref_model=tiny(LlamaForCausalLM),
        args=trl.KTOConfig(**settings, **arguments()),
        train_dataset=datasets.Dataset.from_list(text),
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    prompts, completions = ragged(rng, len(labels), 3), ragged(rng, len(labels), 7)
    mismatched = [completions[-1], *completions[:-1]]
    columns = zip(prompts, completions, mismatched, labels, strict=True)
    rows = [{"prompt_ids": p, "completion_ids": c, "KL_completion_ids": m, "label": y} for p, c, m, y in columns]
    batch = trainer.data_collator(rows)
    policy, trainer.ref_model = Toy(seed, 1.0), Toy(seed + 100, 1.2)
    with no_float32():
        loss = trainer.compute_loss(policy, batch)
    loss.backward()
    return {
        "settings": settings,
        "labels": labels,
        "mask": batch["completion_mask"][:, 1:].tolist(),
        "policy": policy.seen[1].tolist(),
        "reference": trainer.ref_model.seen[1].tolist(),
        "kl_mask": batch["KL_completion_mask"][:, 1:].tolist(),
        "kl_policy": policy.seen[0].tolist(),
        "kl_reference": trainer.ref_model.seen[0].tolist(),
        "baseline": trainer._metrics["train"]["kl"][-1],
        "loss": loss.item(),
        "gradient": policy.seen[1].grad.tolist(),
        "metrics": rewards(trainer._metrics["train"]),
    }
