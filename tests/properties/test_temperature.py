"""Rules 17 and 18 on generated logits: one function divides by the temperature; on-policy the ratio is 1 and KL 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posttrain.config.registry import KL_ESTIMATORS, POLICY_LOSSES, resolve
from posttrain.model.batch import collate, token_log_probs
from posttrain.model.logits import best, draw, scale, selected_log_probs
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import tiny_model
from tests.properties.cases import GARBAGE, SEEDS, masks, normal, padded, settings_for, tokens

TEMPERATURES = st.floats(0.05, 20)
PROMPTS = st.lists(tokens(6, 1), min_size=1, max_size=3)
POLICY = tiny_model("llama")


@given(seed=SEEDS, rows=st.integers(1, 4), width=st.integers(2, 30), temperature=TEMPERATURES, size=st.floats(0.1, 30))
def test_every_use_of_logits_has_one_temperature(
    seed: int, rows: int, width: int, temperature: float, size: float
) -> None:
    """Training, sampling, greedy choice and entropy against float64's softmax of logits / T."""
    logits = (size * normal(seed, rows, width)).float()
    table = (logits.double() / temperature).log_softmax(-1)
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ids, sampled = draw(logits, uniforms, temperature)
    likeliest, of_best = best(logits, temperature)
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5 * (1 + size / temperature), "check_dtype": False}
    for chosen, found in ((ids, sampled), (likeliest, of_best)):
        wanted = table.gather(1, chosen[:, None])[:, 0]
        trained, entropy = selected_log_probs(logits.clone(), chosen, temperature, with_entropy=True)
        torch.testing.assert_close(found, wanted, **close)
        torch.testing.assert_close(trained, wanted, **close)
        torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1), **close)
    assert torch.equal(likeliest, logits.argmax(-1))


@given(temperature=st.floats(max_value=0) | st.just(float("nan")))
def test_no_temperature_of_zero_or_less(temperature: float) -> None:
    logits = torch.zeros(1, 3)
    for call in (
        lambda: scale(logits, temperature),
        lambda: draw(logits, torch.zeros(1, dtype=torch.float64), temperature),
        lambda: best(logits, temperature),
        lambda: selected_log_probs(logits, torch.tensor([0]), temperature),
        lambda: Sampling(4, temperature, eos_id=2, batch=1),
    ):
        with pytest.raises(ValueError, match="temperature must be above zero"):
            call()


@pytest.mark.parametrize("name", POLICY_LOSSES)
@given(data=st.data(), seed=SEEDS, mask=masks(), garbage=st.sampled_from(GARBAGE))
def test_on_policy_the_ratio_is_one_and_nothing_is_clipped(
    name: str, data: Any, seed: int, mask: Tensor, garbage: float
) -> None:
    log_probs, advantages = normal(seed, 2, *mask.shape)
    x = padded({"mask": mask, "p": log_probs, "advantages": advantages}, 1, garbage)
    entry = POLICY_LOSSES[name]
    _, stats = resolve(entry)(x["p"], x["p"].clone(), x["advantages"], x["mask"], **data.draw(settings_for(entry)))
    torch.testing.assert_close(stats.pop("ratio"), x["mask"].double(), rtol=0, atol=1e-15)
    assert all((values == 0).all() for values in stats.values())


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@given(seed=SEEDS, mask=masks(), garbage=st.sampled_from(GARBAGE), distance=st.floats(0, 5))
def test_kl_is_zero_at_the_reference_and_its_estimates_are_ordered(
    name: str, seed: int, mask: Tensor, garbage: float, distance: float
) -> None:
    log_probs, away = normal(seed, 2, *mask.shape)
    x = padded({"mask": mask, "p": log_probs, "q": log_probs + distance * away}, 1, garbage)
    estimator = resolve(KL_ESTIMATORS[name])
    assert (estimator(x["p"], x["p"].clone(), x["mask"]) == 0).all()
    found = estimator(x["p"], x["q"], x["mask"])
    assert (found[~x["mask"]] == 0).all()
    assert name == "k1" or (found >= 0).all()


@settings(max_examples=10)
@given(
    prompts=st.lists(tokens(6, 1), min_size=1, max_size=3), seed=SEEDS, temperature=st.floats(0.3, 3), data=st.data()
)
def test_what_was_sampled_has_the_trainers_log_probs(
    prompts: list[list[int]], seed: int, temperature: float, data: Any
) -> None:
    """Rule 8 too: the ids that are trained on are the sampled ones, with the end token where it was drawn."""
    sampling = Sampling(data.draw(st.integers(1, 6)), temperature, eos_id=2, batch=data.draw(st.integers(1, 4)))
    named = [(str(number), ids) for number, ids in enumerate(prompts)]
    samples = RolloutManager(TransformersEngine(POLICY)).generate(named, 2, sampling, seed)
    assert [sample.prompt_ids for sample in samples] == [ids for ids in prompts for _ in range(2)]
    with torch.no_grad():
        found = token_log_probs(POLICY, collate([(s.prompt_ids, s.completion_ids) for s in samples], 0), temperature)
    for sample, values in zip(samples, found, strict=True):
        length = len(sample.completion_ids)
        assert sample.log_probs == pytest.approx(values[:length].tolist(), abs=1e-4)
        assert (sample.completion_ids[-1] == 2) == (sample.finish == "eos")
        assert 2 not in sample.completion_ids[:-1]
        assert sample.finish == "eos" or length == sampling.max_new_tokens
