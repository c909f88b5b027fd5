"""The clipped policy loss of whole sequences as single actions, RLOO's."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.policy_loss.surrogate import Stats, clipped_surrogate, log_ratio, ratio_of


def sequence_clipped(
    log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Stats]:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(sum over the row's tokens of log_probs - old).

    The row's loss, with its whole gradient, stands at each of its tokens: `sequence-mean` gives the mean over
    sequences. log_probs, old: [B, R], nats. advantages: [B, R], constants, the same at all tokens of a row. mask:
    [B, R] bool. Returns the loss [B, R], zeros where masked, and the statistics of `clipped_surrogate`, in which
    `ratio` is the sequence's. |log r| is held at 20.

    Source: arXiv:2402.14740, a completion as one action; the clip, arXiv:1707.06347 eq. 7.
    """
    ratio = ratio_of(log_ratio(log_probs, old, mask).sum(dim=-1, keepdim=True)).expand_as(log_probs)
    return clipped_surrogate(ratio, advantages, mask, clip_low, clip_high)
