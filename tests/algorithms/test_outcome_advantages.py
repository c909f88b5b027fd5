"""Estimators without a critic, against loops in Python's own numbers, on ragged rows with gaps and excluded samples."""

from __future__ import annotations

import functools
import math
import statistics

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.advantages.best_of_n import best_of_n
from posttrain.algorithms.advantages.group import flat_share, group_advantages
from posttrain.algorithms.advantages.opo import opo
from posttrain.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from posttrain.algorithms.advantages.remax import remax
from posttrain.algorithms.advantages.rloo import rloo

NAN = float("nan")
Row = list[float]

ESTIMATORS = {
    "grpo": functools.partial(group_advantages, scale_by_std=True),
    "dr_grpo": functools.partial(group_advantages, scale_by_std=False),
    "rloo": rloo,
    "opo": opo,
    "reinforce++": functools.partial(reinforce_plus_plus, gamma=0.9),
    "reinforce++_baseline": reinforce_plus_plus_baseline,
}
GROUPED = ["grpo", "dr_grpo", "rloo", "opo", "reinforce++_baseline"]
OUTCOME = ["grpo", "dr_grpo", "rloo", "opo"]


def placed(scores: Tensor, mask: Tensor) -> Tensor:
    """Rewards per token: each row's score at its last token, NaN where masked."""
    rewards = torch.zeros(mask.shape, dtype=scores.dtype)
    for i, row in enumerate(mask):
        if row.any():
            rewards[i, row.nonzero().max()] = scores[i]
    return rewards.masked_fill(~mask, NAN)


def by_loops(name: str, rows: list[Row], groups: list[int]) -> list[Row]:
    """The advantages of rows of rewards, each row without its masked tokens."""
    scores = [sum(row) if row else NAN for row in rows]

    def advantage(i: int) -> float:
        mates = [j for j in range(len(rows)) if groups[j] == groups[i] and math.isfinite(scores[j])]
        found = [scores[j] for j in mates]
        if i not in mates or len(found) < 2 or min(found) == max(found):
            return 0.0
        if name == "rloo":
            return scores[i] - statistics.fmean(scores[j] for j in mates if j != i)
        if name == "opo":
            return scores[i] - sum(len(rows[j]) * scores[j] for j in mates) / sum(len(rows[j]) for j in mates)
        centred = scores[i] - statistics.fmean(found)
        return centred / (statistics.stdev(found) + 1e-6) if name == "grpo" else centred

    if name == "reinforce++":
        wanted = [[sum(0.9 ** (s - t) * row[s] for s in range(t, len(row))) for t in range(len(row))] for row in rows]
    else:
        wanted = [[advantage(i)] * len(row) for i, row in enumerate(rows)]
    if not name.startswith("reinforce++"):
        return wanted
    values = [v for score, row in zip(scores, wanted, strict=True) if math.isfinite(score) for v in row]
    mean, scale = statistics.fmean(values), math.sqrt(statistics.variance(values) + 1e-8)
    return [
        [(v - mean) / scale if math.isfinite(score) else 0.0 for v in row]
        for score, row in zip(scores, wanted, strict=True)
    ]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_by_loops(name, normal, ragged_mask, generator):
    for _ in range(10):
        groups = torch.randint(-3, 4, (24,), generator=generator)  # unequal sizes, any numbers, any order
        mask = ragged_mask(24, 6) & (torch.rand(24, 6, generator=generator) < 0.8)  # gaps, and rows without a token
        rewards = normal(24, 6)  # at every token: a penalty may stand anywhere
        rewards[torch.rand(24, 6, generator=generator) < 0.05] = NAN
        ours = ESTIMATORS[name](rewards.masked_fill(~mask, NAN), mask, groups)
        wanted = by_loops(name, [row[m].tolist() for row, m in zip(rewards, mask, strict=True)], groups.tolist())
        for i in range(24):
            torch.testing.assert_close(ours[i][mask[i]].tolist(), wanted[i], rtol=1e-9, atol=1e-12)
        assert (ours[~mask] == 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_gradient(name, normal, ragged_mask):
    rewards = normal(4, 3).requires_grad_()
    assert not ESTIMATORS[name](rewards, ragged_mask(4, 3), torch.tensor([0, 0, 1, 1])).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GROUPED)
def test_equal_scores_give_exact_zeros(name, dtype, ragged_mask):
    """0.1 + 0.1 + 0.1 is not 3 * 0.1: the rounding must not be divided by a standard deviation of almost zero."""
    scores = torch.tensor([0.1, 0.1, 0.1, 1e6 + 0.1, 1e6 + 0.1, 1e6 + 0.1, 0.1], dtype=dtype)
    groups, mask = torch.tensor([0, 0, 0, 1, 1, 1, 0]), ragged_mask(7, 4)
    assert (ESTIMATORS[name](placed(scores, mask), mask, groups) == 0).all()
    assert flat_share(scores, groups) == 1


