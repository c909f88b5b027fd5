"""The soft penalty for completions near the length limit."""

from __future__ import annotations

from torch import Tensor


def overlong_penalty(lengths: Tensor, *, longest: int, buffer: int) -> Tensor:
    """What a completion's score loses for its length: 0 up to longest - buffer, then linearly down to -1 at `longest`.

    lengths: [N] tokens. longest: the limit in tokens. buffer: the tokens before it in which the penalty grows. Returns
    [N] in -1..0, in units of reward; completions over the limit get -1.

    Source: DAPO, arXiv:2503.14476 eq. 13. Raises ValueError unless 0 < buffer <= longest.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"buffer is {buffer}; it must be above 0 and no more than longest, {longest}")
    return ((longest - buffer - lengths) / buffer).clamp(-1, 0)
