"""From values per token to one number: the only place that divides by a number of tokens or sequences.

The normaliser `count` always belongs to the whole minibatch, over all micro-batches and ranks. So the losses of the
micro-batches add up to the minibatch's loss, and their gradients to its gradient, however it is split.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Mode = Literal["token-mean", "sequence-mean", "sequence-sum"]
MODES = get_args(Mode)


def zero_masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with exact zeros where `mask` (bool, same shape) is False.

    Call it before any arithmetic: a product with the mask would turn a masked inf into NaN, in the gradient too.
    """
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def row_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of each row over its own tokens: values [B, R], mask [B, R] bool -> [B].

    With log-probabilities per token (nats) it gives the log-probability of each sequence. A row without tokens gives 0.
    """
    return zero_masked(values, mask).sum(dim=-1)


def aggregate(values: Tensor, mask: Tensor, mode: Mode, *, count: float) -> Tensor:
    """One micro-batch's share of the minibatch's mean.

    values: [B, R] per token, or [B] per row. mask: bool, same shape; masked values count for nothing, NaN and inf
    included. count: the whole minibatch's normaliser, see `normaliser`. Returns a scalar in the unit of `values`.

    `token-mean`: the sum over tokens, divided by count (all tokens; the loss of DAPO, arXiv:2503.14476 eq. 8).
    `sequence-mean`: each row's mean over its own tokens, summed, divided by count (all sequences; the loss of GRPO,
    arXiv:2402.03300 eq. 3).
    `sequence-sum`: the sum over tokens, divided by count (all sequences times a constant number of tokens, the same for
    every minibatch, such as the longest completion; the loss of Dr. GRPO, arXiv:2503.20783 section 3.1).

    Raises ValueError for an unknown mode, for shapes that differ and for a count that is not positive.
    """
    if values.shape != mask.shape:
        raise ValueError(f"values {tuple(values.shape)} and mask {tuple(mask.shape)} differ in shape")
    if not count > 0:
        raise ValueError(f"count is {count}; a minibatch needs at least one unmasked token")
    if values.dim() == 1:
        values, mask = values[:, None], mask[:, None]
    check_mode(mode)
    sums = row_sum(values, mask)
    if mode == "sequence-mean":
        sums = sums / mask.sum(dim=-1).clamp(min=1)
    return sums.sum() / count


def normaliser(mask: Tensor, mode: Mode) -> float:
    """The `count` of `aggregate` for a mask [B, R] (or [B]) of a whole minibatch; over parts, add the parts' counts.

    `token-mean`: unmasked tokens. `sequence-mean`: rows with at least one unmasked token, so that a row added as
    filling changes nothing. `sequence-sum`: those rows too; the caller multiplies by the constant. Raises ValueError
    for an unknown mode.
    """
    check_mode(mode)
    if mode == "token-mean" or mask.dim() == 1:
        return float(mask.sum())
    return float(mask.any(dim=-1).sum())


def check_mode(mode: str) -> None:
    """Raises ValueError for an aggregation mode that `aggregate` doesn't know."""
    if mode not in MODES:
        raise ValueError(f"unknown aggregation mode {mode!r}; known: {', '.join(MODES)}")
