"""Attention for decoding: one new token per row, without copying keys for the heads that share them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

NAME = "posttrain_decode"


def decode_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers' `sdpa` gives for queries [B, H, 1, D] and keys and values [B, H / G, T, D]; [B, 1, H, D].

    The G heads that share a key stand as rows of one product, where `sdpa` under a mask makes G copies of every key and
    value. `attention_mask` [B, 1, 1, >= T] is added to the scores; its last T columns are this layer's (a layer with
    a window sees fewer than others).
    """
    rows, heads, _length, width = query.shape
    shared = key.shape[1]
    folded = query.reshape(rows, shared, heads // shared, width)
    mask = attention_mask[..., -key.shape[2] :]
    result = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return result.reshape(rows, 1, heads, value.shape[3]), None


def can_fold(model: PreTrainedModel) -> bool:
    """Whether the model's attention is `sdpa`, and is one that may be replaced."""
    return model.config._attn_implementation == "sdpa" and bool(getattr(model, "_supports_attention_backend", False))


@contextmanager
def folded_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model's layers attend by `decode_attention`, and the mask that the model is given stays as it is."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


AttentionInterface.register(NAME, decode_attention)
