"""A model's forward passes in generation: over prompts, then over one token of each running row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.model.layers import logits_at
from posttrain.rollout.attention import can_fold, folded_attention
from posttrain.rollout.caches import attention_windows
from posttrain.rollout.plain import PlainDecoder
from posttrain.rollout.slots import Prefix, RecordingCache, SlotCache

Prompt = tuple[int, ...]

# The tokens of one forward pass over prompts, padding included, and the share of them that may be padding.
PREFILL_TOKENS = 2048
PADDING = 1 / 8


class Decoder(Protocol):
    """The running rows of a model, in an order that the caller knows.

    `joins` says whether rows may be admitted while others run.
    """

    joins: bool

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Reads the prompts, which differ; returns the logits after each, [len(prompts), V]."""
        ...

    def admit(self, picks: Sequence[int]) -> None:
        """Adds a row behind the others for each pick, an index into the prompts that were read last."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Gives every row its next token, `tokens` [rows]; returns the logits after it, [rows, V]."""
        ...

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row `order[i]` was, and the others end; `order[i]` is i, or behind all that stay."""
        ...


def decoder_for(model: PreTrainedModel, rows: int, longest: int, max_new_tokens: int) -> Decoder:
    """A decoder for up to `rows` rows at once, prompts of up to `longest` tokens, and as many new ones.

    Raises:
        UserError: this version of transformers cannot generate that many tokens with the model.
    """
    windows = attention_windows(model, longest + max_new_tokens)
    if windows is None:
        return PlainDecoder(model, longest + max_new_tokens)
    return SlotDecoder(model, SlotCache(rows, max_new_tokens, windows))


class SlotDecoder:
    """Decodes over a `SlotCache`: rows join and end at any time, and no step copies the past."""

    joins = True

    def __init__(self, model: PreTrainedModel, cache: SlotCache) -> None:
        self.model = model
        self.cache = cache
        self._folds = can_fold(model)
        self._read: dict[Prompt, Prefix] = {}

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """See `Decoder.prefill`. The last prompt of the call before is not read again."""
        known = {prompt: self._read[prompt] for prompt in prompts if prompt in self._read}
        for part in prefill_parts([prompt for prompt in prompts if prompt not in known]):
            known.update(zip(part, self._read_prompts(part), strict=True))
        self._read = {prompt: known[prompt] for prompt in prompts}
        return torch.stack([prefix.logits for prefix in self._read.values()])

    def admit(self, picks: Sequence[int]) -> None:
        """See `Decoder.admit`."""
        prefixes = list(self._read.values())
        self.cache.admit([prefixes[pick] for pick in picks])
        # Only the last prompt can have samples that wait for a place.
        self._read = dict([self._read.popitem()])

    def step(self, tokens: Tensor) -> Tensor:
        """See `Decoder.step`."""
        inputs = {
            "input_ids": tokens[:, None],
            "position_ids": self.cache.positions(),
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self._folds:
            with folded_attention(self.model):
                logits: Tensor = self.model(**inputs, attention_mask=self.cache.bias()).logits
        else:
            logits = self.model(**inputs, attention_mask=self.cache.real()).logits
        self.cache.advance()
        return logits[:, -1]

    def keep(self, order: Sequence[int]) -> None:
        """See `Decoder.keep`."""
        self.cache.keep(order)

    def _read_prompts(self, prompts: Sequence[Prompt]) -> list[Prefix]:
        """One forward pass; padded on the right, where no token of a causal model sees the padding."""
        device, width = self.model.device, max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
        cache = RecordingCache(self.cache.windows)
        last = [line * width + len(prompt) - 1 for line, prompt in enumerate(prompts)]
        with logits_at(self.model, torch.tensor(last, device=device)):
            output = self.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                position_ids=torch.arange(width, device=device).expand(len(prompts), -1),
                past_key_values=cache,
                use_cache=True,
            )
        return [
            Prefix(
                [keys[line, :, : len(prompt)] for keys in cache.keys],
                [values[line, :, : len(prompt)] for values in cache.values],
                output.logits[0, line],
            )
            for line, prompt in enumerate(prompts)
        ]


def prefill_parts(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """The prompts, longest first, in batches with few tokens of padding."""
    part: list[Prompt] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        size = (len(part) + 1) * len(part[0] if part else prompt)
        padding = size - sum(map(len, [*part, prompt]))
        if part and (size > PREFILL_TOKENS or padding > PADDING * size):
            yield part
            part = []
        part.append(prompt)
    if part:
        yield part
