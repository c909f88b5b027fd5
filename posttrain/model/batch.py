"""A forward pass: the rows of a batch in lines, and the log-probabilities of their responses.

Lines begin at column 0 and their padding is on the right, where causal attention never comes to. What is padding is
known by length, never by a token's id.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.model.attention import masks_for, tree_mask
from posttrain.model.layers import Recall, logits_at, recalled, trunk_of
from posttrain.model.logits import selected_log_probs
from posttrain.model.packing import Packing, Row, Segment, arrange, is_plain, segments_of, sizes_of, width_of


@dataclass(frozen=True)
class SequenceBatch:
    """The b rows of a batch in L lines of W columns, M response tokens in all.

    `input_ids` and `position_ids` are [L, W] int64; `segments` says what stands where. `plain`: every line is one row,
    so that no mask is needed. `response_mask` [b, R] bool: which response tokens exist. Of these, row after row:
    `targets` [M] are the ids and `before` [M] the places that predict them; `last` [b] are the places of the rows' last
    tokens. Places count the columns of all lines, line after line. `recall` holds what frozen first layers make of the
    batch, where that is known already.
    """

    input_ids: Tensor
    position_ids: Tensor
    segments: tuple[Segment, ...]
    plain: bool
    response_mask: Tensor
    targets: Tensor
    before: Tensor
    last: Tensor
    recall: Recall | None = None

    def to(self, device: str | torch.device) -> SequenceBatch:
        """The same batch on `device`."""
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return dataclasses.replace(self, **tensors)

    def spread(self, values: Tensor) -> Tensor:
        """[b, R] of `values` [M], zeros where there is no response token."""
        return values.new_zeros(self.response_mask.shape).masked_scatter(self.response_mask, values)


def collate(rows: Sequence[Row], pad_id: int, packing: Packing | None = None) -> SequenceBatch:
    """Puts `rows` into lines on the CPU, arranged as suits the model that `packing` describes (None: a row a line).

    A completion may be empty (its row then has no response token); `pad_id` may be any id of the vocabulary.

    Raises:
        ValueError: a prompt has no token: the first response token would have nothing to be predicted from.
    """
    sizes = sizes_of(rows)
    for number, size in enumerate(sizes):
        if size.prompt == 0:
            raise ValueError(f"row {number}: the prompt has no token; give it at least the beginning-of-text token")
    arranged = arrange(sizes, packing)
    segments, width = tuple(segments_of(arranged, sizes)), width_of(arranged, sizes)
    lengths = torch.tensor([s.stop - s.start for s in segments])
    places, steps = _walk(torch.tensor([s.line * width + s.start for s in segments]), lengths)
    ids = torch.full((len(arranged) * width,), pad_id)
    tokens = chain(*(rows[s.row][s.prompt is not None] for s in segments))
    ids[places] = torch.from_numpy(np.fromiter(tokens, np.int64, len(places)))  # torch.tensor takes seven times as long
    begin = torch.tensor([0 if s.prompt is None else s.prompt[1] - s.prompt[0] for s in segments])
    positions = torch.zeros_like(ids)
    positions[places] = steps + begin.repeat_interleave(lengths)
    own, before, last = _places(segments, width)
    return SequenceBatch(
        input_ids=ids.view(-1, width),
        position_ids=positions.view(-1, width),
        segments=segments,
        plain=is_plain(arranged),
        response_mask=mask_of([size.completion for size in sizes]),
        targets=ids[own],
        before=before,
        last=last,
    )


def mask_of(lengths: Sequence[int]) -> Tensor:
    """[N, R] bool: which tokens exist in rows of these lengths; R is the longest."""
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


def model_inputs(module: nn.Module, batch: SequenceBatch) -> dict[str, Any]:
    """The keyword arguments of a forward pass without a cache: where a line is a row, ids alone are enough."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if not batch.plain:
        trunk = trunk_of(module)
        mask = tree_mask(batch.segments, batch.input_ids, trunk.dtype)
        inputs["attention_mask"] = masks_for(trunk.config, mask, batch.position_ids)
        inputs["position_ids"] = batch.position_ids
    return inputs


def forward(module: nn.Module, batch: SequenceBatch) -> Any:
    """The module's output for the batch, its frozen first layers recalled where the batch holds their work."""
    with recalled(module, batch.recall):
        return module(**model_inputs(module, batch))


def accepts(module: nn.Module, argument: str) -> bool:
    """Whether the module's forward has a parameter of this name."""
    return argument in inspect.signature(module.forward).parameters


@overload
def token_log_probs(model: nn.Module, batch: SequenceBatch, temperature: float = 1.0) -> Tensor: ...


@overload
def token_log_probs(
    model: nn.Module, batch: SequenceBatch, temperature: float = 1.0, *, with_entropy: Literal[True]
) -> tuple[Tensor, Tensor]: ...


def token_log_probs(
    model: nn.Module, batch: SequenceBatch, temperature: float = 1.0, *, with_entropy: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probability of each response token under a causal language model, [b, R] float32, in nats; padding has 0.

    Logits are computed for the response's real tokens alone, and never copied to float32 as a whole.
    With `with_entropy`, returns also the entropy of the distribution each response token was predicted by, [b, R].
    """
    with logits_at(model, batch.before):
        logits = forward(model, batch).logits.flatten(0, 1)
    log_probs, entropy = selected_log_probs(logits, batch.targets, temperature, with_entropy)
    return (batch.spread(log_probs), batch.spread(entropy)) if with_entropy else batch.spread(log_probs)


def positions(attention_mask: Tensor) -> Tensor:
    """Position of each token within its own row, from 0; padding on the left has position 0."""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def _walk(first: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Every place of spans with these first places and lengths, span after span, and its number within the span."""
    offsets = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    steps = torch.arange(len(offsets)) - offsets
    return first.repeat_interleave(lengths) + steps, steps


def _places(segments: Sequence[Segment], width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row after row, the places of the response tokens [M], the places that predict them [M], and the last ones [b].

    Labels are shifted here and nowhere else: a token is predicted by the place before it, the first by the prompt's
    last one.
    """
    completions = sorted((s.row, s, s.prompt) for s in segments if s.prompt is not None)
    first = torch.tensor([s.line * width + s.start for _, s, _ in completions])
    asked = torch.tensor([s.line * width + prompt[1] - 1 for _, s, prompt in completions])
    lengths = torch.tensor([s.stop - s.start for _, s, _ in completions])
    own, steps = _walk(first, lengths)
    before = torch.where(steps == 0, asked.repeat_interleave(lengths), own - 1)
    return own, before, torch.where(lengths == 0, asked, first + lengths - 1)