@pytest.mark.parametrize("excluded", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("name", OUTCOME)
def test_excluded_samples_are_no_part_of_their_group(name, excluded, ragged_mask):
    scores, groups = torch.tensor([1.0, 3.0, NAN, NAN, 5.0, NAN]), torch.tensor([4, 4, 4, 9, 2, 2])
    mask = ragged_mask(6, 4)
    ours = ESTIMATORS[name](placed(scores.nan_to_num(excluded), mask), mask, groups)
    torch.testing.assert_close(ours[:2], ESTIMATORS[name](placed(scores[:2], mask[:2]), mask[:2], groups[:2]))
    assert ours[0, 0] < 0 < ours[1, 0]
    assert (ours[2:] == 0).all()  # excluded; a group with nobody left; one left; excluded
    assert flat_share(scores, groups) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["reinforce++", "reinforce++_baseline"])
def test_excluded_samples_are_no_part_of_the_whitening(name, normal, ragged_mask):
    scores, groups, mask = normal(6), torch.tensor([0, 0, 0, 1, 1, 1]), ragged_mask(6, 4)
    scores[1] = scores[5] = NAN
    left = scores.isfinite()
    ours = ESTIMATORS[name](placed(scores, mask), mask, groups)
    torch.testing.assert_close(ours[left], ESTIMATORS[name](placed(scores, mask)[left], mask[left], groups[left]))
    assert (ours[~left] == 0).all() and abs(ours[mask & left[:, None]].var() - 1) < 1e-6


@pytest.mark.parametrize("name", GROUPED)
def test_a_row_without_tokens_is_no_sample(name, normal, ragged_mask):
    scores, groups, mask = normal(5), torch.tensor([0, 0, 0, 0, 0]), ragged_mask(5, 4)
    mask[3] = False
    left = torch.tensor([0, 1, 2, 4])
    ours = ESTIMATORS[name](placed(scores, mask), mask, groups)
    torch.testing.assert_close(ours[left], ESTIMATORS[name](placed(scores, mask)[left], mask[left], groups[left]))


def test_opo_is_grpo_without_scale_where_lengths_are_equal(normal):
    mask, groups = torch.ones(6, 4, dtype=torch.bool), torch.tensor([0, 1, 0, 1, 0, 1])
    rewards = normal(6, 4)
    torch.testing.assert_close(opo(rewards, mask, groups), ESTIMATORS["dr_grpo"](rewards, mask, groups))


def test_opo_weighs_by_length():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    rewards = torch.tensor([[0.0, 0.0, 4.0], [8.0, 0.0, 0.0]])  # the baseline is (3 * 4 + 1 * 8) / 4 = 5
    assert opo(rewards, mask, torch.tensor([7, 7])).tolist() == [[-1.0, -1.0, -1.0], [3.0, 0.0, 0.0]]


def test_remax_by_loops(normal, ragged_mask, generator):
    rewards, baselines = normal(8, 6), normal(8)
    mask = ragged_mask(8, 6) & (torch.rand(8, 6, generator=generator) < 0.8)
    baselines[2] = NAN
    rewards[3, mask[3].nonzero()[0]] = NAN
    ours = remax(rewards.masked_fill(~mask, NAN).requires_grad_(), mask, baselines)
    assert not ours.requires_grad and (ours[~mask] == 0).all()
    for i in range(8):
        own = rewards[i][mask[i]].tolist()
        wanted = [sum(own[t:]) - baselines[i].item() for t in range(len(own))]
        wanted = [0.0] * len(own) if i in (2, 3) else wanted
        torch.testing.assert_close(ours[i][mask[i]].tolist(), wanted, rtol=1e-9, atol=1e-12)


def test_remax_of_a_score_is_the_score_minus_the_baseline(ragged_mask):
    mask = ragged_mask(3, 5)
    ours = remax(placed(torch.tensor([1.0, 2.0, 3.0]), mask), mask, torch.tensor([0.5, 2.0, 5.0]))
    assert torch.equal(ours, torch.tensor([0.5, 0.0, -2.0])[:, None] * mask)


def test_best_of_n_by_loops(normal, generator):
    for _ in range(20):
        groups = torch.randint(-3, 4, (24,), generator=generator)
        scores = normal(24).mul(2).round()  # many ties
        scores[torch.rand(24, generator=generator) < 0.3] = NAN
        wanted = [False] * 24
        for group in set(groups.tolist()):
            found = [i for i in range(24) if groups[i] == group and not scores[i].isnan()]
            if found:
                wanted[max(found, key=lambda i: (scores[i].item(), -i))] = True
        assert best_of_n(scores, groups).tolist() == wanted


def test_best_of_n_never_keeps_an_excluded_sample():
    scores = torch.tensor([float("inf"), 1.0, NAN, -float("inf"), 1.0])
    assert best_of_n(scores, torch.tensor([0, 0, 1, 1, 0])).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_neither_the_order_of_rows_nor_the_padding_matters(name, normal, ragged_mask, generator):
    rewards, mask, groups = normal(9, 5), ragged_mask(9, 5), torch.tensor([0, 1, 2] * 3)
    ours = ESTIMATORS[name](rewards, mask, groups)
    order = torch.randperm(9, generator=generator)
    torch.testing.assert_close(ESTIMATORS[name](rewards[order], mask[order], groups[order]), ours[order])
    for sides in [(0, 2), (2, 0), (1, 3)]:
        wide, filled = torch.nn.functional.pad(mask, sides), torch.nn.functional.pad(rewards, sides, value=NAN)
        torch.testing.assert_close(ESTIMATORS[name](filled, wide, groups)[wide], ours[mask])
