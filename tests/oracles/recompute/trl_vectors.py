"""Vectors of TRL's trainers: their own loss methods, called on float64 toy models with ragged completions.

Run it in an environment of its own (trl.txt) with `--write` or without, see vectors.py. The trainers are built around a
tiny Llama because they want a model; their loss methods then get the bigram model below, whose float64
log-probabilities per token are stored together with the loss and its gradient with respect to them.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from types import SimpleNamespace
from typing import Any

import datasets
import torch
import trl
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)
from vectors import main

VOCABULARY = 11
PAD = 0
WORDS = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}


class Bigram(nn.Module):
    """A language model in float64 whose logits are a row of a table; answers like TRL's models with a fused head."""

    def __init__(self, seed: int, scale: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        table = scale * torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(table)
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, labels: Tensor, **_: Any) -> SimpleNamespace:
        logits = self.table[input_ids[:, :-1]]
        all_log_probs = logits.log_softmax(-1)
        labels = labels[:, 1:]
        log_probs = all_log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0].masked_fill(labels == -100, 0)
        if log_probs.requires_grad:
            log_probs.retain_grad()
        self.seen.append(log_probs)
        return SimpleNamespace(
            log_probs=log_probs,
            entropy=-(all_log_probs.exp() * all_log_probs).sum(-1),
            mean_logits=logits.mean(-1),
            is_top1=logits.argmax(-1) == labels,
        )


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny(cls: type) -> nn.Module:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return cls(LlamaConfig(vocab_size=VOCABULARY, pad_token_id=PAD, num_labels=1, **sizes))


def settings(**more: Any) -> dict[str, Any]:
    return {"output_dir": tempfile.mkdtemp(), "report_to": "none", "use_cpu": True, "bf16": False, **more}


def ragged(rng: random.Random, rows: int, longest: int) -> list[list[int]]:
    return [[rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(rows)]


def dpo(beta: float, seed: int) -> dict[str, Any]:
    text = datasets.Dataset.from_list([{"prompt": "a", "chosen": "b c", "rejected": "d"}] * 4)
    trainer = trl.DPOTrainer(
        model=tiny(LlamaForCausalLM),
        ref_model=tiny(LlamaForCausalLM),
        args=trl.DPOConfig(beta=beta, loss_type="sigmoid", **settings()),
        train_dataset=text,
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    columns = zip(ragged(rng, 6, 3), ragged(rng, 6, 7), ragged(rng, 6, 7), strict=True)
    rows = [{"prompt_ids": p, "chosen_ids": c, "rejected_ids": r} for p, c, r in columns]
    batch = trainer.data_collator(rows)
    policy, trainer.ref_model = Bigram(seed, 1.0), Bigram(seed + 1, 1.5)
    loss = trainer.compute_loss(policy, batch)
    loss.backward()
    metrics = {
        key.partition("/")[2]: values[-1] for key, values in trainer._metrics["train"].items() if "rewards/" in key
    }
    return {
        "beta": beta,
        "mask": batch["completion_mask"][:, 1:].tolist(),
        "policy": policy.seen[0].tolist(),
        "reference": trainer.ref_model.seen[0].tolist(),
        "loss": loss.item(),
        "gradient": policy.seen[0].grad.tolist(),
        "metrics": metrics,
    }


def kto(beta: float, weights: tuple[float, float], seed: int, labels: list[bool]) -> dict[str, Any]:
    text = datasets.Dataset.from_list([{"prompt": "a", "completion": "b c", "label": i % 2 == 0} for i in range(4)])
    trainer = trl.KTOTrainer(
        model=tiny(LlamaForCausalLM),
        ref_model=tiny(LlamaForCausalLM),
        args=trl.KTOConfig(beta=beta, desirable_weight=weights[0], undesirable_weight=weights[1], **settings()),
        train_dataset=text,
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    prompts, completions = ragged(rng, len(labels), 3), ragged(rng, len(labels), 7)
    mismatched = [completions[-1], *completions[:-1]]
    columns = zip(prompts, completions, mismatched, labels, strict=True)
    rows = [{"prompt_ids": p, "completion_ids": c, "KL_completion_ids": m, "label": y} for p, c, m, y in columns]
    batch = trainer.data_collator(rows)
    policy, trainer.ref_model = Bigram(seed, 1.0), Bigram(seed + 1, 1.5)
    loss = trainer.compute_loss(policy, batch)
    loss.backward()
    return {
        "beta": beta,
        "weights": list(weights),
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
    }


def reward(seed: int) -> dict[str, Any]:
    text = datasets.Dataset.from_list([{"chosen": "a b c", "rejected": "d"}] * 4)
    trainer = trl.RewardTrainer(
        model=tiny(LlamaForSequenceClassification),
        args=trl.RewardConfig(**settings()),
        train_dataset=text,
        processing_class=tokenizer(),
    )
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(12, 1, generator=generator, dtype=torch.float64)).requires_grad_()
    inputs = {"attention_mask": torch.ones(12, 1, dtype=torch.long)}
    loss = trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores), inputs)
    loss.backward()
    chosen, rejected = scores.detach()[:, 0].chunk(2)
    return {
        "chosen": chosen.tolist(),
        "rejected": rejected.tolist(),
        "loss": loss.item(),
        "gradient": scores.grad[:, 0].tolist(),
        "accuracy": trainer._metrics["train"]["accuracy"][-1],
        "margin": trainer._metrics["train"]["margin"][-1],
    }


