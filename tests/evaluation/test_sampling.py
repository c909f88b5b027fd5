from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.evaluation.metrics import absolute
from posttrain.evaluation.sampling import Examiner, held_out
from posttrain.model.heads import RewardModule
from posttrain.roles.batches import Forward
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import tiny_model, tiny_tokenizer_dir

PROMPT = [1, 20, 21]


def prompts(count: int, split: str = "test") -> pd.DataFrame:
    return pd.DataFrame([{"id": f"p{i}", "split": split, "prompt_ids": PROMPT, "text": "x"} for i in range(count)])


def examiner(policy: PreTrainedModel, sft: PreTrainedModel, folder: Path, temperature: float = 1.0) -> Examiner:
    forward = Forward(0, 4096, temperature=temperature)
    return Examiner(
        RolloutManager(TransformersEngine(policy)),
        Reference(sft, forward),
        RewardModel(RewardModule.from_causal_lm(tiny_model("llama", seed=9), seed=9), forward),
        load_tokenizer(tiny_tokenizer_dir(folder)),
        Sampling(max_new_tokens=2, temperature=temperature, eos_id=2, batch=512),
        seed=4,
    )


def test_the_held_out_prompts_are_a_stable_part_of_the_test_split() -> None:
    table = pd.concat([prompts(30), prompts(5, "train").assign(id=lambda t: "t" + t["id"])])
    chosen = [row["id"] for row in held_out(table, 10)]
    assert len(set(chosen)) == 10 and not any(key.startswith("t") for key in chosen)
    assert chosen != sorted(chosen)[:10]
    assert [row["id"] for row in held_out(table.iloc[::-1], 10)] == chosen
    more = pd.concat([table, prompts(1).assign(id="new")])
    assert len(set(chosen) & {row["id"] for row in held_out(more, 10)}) >= 9
    assert len(held_out(table, 1000)) == 30


def test_an_empty_test_split_is_named() -> None:
    with pytest.raises(UserError, match="test split"):
        held_out(prompts(5, "train"), 3)


def exact_kl(policy: PreTrainedModel, sft: PreTrainedModel, temperature: float) -> tuple[float, float]:
    """KL(policy || sft) of completions of at most two tokens, and their expected length, by enumeration."""

    def table(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            first = model(torch.tensor([PROMPT])).logits[0, -1]
            vocabulary = torch.arange(len(first))[:, None]
            rows = torch.cat([torch.tensor([PROMPT]).expand(len(first), -1), vocabulary], dim=1)
            second = model(rows).logits[:, -1]
        return (first.double() / temperature).log_softmax(-1), (second.double() / temperature).log_softmax(-1)

    (p1, p2), (q1, q2) = table(policy), table(sft)
    goes_on = torch.ones_like(p1)
    goes_on[2] = 0
    second = (p2.exp() * (p2 - q2)).sum(-1)
    kl = (p1.exp() * (p1 - q1 + goes_on * second)).sum()
    return float(kl), 1 + float((p1.exp() * goes_on).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_kl_is_that_of_an_enumeration(tmp_path: Path, temperature: float) -> None:
    policy, sft = tiny_model("llama", seed=1), tiny_model("llama", seed=2)
    rows = examiner(policy, sft, tmp_path, temperature).examine(held_out(prompts(3000), 3000))
    kl, length = exact_kl(policy, sft, temperature)
    samples = torch.tensor([row["kl"] for row in rows])
    error = float(samples.std()) / math.sqrt(len(rows))
    assert kl > 8 * error, "the test would see nothing"
    assert abs(float(samples.mean()) - kl) < 4 * error
    found = absolute(rows, 100, 0)
    assert found["eval/kl_per_token"].value == pytest.approx(kl / length, rel=0.1)


def test_a_model_has_no_kl_to_itself(tmp_path: Path) -> None:
    model = tiny_model("llama", seed=1)
    rows = examiner(model, model, tmp_path).examine(held_out(prompts(50), 50))
    assert max(abs(row["kl"]) for row in rows) < 1e-4


def test_models_that_are_equal_say_the_same(tmp_path: Path) -> None:
    chosen = held_out(prompts(20), 20)
    first = examiner(tiny_model("llama", seed=1), tiny_model("llama", seed=2), tmp_path).examine(chosen)
    again = examiner(tiny_model("llama", seed=1), tiny_model("llama", seed=2), tmp_path).examine(chosen[::-1])
    assert [row["completion_ids"] for row in first] == [row["completion_ids"] for row in again[::-1]]


def test_a_row_has_the_reward_of_its_own_completion(tmp_path: Path) -> None:
    model = tiny_model("llama", seed=1)
    rows: list[dict[str, Any]] = examiner(model, model, tmp_path).examine(held_out(prompts(12), 12))
    judge = RewardModel(RewardModule.from_causal_lm(tiny_model("llama", seed=9), seed=9), Forward(0, 1))
    for row in rows:
        alone = float(judge.score([(row["prompt_ids"], row["completion_ids"])])[0])
        assert row["reward"] == pytest.approx(alone, abs=1e-5)
