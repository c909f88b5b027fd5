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
from posttrain.evaluation.sampling import Writer, held_out, ids, logprob_gap, sums
from posttrain.roles.batches import Forward
from posttrain.roles.reference import Reference
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import tiny_model, tiny_tokenizer_dir

PROMPT = [1, 20, 21]


def prompts(count: int, split: str = "test") -> pd.DataFrame:
    return pd.DataFrame([{"id": f"p{i}", "split": split, "prompt_ids": PROMPT, "text": "x"} for i in range(count)])


def writer(model: PreTrainedModel, folder: Path, temperature: float = 1.0) -> Writer:
    sampling = Sampling(max_new_tokens=2, temperature=temperature, eos_id=2, batch=512)
    rollout = RolloutManager(TransformersEngine(model))
    return Writer(rollout, load_tokenizer(tiny_tokenizer_dir(folder)), sampling, seed=4)


def log_probs(model: PreTrainedModel, rows: list[dict[str, Any]], temperature: float = 1.0) -> list[float]:
    return sums(Reference(model, Forward(0, 4096, temperature=temperature)).log_probs(ids(rows)))


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


Table = tuple[torch.Tensor, torch.Tensor]


def table(model: PreTrainedModel, temperature: float) -> Table:
    """log p, float64, of the first token [V] and of the second after each first [V, V]: all that two tokens can be."""
    with torch.no_grad():
        first = model(torch.tensor([PROMPT])).logits[0, -1]
        vocabulary = torch.arange(len(first))[:, None]
        rows = torch.cat([torch.tensor([PROMPT]).expand(len(first), -1), vocabulary], dim=1)
        second = model(rows).logits[:, -1]
    return (first.double() / temperature).log_softmax(-1), (second.double() / temperature).log_softmax(-1)


def expected(of: Table, first: torch.Tensor, second: torch.Tensor) -> float:
    """Mean of a sum over a completion's tokens, [V] and [V, V], where completions of `of` end with token 2."""
    p1, p2 = (part.exp() for part in of)
    goes_on = torch.ones_like(p1)
    goes_on[2] = 0
    return float((p1 * (first + goes_on * (p2 * second).sum(-1))).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kl_and_perplexity_are_those_of_an_enumeration(tmp_path: Path, temperature: float) -> None:
    policy, sft, base = (tiny_model("llama", seed=seed) for seed in (1, 2, 3))
    rows = writer(policy, tmp_path, temperature).write(held_out(prompts(3000), 3000))
    for row, ours, theirs, its in zip(
        rows,
        log_probs(policy, rows, temperature),
        log_probs(sft, rows, temperature),
        log_probs(base, rows),
        strict=True,
    ):
        row.update(kl=ours - theirs, base_log_prob=its, reward=0.0, judge=None)
    (p1, p2), (q1, q2), (b1, b2) = p, q, b = table(policy, temperature), table(sft, temperature), table(base, 1.0)
    for row in rows[:200]:  # each one by itself
        first, *second = row["completion_ids"]
        sums_of = [one[first] + sum(two[first, token] for token in second) for one, two in (p, q, b)]
        assert row["kl"] == pytest.approx(float(sums_of[0] - sums_of[1]), abs=2e-5)
        assert row["base_log_prob"] == pytest.approx(float(sums_of[2]), abs=2e-5)
    kl = expected(p, p1 - q1, p2 - q2)
    length = expected(p, torch.ones_like(p1), torch.ones_like(p2))
    found = absolute(rows, 100, 0)
    # The variance of the estimate, from all the completions that there are.
    square = float((p1.exp() * (p1 - q1).square())[2])
    pairs = (p1[:, None] + p2).exp() * (p1[:, None] - q1[:, None] + p2 - q2).square()
    square += float(pairs.sum() - pairs[2].sum())
    error = math.sqrt((square - kl**2) / len(rows))
    assert found["eval/kl_error"].value == pytest.approx(error, rel=0.1)
    assert kl > 8 * error, "the test would see nothing"
    assert abs(found["eval/kl"].value - kl) < 4 * error
    assert found["eval/kl_per_token"].value == pytest.approx(kl / length, rel=0.1)
    perplexity = math.exp(expected(p, -b1, -b2) / length)
    assert found["eval/perplexity"].value == pytest.approx(perplexity, rel=0.1)
    assert found["eval/perplexity"].low < perplexity < found["eval/perplexity"].high
    assert abs(perplexity / math.exp(expected(p, -p1, -p2) / length) - 1) > 0.3, "the test would see nothing"


def test_the_generators_log_probabilities_are_the_models_own(tmp_path: Path) -> None:
    model = tiny_model("llama", seed=1)
    rows = writer(model, tmp_path).write(held_out(prompts(50), 50))
    found = Reference(model, Forward(0, 4096)).log_probs(ids(rows))
    assert logprob_gap(rows, found) < 1e-5
    tokens = sum(len(row["completion_ids"]) for row in rows)
    rows[0]["sampled"][0] -= 1.0
    assert logprob_gap(rows, found) == pytest.approx(1 / tokens, rel=1e-3), "a mean over tokens, not over columns"


def test_models_that_are_equal_say_the_same(tmp_path: Path) -> None:
    chosen = held_out(prompts(20), 20)
    first = writer(tiny_model("llama", seed=1), tmp_path).write(chosen)
    again = writer(tiny_model("llama", seed=1), tmp_path).write(chosen[::-1])
    assert [row["completion_ids"] for row in first] == [row["completion_ids"] for row in again[::-1]]


def test_a_row_has_the_text_of_its_own_completion(tmp_path: Path) -> None:
    chosen = [{**row, "text": row["id"]} for row in held_out(prompts(12), 12)]
    rows = writer(tiny_model("llama", seed=1), tmp_path).write(chosen)
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    for prompt, row in zip(chosen, rows, strict=True):
        assert (row["id"], row["prompt"]) == (prompt["id"], prompt["id"])
        assert row["text"] == tokenizer.decode(row["completion_ids"])
    assert len({row["text"] for row in rows}) > 6
