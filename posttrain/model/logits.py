"""What the project does with logits: temperature, log-probabilities of given tokens, entropy, and drawing a token.

Everything here works in float32 whatever the model's precision, and on a bounded number of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, pad

# Elements of a float32 working copy: 1 MiB, so that it stays in a core's cache.
CHUNK_ELEMENTS = 1 << 18
# Tokens of a vocabulary that are drawn from in one step.
BLOCK = 512


def scale(logits: Tensor, temperature: float) -> Tensor:
    """Float32 logits divided by `temperature`: the only place where a temperature acts.

    Raises:
        ValueError: the temperature is not above zero.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above zero, not {temperature}")
    return logits.float() if temperature == 1 else logits.float() / temperature


def selected_log_probs(
    logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets` [M] under the rows of `logits` [M, V], and those rows' entropies.

    Returns two float32 tensors [M], in nats; the second is zero without `with_entropy`. Forward and backward hold one
    chunk of rows in float32. The gradient has the dtype of `logits` and takes their memory: hand over the fresh output
    of a model, which nobody else reads after the backward pass. (Where autograd itself would, it raises an error.)
    """
    assert not (logits.is_leaf and logits.requires_grad), "a parameter's memory is not for the gradient"
    log_probs, entropy = _SelectedLogProbs.apply(logits, targets, temperature, with_entropy)
    return log_probs, entropy


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draws one token per row by the inverse of the distribution function, from `uniforms` [B] in [0, 1), float64.

    `logits` is [B, V]. Returns the ids [B] and their log-probabilities [B] (float32, after temperature). A token whose
    probability is zero in float32 is never drawn. A large vocabulary is drawn from in two steps, a block and a token in
    it, so that nothing of its size is held in float64.
    """
    parts = [_draw(scale(logits[part], temperature).log_softmax(-1), uniforms[part]) for part in _chunks(*logits.shape)]
    ids, log_probs = (torch.cat(column) for column in zip(*parts, strict=True))
    return ids, log_probs


def best(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The most probable token of each row of `logits` [B, V], and its log-probability after temperature."""
    ids = logits.argmax(-1, keepdim=True)
    return ids[:, 0], scale(logits, temperature).log_softmax(-1).gather(1, ids)[:, 0]


def _draw(log_probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    width = log_probs.shape[-1]
    if width <= BLOCK:
        ids, _ = _choose(log_probs.exp(), uniforms)
    else:
        shares = pad(log_probs, (0, -width % BLOCK), value=-torch.inf).exp_().unflatten(-1, (-1, BLOCK))
        blocks, rest = _choose(shares.sum(-1), uniforms)
        places, _ = _choose(shares[torch.arange(len(shares), device=shares.device), blocks], rest)
        ids = blocks * BLOCK + places
    return ids, log_probs.gather(1, ids[:, None])[:, 0]


def _choose(shares: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of `shares` [B, N] (float32), the entry that its number in [0, 1) falls into; shares are as wide.

    Returns the entries' indices [B], none of them with a share of zero, and where within the entry the number fell, [B]
    in [0, 1).
    """
    cumulative = shares.cumsum(-1, dtype=torch.float64)
    # A float64 below 1 is at most 1 - 2**-53: the product stays below the total, also when rounded, and the first entry
    # above it exists and has a share of its own.
    target = uniforms[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True)
    rest = 1 - (cumulative.gather(1, index) - target) / shares.gather(1, index)
    return index[:, 0], rest[:, 0].clamp(0, 1 - 2.0**-53)


class _SelectedLogProbs(torch.autograd.Function):
    """log p_y = s_y - logsumexp(s) and H = logsumexp(s) - sum p s, with s the scaled logits.

    d log p_y / d s_j = [j = y] - p_j and d H / d s_j = -p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        entropy = torch.zeros_like(log_probs)
        normaliser = torch.empty_like(log_probs)
        for part in _chunks(*logits.shape):
            scaled = scale(logits[part], temperature)
            log_probs[part] = -cross_entropy(scaled, targets[part], reduction="none")
            normaliser[part] = scaled.gather(1, targets[part, None])[:, 0] - log_probs[part]
            if with_entropy:
                entropy[part] = normaliser[part] - scaled.softmax(-1).mul_(scaled).sum(-1)
        ctx.save_for_backward(logits, targets, normaliser, entropy)
        ctx.temperature, ctx.with_entropy = temperature, with_entropy
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, normaliser, entropy = ctx.saved_tensors
        weights = (grad_log_probs / ctx.temperature)[:, None]
        for part in _chunks(*logits.shape):
            piece = scale(logits[part], ctx.temperature).sub_(normaliser[part, None])
            if ctx.with_entropy:
                factor = (piece + entropy[part, None]).mul_(grad_entropy[part, None] / ctx.temperature)
                piece.exp_().mul_(factor.add_(weights[part]).neg_())
            else:
                piece.exp_().mul_(-weights[part])
            piece.scatter_add_(1, targets[part, None], weights[part])
            if piece.data_ptr() != logits[part].data_ptr():  # scaling made a copy
                logits[part] = piece
        return logits, None, None, None


def _chunks(rows: int, width: int) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // width)
    return (slice(start, start + size) for start in range(0, rows, size))
