"""Decoding over the cache that transformers makes for a model: for architectures whose past is of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.model.batch import accepts, positions
from posttrain.model.layers import logits_at
from posttrain.rollout.caches import own_cache


class PlainDecoder:
    """See `Decoder`. Rows are admitted together, padded on the left, and leave one by one."""

    joins = False

    def __init__(self, model: PreTrainedModel, tokens: int) -> None:
        self.model = model
        self.tokens = tokens
        self._takes_positions = accepts(model, "position_ids")
        self._cache: Any = None

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """See `Decoder.prefill`."""
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor([[*[0] * gap, *prompt] for gap, prompt in zip(padding, prompts, strict=True)])
        self._mask = (torch.arange(width) >= torch.tensor(padding)[:, None]).long().to(self.model.device)
        self._positions = positions(self._mask)
        self._cache = own_cache(self.model, self.tokens)
        return self._logits(ids.to(self.model.device))

    def admit(self, picks: Sequence[int]) -> None:
        """See `Decoder.admit`."""
        self.keep(picks)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Decoder.step`."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        return self._logits(tokens[:, None])

    def keep(self, order: Sequence[int]) -> None:
        """See `Decoder.keep`."""
        rows = torch.tensor(order, dtype=torch.int64, device=self.model.device)
        self._mask, self._positions = self._mask[rows], self._positions[rows]
        if isinstance(self._cache, tuple):
            self._cache = tuple(tuple(part[rows] for part in layer) for layer in self._cache)
        else:
            self._cache.reorder_cache(rows)

    def _logits(self, ids: Tensor) -> Tensor:
        """One forward pass over the next columns [rows, T]; the logits after the last one, [rows, V]."""
        inputs = {
            "input_ids": ids,
            "attention_mask": self._mask,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if self._takes_positions:
            inputs["position_ids"] = self._positions
        width = ids.shape[1]
        with logits_at(self.model, torch.arange(width - 1, ids.numel(), width, device=ids.device)):
            output = self.model(**inputs)
        self._cache = output.past_key_values
        logits: Tensor = output.logits[0]
        return logits
