"""Noise on the embeddings of a training forward pass (NEFTune)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posttrain.model.batch import SequenceBatch
from posttrain.model.layers import trunk_of


@contextmanager
def noisy_embeddings(model: nn.Module, batch: SequenceBatch, alpha: float, seeds: Sequence[int]) -> Iterator[None]:
    """Within, the embeddings of each row of the batch get uniform noise of at most alpha / sqrt(L d).

    L is the row's own number of tokens, d the width of the embeddings. The noise of row i is a function of `seeds[i]`
    and these: whatever else is in the batch, the row is trained on the same numbers. So each row needs a line of its
    own, for a prompt that two of them share could not have the noise of both.

    Source: arXiv:2310.05914, algorithm 1.
    """
    assert batch.plain, "rows with noise share no line"
    lengths = (batch.last % batch.input_ids.shape[1] + 1).tolist()

    def add(_: nn.Module, __: object, embedded: Tensor) -> Tensor:
        rows = [_uniform(length, embedded.shape[2], alpha, seed) for length, seed in zip(lengths, seeds, strict=True)]
        return embedded + nn.utils.rnn.pad_sequence(rows, batch_first=True).to(embedded)

    handle = trunk_of(model).get_input_embeddings().register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def _uniform(length: int, width: int, alpha: float, seed: int) -> Tensor:
    """[length, width] float32 on the CPU, whose generator gives the same numbers on every machine."""
    most = alpha / math.sqrt(length * width)
    return torch.empty(length, width).uniform_(-most, most, generator=torch.Generator().manual_seed(seed))
