"""Vectors of the trainers that TRL has dropped since 1.12: BCO and PPO.

Run it in an environment of its own (trl_older.txt) with `--write` or without, see vectors.py.
"""

from __future__ import annotations

import io
import random
import warnings
from contextlib import ExitStack, redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest import mock

import datasets
import torch
import trl
from torch import Tensor
from toys import PAD, Toy, arguments, logits, no_float32, prefix_mask, ragged, tiny, tokenizer
from transformers import LlamaForCausalLM, LlamaForSequenceClassification
from trl.experimental.bco import BCOConfig, BCOTrainer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer
from vectors import main

MIXED = [True, False, True, True, False, False]
ROWS, WIDTH, CONTEXT = 6, 5, 2


def bco(seed: int, beta: float, minibatches: list[list[bool]]) -> list[dict[str, Any]]:
    """Minibatches in turn, for the reward shift is a running mean."""
    text = [{"prompt": "a ", "completion": "b c", "label": i % 2 == 0} for i in range(4)]
    trainer = BCOTrainer(
        model=tiny(LlamaForCausalLM),
        ref_model=tiny(LlamaForCausalLM),
        args=BCOConfig(beta=beta, remove_unused_columns=False, **arguments()),
        train_dataset=datasets.Dataset.from_list(text),
        processing_class=tokenizer(),
    )
    rng = random.Random(seed)
    policy, trainer.ref_model = Toy(seed, 1.0), Toy(seed + 100, 1.2)
    return [bco_minibatch(trainer, policy, rng, labels) for labels in minibatches]


def bco_minibatch(trainer: BCOTrainer, policy: Toy, rng: random.Random, labels: list[bool]) -> dict[str, Any]:
    columns = zip(ragged(rng, len(labels), 3), ragged(rng, len(labels), 7), labels, strict=True)
    rows = [
        {
            "prompt_input_ids": p,
            "prompt_attention_mask": [1] * len(p),
            "completion_input_ids": p + c,
            "completion_attention_mask": [1] * len(p + c),
            "completion_labels": [-100] * len(p) + c,
            "label": label,
        }
        for p, c, label in columns
    ]
    batch = trainer.data_collator(rows)
    with no_float32():
        loss, metrics = trainer.get_batch_loss_metrics(policy, batch)
    loss.backward()
    return {
        "beta": trainer.beta,
        "labels": labels,
        "mask": (batch["completion_labels"][:, 1:] != -100).int().tolist(),
        "policy": policy.seen[-1].tolist(),
        "reference": trainer.ref_model.seen[-1].tolist(),
        "shift": metrics["delta"],
        "loss": loss.item(),
        "gradient": policy.seen[-1].grad.tolist(),
        "metrics": {key.partition("/")[2]: value for key, value in metrics.items() if "rewards/" in key},
    }


class PPOToys:
    """What PPOTrainer.train meets in place of its models: given log-probabilities, values and scores.

    Its other functions are watched, so that what it computes on the way is known: `recorded`, by name.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        rng = random.Random(seed)
        self.mask = prefix_mask(rng, ROWS, WIDTH)
        responses = torch.tensor([[rng.randrange(2, 11) for _ in range(WIDTH)] for _ in range(ROWS)])
        queries = torch.tensor([[rng.randrange(2, 11) for _ in range(CONTEXT)] for _ in range(ROWS)])
        self.tokens = torch.cat([queries, responses.masked_fill(self.mask == 0, PAD)], dim=1)
        self.old = -torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).abs() - 0.1
        noise, shift, moved, values = (
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(4)
        )
        self.policy = (self.old + 0.4 * noise).clamp(max=-0.01).requires_grad_()
        self.reference = (self.old + 0.3 * shift).clamp(max=-0.01)
        self.old_values = values
        self.values = (values + 0.3 * moved).requires_grad_()
        self.scores = torch.randn(ROWS, generator=generator, dtype=torch.float64)
        self.reference_model, self.reward_model = tiny(LlamaForCausalLM), tiny(LlamaForSequenceClassification)
        self.recorded: dict[str, list[Any]] = {"whitened": [], "means": []}

    def logits(self, log_probs: Tensor) -> Tensor:
        """[B, CONTEXT + WIDTH, V] for the response's log-probabilities [B, WIDTH]."""
        prompt = torch.full((ROWS, CONTEXT - 1), -1.0, dtype=torch.float64)
        return logits(torch.cat([prompt, log_probs], dim=1), self.tokens[:, 1:])

    def around(self, values: Tensor) -> Tensor:
        """[B, CONTEXT + WIDTH, 1], the response's values where TRL looks for them: one position early."""
        pad = torch.nn.functional.pad(values, (CONTEXT - 1, 1))
        return pad[..., None]

    def generate(self, *_: Any) -> tuple[Tensor, Tensor]:
        return self.tokens, self.logits(self.old)[:, CONTEXT - 1 : -1]

    def forward(self, model: Any, *_: Any) -> Any:
        if model is self.reference_model:
            return SimpleNamespace(logits=self.logits(self.reference))
        return SimpleNamespace(logits=self.logits(self.policy)), self.around(self.values)

    def get_reward(self, model: Any, *_: Any) -> tuple[Tensor, Tensor, None]:
        return self.around(self.old_values), self.scores.clone(), None

    def watched(self, name: str, function: Any) -> Any:
        def call(values: Tensor, mask: Tensor, **more: Any) -> Tensor:
            result = function(values, mask, **more)
            self.recorded[name].append((values, mask, result))
            return result

        return call