def grpo(loss_type: str, beta: float, seed: int) -> dict[str, Any]:
    trainer = trl.GRPOTrainer(
        model=tiny(LlamaForCausalLM),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(
            loss_type=loss_type,
            epsilon=0.2,
            epsilon_high=0.28,
            num_generations=4,
            per_device_train_batch_size=8,
            max_completion_length=6,
            use_bias_correction_kl=False,
            **settings(),
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=tokenizer(),
    )
    trainer.beta = beta  # set late: the constructor would load a reference model by its name
    trainer.current_gradient_accumulation_steps = 1
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    mask = torch.tensor([[int(t < length) for t in range(6)] for length in [6] + [rng.randint(1, 6) for _ in range(7)]])
    old, noise, shift = (torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    old = -old.abs()
    policy = (old + 0.4 * noise).requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (policy, torch.zeros_like(old), None)
    inputs = {
        "prompt_ids": torch.ones(8, 1, dtype=torch.long),
        "prompt_mask": torch.ones(8, 1, dtype=torch.long),
        "completion_ids": torch.ones(8, 6, dtype=torch.long),
        "completion_mask": mask,
        "advantages": torch.randn(8, generator=generator, dtype=torch.float64),
        "old_per_token_logps": old,
        "ref_per_token_logps": old + 0.3 * shift,
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return {
        "beta": beta,
        "loss_type": loss_type,
        "mask": mask.tolist(),
        "policy": policy.tolist(),
        "old": old.tolist(),
        "reference": inputs["ref_per_token_logps"].tolist(),
        "advantages": inputs["advantages"].tolist(),
        "loss": loss.item(),
        "gradient": policy.grad.tolist(),
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    mixed = [True, False, True, True, False, False]
    main(
        "trl.json",
        {
            "peer": "trl",
            "version": trl.__version__,
            "torch": torch.__version__.partition("+")[0],
            "dpo": [dpo(0.1, 0), dpo(0.7, 1)],
            "kto": [
                kto(0.1, (1.0, 1.0), 0, mixed),
                kto(0.5, (1.33, 0.8), 4, mixed),
                kto(0.3, (1.0, 1.0), 7, [True] * 3),
                kto(0.3, (1.0, 2.0), 9, [False] * 3),
            ],
            "reward": [reward(0)],
            "grpo": [grpo("grpo", 0.0, 0), grpo("grpo", 0.3, 1), grpo("dapo", 0.3, 2)],
        },
    )
