"""GSPO's policy loss: one ratio for a whole sequence, the geometric mean of its tokens' ratios."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked
from posttrain.algorithms.policy_loss.surrogate import Stats, clipped_surrogate, log_ratio, ratio_of


def gspo(
    log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Stats]:
    """Loss per token: max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)) with s_t = sg[s] p_t / sg[p_t].

    s = exp(mean over the row's tokens of log_probs - old) is the value at every token; sg stops the gradient, which
    reaches a token through its own log-probability only. So advantages may differ from token to token; where they
    don't, `sequence-mean` gives the loss and the gradient of the paper's sequence form. log_probs, old: [B, R], nats.
    advantages: [B, R], constants. mask: [B, R] bool. Returns the loss [B, R], zeros where masked, and the statistics
    of `clipped_surrogate`, in which `ratio` is s. |log s_t| is held at 20.

    Source: arXiv:2507.18071 eq. 5 to 7; the token form, eq. 13 and 14.
    """
    lengths = mask.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = log_ratio(log_probs, old, mask).detach().sum(dim=-1, keepdim=True) / lengths
    own = zero_masked(log_probs, mask)
    return clipped_surrogate(ratio_of(own - own.detach() + mean), advantages, mask, clip_low, clip_high)
