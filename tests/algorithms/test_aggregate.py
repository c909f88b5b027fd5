from __future__ import annotations

import itertools

import pytest
import torch

from posttrain.algorithms.aggregate import MODES, aggregate, normaliser, row_sum


def brute_force(values: list[list[float]], mask: list[list[bool]], mode: str) -> float:
    rows = [[v for v, m in zip(vs, ms, strict=True) if m] for vs, ms in zip(values, mask, strict=True)]
    rows = [row for row in rows if row]
    if mode == "token-mean":
        return sum(sum(row) for row in rows) / sum(len(row) for row in rows)
    if mode == "sequence-sum":
        return sum(sum(row) for row in rows) / len(rows)
    return sum(sum(row) / len(row) for row in rows) / len(rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("empty_row", [False, True])
def test_brute_force(mode, empty_row, normal, ragged_mask):
    values, mask = normal(5, 7), ragged_mask(5, 7)
    mask[3] &= not empty_row
    ours = aggregate(values, mask, mode, count=normaliser(mask, mode))
    wanted = brute_force(values.tolist(), mask.tolist(), mode)
    torch.testing.assert_close(ours.item(), wanted, rtol=1e-12, atol=0)


def test_the_modes_differ_on_unequal_lengths(normal, ragged_mask):
    values, mask = normal(5, 7), ragged_mask(5, 7)
    found = sorted(float(aggregate(values, mask, mode, count=normaliser(mask, mode))) for mode in MODES)
    assert min(b - a for a, b in itertools.pairwise(found)) > 0.01


def test_the_sum_over_a_constant_weighs_every_token_the_same(normal, ragged_mask):
    """Dr. GRPO's mean: a token's gradient depends on the number of sequences only, not on any length."""
    values, mask = normal(5, 7).requires_grad_(), ragged_mask(5, 7)
    aggregate(values, mask, "sequence-sum", count=normaliser(mask, "sequence-sum") * 16).backward()
    torch.testing.assert_close(values.grad, mask.double() / (5 * 16), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_values_per_row(mode, normal):
    values, mask = normal(4), torch.tensor([True, True, False, True])
    assert normaliser(mask, mode) == 3
    torch.testing.assert_close(aggregate(values, mask, mode, count=3), values[mask].mean())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_masked_values_count_for_nothing(mode, garbage, normal, ragged_mask):
    mask = ragged_mask(4, 5)
    clean = normal(4, 5)
    values = clean.masked_fill(~mask, garbage).requires_grad_()
    loss = aggregate(values, mask, mode, count=normaliser(mask, mode))
    loss.backward()
    assert loss.item() == aggregate(clean, mask, mode, count=normaliser(mask, mode)).item()
    assert values.grad.isfinite().all()
    assert (values.grad[~mask] == 0).all() and (values.grad[mask] != 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_all_masked_microbatch_gives_exactly_zero(mode):
    values = torch.full((2, 3), torch.nan, dtype=torch.float64, requires_grad=True)
    loss = aggregate(values, torch.zeros(2, 3, dtype=torch.bool), mode, count=17)
    loss.backward()
    assert loss.item() == 0
    assert (values.grad == 0).all()


def test_row_sum(normal, ragged_mask):
    values, mask = normal(4, 5), ragged_mask(4, 5)
    mask[1] = False
    wanted = [values[i][mask[i]].sum().item() for i in range(4)]
    torch.testing.assert_close(row_sum(values.masked_fill(~mask, torch.nan), mask).tolist(), wanted)


def test_errors():
    values, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="differ in shape"):
        aggregate(values, mask[:, :2], "token-mean", count=1)
    with pytest.raises(ValueError, match="at least one"):
        aggregate(values, mask, "token-mean", count=0)
    with pytest.raises(ValueError, match="unknown aggregation mode 'mean'"):
        aggregate(values, mask, "mean", count=1)
    with pytest.raises(ValueError, match="unknown aggregation mode 'mean'"):
        normaliser(mask, "mean")
