"""The keys and values of running rows, in buffers that are written in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

# Columns that new buffers have free at least, where a row can need as many.
ROOM = 64


@dataclass(frozen=True)
class Prefix:
    """A prompt that the model has read: its keys and values [heads, tokens, width] layer by layer, and logits [V]."""

    keys: list[Tensor]
    values: list[Tensor]
    logits: Tensor

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return self.keys[0].shape[1]


class RecordingCache(Cache):
    """Keeps the keys and values [B, heads, T, width] of one forward pass without a past, layer by layer."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        # The base class has another constructor in each version of transformers, and nothing of its own is used here.
        self.layers = []
        self.windows = windows
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @property
    def is_sliding(self) -> list[bool]:
        """Which layers have a window."""
        return [window is not None for window in self.windows]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Takes the next layer's keys and values, and gives them back."""
        assert layer_idx == len(self.keys), "layers run in their order"
        self.keys.append(key_states)
        self.values.append(value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """There is no past."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys that a query may see, and the first one's place."""
        return query_length, 0


class SlotCache(Cache):
    """The past of up to `slots` rows, which all write their next token in column `end`.

    A layer's buffer is [slots, heads, columns, width]. Row r's past stands in columns `starts[r]` to `end` - 1, so a
    step writes one column and every layer reads one slice, from the earliest start or as far as its window reaches.
    Rows may come at any time: only the columns' number decides their place, not their age.
    """

    def __init__(self, slots: int, max_new_tokens: int, windows: Sequence[int | None]) -> None:
        self.layers = []
        self.slots = slots
        self.max_new_tokens = max_new_tokens
        self.windows = windows
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.starts: list[int] = []
        self.first = self.end = 0

    @property
    def is_sliding(self) -> list[bool]:
        """Which layers have a window."""
        return [window is not None for window in self.windows]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Writes one token's keys and values [rows, heads, 1, width]; gives views of all that the layer may see."""
        rows, first, end = len(self.starts), self._first(layer_idx), self.end + 1
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:rows, :, self.end : end] = key_states
        values[:rows, :, self.end : end] = value_states
        return keys[:rows, :, first:end], values[:rows, :, first:end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the past."""
        return self.end - self.first

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns that the layer sees, and the first one's place in the past."""
        first = self._first(layer_idx)
        return self.end + query_length - first, first - self.first

    def positions(self) -> Tensor:
        """Each row's position of its next token, [rows, 1]."""
        return self.end - self._starts[:, None]

    def real(self) -> Tensor:
        """Which columns of the past and of the next token are the row's own, [rows, T] bool."""
        return self._bias[:, 0, 0, self.first : self.end + 1] == 0

    def bias(self) -> Tensor:
        """The same for adding to scores, [rows, 1, 1, T]: zero, and minus infinity in columns that are not."""
        return self._bias[..., self.first : self.end + 1]

    def admit(self, prefixes: Sequence[Prefix]) -> None:
        """Adds a row for each prefix, behind the others."""
        if not self.keys:
            self.keys, self.values = self._empty(prefixes[0].keys), self._empty(prefixes[0].values)
        longest = max(prefix.length for prefix in prefixes)
        if not self.starts or self.end < longest:
            self._place(longest)
        for prefix in prefixes:
            row, start = len(self.starts), self.end - prefix.length
            for buffer, states in zip([*self.keys, *self.values], [*prefix.keys, *prefix.values], strict=True):
                buffer[row, :, start : self.end] = states
            self.starts.append(start)
        self._refresh()

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row `order[i]` was, and the others end; `order[i]` is i or stands behind all that stay."""
        for row, source in enumerate(order):
            if row != source:
                columns = slice(self.starts[source], self.end)
                for buffer in (*self.keys, *self.values):
                    buffer[row, :, columns] = buffer[source, :, columns]
        self.starts = [self.starts[source] for source in order]
        self._refresh()

    def advance(self) -> None:
        """Makes the column that was written part of the past."""
        self.end += 1
        if self.end == self.keys[0].shape[2]:
            self._place(self.end - self.first)
            self._refresh()

    def _first(self, layer: int) -> int:
        window = self.windows[layer]
        return self.first if window is None else max(self.first, self.end + 1 - window)

    def _empty(self, states: Sequence[Tensor]) -> list[Tensor]:
        return [state.new_zeros(self.slots, state.shape[0], 0, state.shape[2]) for state in states]

    def _place(self, end: int) -> None:
        """Moves the past so that it ends at column `end`, in buffers with room for as many tokens again."""
        columns = end + min(self.max_new_tokens, max(end, ROOM))
        rows, width = len(self.starts), self.end - self.first
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                # Zeros, as a column that is hidden by minus infinity must still be finite.
                new = old.new_zeros(self.slots, old.shape[1], columns, old.shape[3])
                new[:rows, :, end - width : end] = old[:rows, :, self.first : self.end]
                buffers[layer] = new
        self.starts = [start + end - self.end for start in self.starts]
        self.end = end

    def _refresh(self) -> None:
        """Brings what follows from `starts` up to date."""
        like = self.keys[0]
        self.first = min(self.starts, default=self.end)
        self._starts = torch.tensor(self.starts, dtype=torch.int64, device=like.device)
        hidden = torch.arange(like.shape[2], device=like.device) < self._starts[:, None]
        self._bias = like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]
