"""The masks that keep the rows of a line apart, for eager and sdpa attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.model.packing import Segment

Mask = Tensor | dict[str, Tensor]


def tree_mask(segments: Sequence[Segment], input_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """[L, 1, W, W] to be added to attention scores: 0 where a token of `input_ids` [L, W] sees another, else `dtype`'s
    lowest number.

    A token sees its own segment up to itself, and the prompt that its segment continues. Padding sees itself alone, for
    a softmax needs something.
    """
    (lines, width), lowest = input_ids.shape, torch.finfo(dtype).min
    mask = torch.full((lines, 1, width, width), lowest, dtype=dtype, device=input_ids.device)
    mask.diagonal(dim1=2, dim2=3).zero_()
    longest = max(segment.stop - segment.start for segment in segments)
    causal = mask.new_full((longest, longest), lowest).triu_(1)
    for line, start, stop, _, prompt in segments:
        length = stop - start
        mask[line, 0, start:stop, start:stop] = causal[:length, :length]
        if prompt is not None:
            mask[line, 0, start:stop, prompt[0] : prompt[1]] = 0
    return mask


def masks_for(config: Any, mask: Tensor, position_ids: Tensor) -> Mask:
    """The attention mask for a model of this configuration, where `mask` [L, 1, W, W] holds without a window.

    A window counts positions ([L, W]), not columns. transformers 5 takes one mask for all layers, or, where layers with
    and without a window alternate, one for each kind.
    """
    window = window_of(config)
    if window is None or int(position_ids.max()) < window:
        return mask
    distance = position_ids[:, None, :, None] - position_ids[:, None, None, :]
    near = mask.masked_fill(distance >= window, torch.finfo(mask.dtype).min)
    if set(kinds_of(config)) == {"sliding_attention"}:
        return near
    return {"full_attention": mask, "sliding_attention": near}


def window_of(config: Any) -> int | None:
    """The number of positions that layers with a window see, themselves included; None where no layer has one."""
    window: int | None = getattr(config, "sliding_window", None)
    return window if "sliding_attention" in kinds_of(config) else None


def kinds_of(config: Any) -> Sequence[str]:
    """The kinds of attention that the layers have; a window without such a list is the window of all layers."""
    return getattr(config, "layer_types", None) or ("sliding_attention",)