def ppo(seed: int, **settings: Any) -> dict[str, Any]:
    """One optimiser step of PPOTrainer.train."""
    toys = PPOToys(seed)
    trainer = PPOTrainer(
        args=PPOConfig(
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=1,
            total_episodes=ROWS,
            num_ppo_epochs=1,
            num_sample_generations=0,
            response_length=WIDTH,
            temperature=1 - 1e-7,  # TRL adds 1e-7
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            **settings,
            **arguments(),
        ),
        processing_class=tokenizer(),
        model=tiny(LlamaForCausalLM),
        ref_model=toys.reference_model,
        reward_model=toys.reward_model,
        value_model=tiny(LlamaForSequenceClassification),
        train_dataset=datasets.Dataset.from_list([{"input_ids": [3] * CONTEXT}] * ROWS),
    )
    replaced = {
        "batch_generation": toys.generate,
        "forward": toys.forward,
        "get_reward": toys.get_reward,
        "masked_whiten": toys.watched("whitened", ppo_trainer.masked_whiten),
        "masked_mean": toys.watched("means", ppo_trainer.masked_mean),
    }
    found: list[Tensor] = []
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(mock.patch.object(ppo_trainer, name, function))
        stack.enter_context(mock.patch.object(ppo_trainer.np.random, "permutation", range_of))
        stack.enter_context(mock.patch.object(trainer.accelerator, "backward", lambda loss: found.append(loss)))
        stack.enter_context(no_float32())
        stack.enter_context(redirect_stdout(io.StringIO()))
        trainer.train()
    (loss,) = found
    loss.backward()
    return ppo_result(toys, loss, settings)


def range_of(count: int) -> list[int]:
    return list(range(count))


def ppo_result(toys: PPOToys, loss: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
    ((advantages, _, whitened),) = toys.recorded["whitened"]
    (_, value_mask, value_loss), _, (_, _, policy_loss), _ = toys.recorded["means"][
        -4:
    ]  # the others are the whitening's
    names = ["mask", "old", "policy", "reference", "old_values", "values", "scores"]
    return {
        "settings": settings,
        **{name: getattr(toys, name).tolist() for name in names},
        "value_mask": value_mask.int().tolist(),
        "advantages": advantages.tolist(),
        "whitened": whitened.tolist(),
        "policy_loss": policy_loss.item(),
        "value_loss": 0.5 * value_loss.item(),
        "loss": loss.item(),
        "policy_gradient": toys.policy.grad.tolist(),
        "value_gradient": toys.values.grad.tolist(),
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    main(
        "trl_older.json",
        {
            "peer": "trl",
            "version": trl.__version__,
            "torch": torch.__version__.partition("+")[0],
            "bco": bco(0, 0.3, [MIXED, [True, True, False, False], [True, True]]),
            "ppo": [
                ppo(0, kl_coef=0.05, gamma=1.0, lam=0.95, cliprange=0.2, cliprange_value=0.2, vf_coef=0.1),
                ppo(1, kl_coef=0.3, gamma=0.9, lam=0.7, cliprange=0.1, cliprange_value=0.05, vf_coef=1.0),
                ppo(2, kl_coef=0.2, kl_estimator="k3", gamma=1.0, lam=1.0, cliprange=0.2, cliprange_value=0.3),
            ],
        },
    )
