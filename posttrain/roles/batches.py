"""From rows to forward passes: length-sorted micro-batches that never decide a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.model.batch import Row, SequenceBatch, collate, microbatches
from posttrain.model.frozen import FrozenLayers

Unit = Sequence[Row]
"""Rows that go through one forward pass together: one row, or the two completions of a pair."""


@dataclass(frozen=True)
class Forward:
    """How a role runs its model: padding id, tokens of one forward pass, device, and the sampling temperature.

    `frozen` is the work of its first layers, where that is kept.
    """

    pad_id: int
    microbatch_tokens: int
    device: str = "cpu"
    temperature: float = 1.0
    frozen: FrozenLayers | None = None


@dataclass(frozen=True)
class Microbatch:
    """Some units of a minibatch. index: [U] int64, which ones; batch: their rows, unit after unit."""

    index: Tensor
    batch: SequenceBatch


def split(units: Sequence[Unit], forward: Forward) -> Iterator[Microbatch]:
    """Every unit once, in length-sorted micro-batches of at most `microbatch_tokens` tokens, padding included."""
    # A unit of n rows counts as one row of n times its width: n rows of that width have as many tokens.
    lengths = [(len(unit) * max(len(p) for p, _ in unit), len(unit) * max(len(c) for _, c in unit)) for unit in units]
    for index in microbatches(lengths, forward.microbatch_tokens):
        rows = [row for i in index for row in units[i]]
        batch = collate(rows, forward.pad_id).to(forward.device)
        if forward.frozen is not None:
            batch = dataclasses.replace(batch, recall=forward.frozen.recall(batch, rows))
        yield Microbatch(torch.tensor(index, device=forward.device), batch)


@torch.no_grad()
def per_token(rows: Sequence[Row], forward: Forward, run: Callable[[SequenceBatch], Tensor]) -> Tensor:
    """[N, R] float32 of `run`'s values [b, R_b] for each response token, zeros where a row has no token."""
    width = max(len(completion) for _, completion in rows)
    values = torch.zeros(len(rows), width, device=forward.device)
    for micro in split([(row,) for row in rows], forward):
        mask = micro.batch.response_mask
        found = torch.where(mask, run(micro.batch).float(), torch.zeros((), device=forward.device))
        values[micro.index, : mask.shape[1]] = found
    return values


@torch.no_grad()
def per_row(rows: Sequence[Row], forward: Forward, run: Callable[[SequenceBatch], Tensor]) -> Tensor:
    """[N] float32 of `run`'s values [b], one for each row."""
    values = torch.zeros(len(rows), device=forward.device)
    for micro in split([(row,) for row in rows], forward):
        values[micro.index] = run(micro.batch).float()
    return values


def response_mask(rows: Sequence[Row], device: str) -> Tensor:
    """[N, R] bool: which response tokens exist, by length."""
    lengths = torch.tensor([len(completion) for _, completion in rows], device=device)
    return torch.arange(int(lengths.max()), device=device)[None, :] < lengths[:, None]
