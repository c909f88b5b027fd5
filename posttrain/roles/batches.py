"""From rows to forward passes: length-sorted micro-batches that never decide a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posttrain.model.batch import SequenceBatch, collate, mask_of
from posttrain.model.frozen import FrozenLayers
from posttrain.model.packing import Packing, Row, Unit, microbatches
from posttrain.model.trees import packing_of


@dataclass(frozen=True)
class Forward:
    """How a role runs its model: padding id, tokens of one forward pass, device, and the sampling temperature.

    `frozen` is the work of its first layers, where that is kept. `packing` says how rows may share lines (`of` finds it
    for a model); without it each row has a line of its own.
    """

    pad_id: int
    microbatch_tokens: int
    device: str = "cpu"
    temperature: float = 1.0
    frozen: FrozenLayers | None = None
    packing: Packing | None = None

    def of(self, module: nn.Module) -> Forward:
        """The same with rows in lines as suits this module."""
        return dataclasses.replace(self, packing=packing_of(module))


@dataclass(frozen=True)
class Microbatch:
    """Some units of a minibatch. index: [U] int64, which ones; batch: their rows, unit after unit."""

    index: Tensor
    batch: SequenceBatch


def split(units: Sequence[Unit], forward: Forward) -> Iterator[Microbatch]:
    """Every unit once, in length-sorted micro-batches of at most `microbatch_tokens` tokens, padding included."""
    for index in microbatches(units, forward.microbatch_tokens, forward.packing):
        rows = [row for i in index for row in units[i]]
        batch = collate(rows, forward.pad_id, forward.packing).to(forward.device)
        if forward.frozen is not None:
            batch = dataclasses.replace(batch, recall=forward.frozen.recall(batch, rows))
        yield Microbatch(torch.tensor(index, device=forward.device), batch)


def per_token(rows: Sequence[Row], forward: Forward, run: Callable[[SequenceBatch], Tensor]) -> Tensor:
    """[N, R] float32 of `run`'s values [b, R_b] for each response token; `run` gives zeros where a row has no token."""
    return per_token_each(rows, forward, lambda batch: (run(batch),), 1)[0]


@torch.no_grad()
def per_token_each(
    rows: Sequence[Row], forward: Forward, run: Callable[[SequenceBatch], tuple[Tensor, ...]], count: int
) -> Tensor:
    """The same for a `run` that gives `count` values for each token in one pass: [count, N, R]."""
    width = max(len(completion) for _, completion in rows)
    values = torch.zeros(count, len(rows), width, device=forward.device)
    for micro in split([(row,) for row in rows], forward):
        found = torch.stack(run(micro.batch)).float()
        values[:, micro.index, : found.shape[-1]] = found
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
    return mask_of([len(completion) for _, completion in rows]).to(device)
