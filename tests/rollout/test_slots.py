"""The buffers of keys and values, against lists that hold each row's past as it is."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from posttrain.rollout import slots
from posttrain.rollout.slots import Prefix, SlotCache

SLOTS, HEADS, WIDTH, WINDOW = 5, 2, 3, 4


class Naive:
    """Rows as lists of keys [heads, width], in one full and one windowed layer."""

    def __init__(self) -> None:
        self.rows: list[list[Tensor]] = []

    def seen(self, row: int, window: int | None) -> Tensor:
        past = self.rows[row]
        return torch.stack(past if window is None else past[-window:], dim=1)


def prefix(length: int) -> Prefix:
    keys = [torch.randn(HEADS, length, WIDTH)] * 2
    return Prefix(keys, [-part for part in keys], torch.zeros(1))


def step(cache: SlotCache, naive: Naive) -> None:
    """One token for every row, in both layers; each must see the row's own past, as a view of the buffers."""
    new = torch.randn(len(naive.rows), HEADS, 1, WIDTH)
    for row, part in zip(naive.rows, new, strict=True):
        row.append(part[:, 0])
    assert cache.positions()[:, 0].tolist() == [len(row) - 1 for row in naive.rows]
    for layer, window in enumerate(cache.windows):
        keys, values = cache.update(new, -new, layer)
        assert keys.untyped_storage().data_ptr() == cache.keys[layer].untyped_storage().data_ptr()
        assert (keys.shape[2], 0) <= cache.get_mask_sizes(1, layer) <= (keys.shape[2], cache.get_seq_length())
        bias = cache.bias()[..., -keys.shape[2] :]
        for row in range(len(naive.rows)):
            real = bias[row, 0, 0] == 0
            assert torch.equal(keys[row][:, real], naive.seen(row, window))
            assert torch.equal(values[row][:, real], -naive.seen(row, window))
            assert torch.equal(cache.real()[row, -keys.shape[2] :], real)
        assert keys.isfinite().all()
        assert values.isfinite().all()
    cache.advance()


@pytest.mark.parametrize("seed", range(8))
def test_rows_come_and_go_and_keep_their_past(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "ROOM", 2)
    choose, cache, naive = random.Random(seed), SlotCache(SLOTS, 30, [None, WINDOW]), Naive()
    torch.manual_seed(seed)
    for _ in range(60):
        coming = choose.randrange(SLOTS - len(naive.rows) + 1)
        if coming and choose.random() < 0.4:
            prefixes = [prefix(choose.randrange(1, 12)) for _ in range(coming)]
            cache.admit(prefixes)
            naive.rows += [list(part.keys[0].unbind(1)) for part in prefixes]
        if naive.rows:
            step(cache, naive)
            staying = sorted(choose.sample(range(len(naive.rows)), choose.randrange(len(naive.rows) + 1)))
            if choose.random() < 0.3:
                behind = [row for row in staying if row >= len(staying)]
                order = [row if row in staying else behind.pop() for row in range(len(staying))]
                cache.keep(order)
                naive.rows = [naive.rows[row] for row in order]
    assert cache.keys[0].shape[2] < 80, "columns that no row needs any more are used again"


def test_a_step_without_an_end_copies_no_past() -> None:
    cache = SlotCache(SLOTS, 20, [None])
    cache.admit([Prefix([torch.randn(HEADS, 4, WIDTH)], [torch.randn(HEADS, 4, WIDTH)], torch.zeros(1))] * 2)
    address = cache.keys[0].data_ptr()
    for _ in range(3):
        cache.update(torch.randn(2, HEADS, 1, WIDTH), torch.randn(2, HEADS, 1, WIDTH), 0)
        cache.advance()
    assert cache.keys[0].data_ptr() == address
