"""Rules 14, 16 and 19 on generated groups: what is equal, missing, alone or empty teaches nothing and harms nobody."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posttrain.algorithms.advantages.best_of_n import best_of_n
from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.advantages.group import flat_share
from posttrain.algorithms.whiten import masked_moments, whiten
from posttrain.config.registry import ADVANTAGES, resolve
from tests.properties.cases import GARBAGE, SEEDS, masks, normal, settings_for

# Few values, so that equal ones are common; 0.1 is not exact, and 1e6 makes rounding large.
SCORES = st.sampled_from([0.0, 0.1, 0.3, -2.0, 1e6, math.nan, math.inf, -math.inf])
GROUPED = [name for name in ADVANTAGES if name != "reinforce++"]
CENTRED = ["grpo", "rloo"]


@st.composite
def scored(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scores [N], rewards [N, R] that sum to them with garbage where masked, mask [N, R], groups [N]."""
    mask = draw(masks(8, 4))
    rows = len(mask)
    scores = torch.tensor(draw(st.lists(SCORES, min_size=rows, max_size=rows)), dtype=torch.float64)
    groups = torch.tensor(draw(st.lists(st.integers(-2, 2), min_size=rows, max_size=rows)))
    rewards = torch.full(mask.shape, draw(st.sampled_from(GARBAGE)), dtype=torch.float64).masked_fill(mask, 0.0)
    for row, places in enumerate(mask):
        if places.any():
            rewards[row, places.nonzero().max()] = scores[row]
    return scores.masked_fill(~mask.any(-1), math.nan), rewards, mask, groups


def mates(scores: Tensor, groups: Tensor, row: int) -> list[float]:
    """The finite scores of a row's group."""
    pairs = zip(scores.tolist(), groups.tolist(), strict=True)
    return [score for score, group in pairs if group == int(groups[row]) and math.isfinite(score)]


@pytest.mark.parametrize("name", ADVANTAGES)
@given(data=st.data(), case=scored())
def test_groups_that_teach_nothing_and_samples_without_a_reward(name: str, data: Any, case: tuple[Tensor, ...]) -> None:
    scores, rewards, mask, groups = case
    settings = data.draw(settings_for(ADVANTAGES[name]))
    found = resolve(ADVANTAGES[name])(rewards, mask, groups, **settings)
    assert found.isfinite().all()
    assert (found[~mask] == 0).all()
    assert (found[~scores.isfinite()] == 0).all()
    flat = [len(set(mates(scores, groups, row))) < 2 for row in range(len(scores))]
    if name not in ("reinforce++", "reinforce++_baseline"):  # these whiten: a zero may move
        assert (found[torch.tensor(flat)] == 0).all()
    if name in CENTRED:
        for group in groups.unique():
            each = torch.where(mask, found, -torch.inf).amax(-1)[(groups == group) & mask.any(-1)]
            assert abs(each.sum()) <= 1e-9 * (1 + each.abs().sum())


@pytest.mark.parametrize("name", ADVANTAGES)
@given(data=st.data(), case=scored())
def test_the_order_of_rows_does_not_matter(name: str, data: Any, case: tuple[Tensor, ...]) -> None:
    _, rewards, mask, groups = case
    settings = data.draw(settings_for(ADVANTAGES[name]))
    order = torch.tensor(data.draw(st.permutations(range(len(mask)))))
    found = resolve(ADVANTAGES[name])(rewards, mask, groups, **settings)
    shuffled = resolve(ADVANTAGES[name])(rewards[order], mask[order], groups[order], **settings)
    torch.testing.assert_close(shuffled, found[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo"])
@given(data=st.data(), case=scored())
def test_a_group_does_not_see_the_others(name: str, data: Any, case: tuple[Tensor, ...]) -> None:
    _, rewards, mask, groups = case
    settings = data.draw(settings_for(ADVANTAGES[name]))
    found = resolve(ADVANTAGES[name])(rewards, mask, groups, **settings)
    for group in groups.unique():
        own = groups == group
        alone = resolve(ADVANTAGES[name])(rewards[own], mask[own], groups[own], **settings)
        torch.testing.assert_close(found[own], alone, rtol=1e-9, atol=1e-9)


@given(case=scored())
def test_the_share_of_flat_groups_by_counting(case: tuple[Tensor, ...]) -> None:
    scores, _, _, groups = case
    first = {int(group): row for row, group in enumerate(groups)}
    flat = [len(set(mates(scores, groups, row))) < 2 for row in first.values()]
    assert flat_share(scores, groups) == pytest.approx(sum(flat) / len(flat))


@given(case=scored())
def test_the_best_of_a_group_by_sorting(case: tuple[Tensor, ...]) -> None:
    scores, _, _, groups = case
    kept = best_of_n(scores, groups)
    for group in groups.unique():
        rows = [row for row in range(len(scores)) if groups[row] == group and math.isfinite(scores[row])]
        wanted = sorted(rows, key=lambda row: (-float(scores[row]), row))[:1]
        assert ((groups == group) & kept).nonzero().flatten().tolist() == wanted


@given(
    seed=SEEDS, mask=masks(), scale=st.sampled_from([1e-3, 1.0, 1e3]), garbage=st.sampled_from(GARBAGE), data=st.data()
)
def test_whitening_in_shards_with_the_batchs_moments(
    seed: int, mask: Tensor, scale: float, garbage: float, data: Any
) -> None:
    """By Python's statistics; a shard may be empty, or hold one token."""
    values = (scale * normal(seed, *mask.shape) + 5).masked_fill(~mask, garbage)
    tokens = values[mask].tolist()
    mean = statistics.fmean(tokens)
    variance = statistics.variance(tokens) if len(tokens) > 1 else 0.0
    wanted = torch.where(mask, (values - mean) / math.sqrt(variance + 1e-8), 0.0)
    torch.testing.assert_close(whiten(values, mask), wanted, rtol=1e-6, atol=1e-6)
    if len(tokens) == 1:
        assert (whiten(values, mask) == 0).all()
    moments = masked_moments(values, mask)
    hand = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(mask), max_size=len(mask))))
    for shard in range(3):
        own = hand == shard
        part = whiten(values[own], mask[own], mean=moments[0], var=moments[1])
        torch.testing.assert_close(part, whiten(values, mask)[own], rtol=0, atol=0)


@given(seed=SEEDS, mask=masks(), gamma=st.floats(0, 1), lam=st.floats(0, 1), garbage=st.sampled_from(GARBAGE))
def test_gae_of_a_row_is_that_of_its_tokens_alone(
    seed: int, mask: Tensor, gamma: float, lam: float, garbage: float
) -> None:
    """By the sum over all later errors, on lists without the masked tokens."""
    rewards, values = normal(seed, 2, *mask.shape)
    found, returns = gae(
        rewards.masked_fill(~mask, garbage), values.masked_fill(~mask, garbage), mask, gamma=gamma, lam=lam
    )
    for row, places in enumerate(mask):
        r, v = rewards[row][places].tolist(), [*values[row][places].tolist(), 0.0]
        errors = [r[t] + gamma * v[t + 1] - v[t] for t in range(len(r))]
        wanted = [sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, len(r))) for t in range(len(r))]
        assert found[row][places].tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert returns[row][places].tolist() == pytest.approx(
            [a + b for a, b in zip(wanted, v[:-1], strict=True)], rel=1e-9, abs=1e-12
        )
    assert (found[~mask] == 0).all() and (returns[~mask] == 0).all()
