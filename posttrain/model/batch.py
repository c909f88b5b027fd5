"""THE padded layout of prompts and responses, and the log-probabilities of the responses.

Prompts are padded on the left and responses on the right, so that every response begins in the same column. What is
padding is known by length, never by a token's id.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from posttrain.model.layers import Recall, logits_at, recalled
from posttrain.model.logits import selected_log_probs

Row = tuple[Sequence[int], Sequence[int]]  # prompt ids, completion ids


@dataclass(frozen=True)
class SequenceBatch:
    """B rows of P prompt columns and R response columns.

    `input_ids`, `attention_mask` (1 is a real token) and `position_ids` are [B, P + R] int64, `response_mask` is [B, R]
    bool, `prompt_width` is P, and `rows` are the rows' indices in the list that the batch was made from. `recall` holds
    what frozen first layers make of the batch, where that is known already.
    """

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    position_ids: Tensor
    prompt_width: int
    rows: tuple[int, ...]
    recall: Recall | None = None

    @property
    def response_ids(self) -> Tensor:
        """The response columns of `input_ids`, [B, R]."""
        return self.input_ids[:, self.prompt_width :]

    def to(self, device: str | torch.device) -> SequenceBatch:
        """The same batch on `device`."""
        return dataclasses.replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            response_mask=self.response_mask.to(device),
            position_ids=self.position_ids.to(device),
        )


def collate(rows: Sequence[Row], pad_id: int, indices: Sequence[int] | None = None) -> SequenceBatch:
    """Pads `rows`, or only those at `indices` (in that order), to a batch on the CPU.

    A completion may be empty (its row then has no response token); `pad_id` may be any id of the vocabulary.

    Raises:
        ValueError: a prompt has no token: the first response token would have nothing to be predicted from.
    """
    chosen = tuple(range(len(rows)) if indices is None else indices)
    prompts, responses = [rows[i][0] for i in chosen], [rows[i][1] for i in chosen]
    for index, prompt in zip(chosen, prompts, strict=True):
        if len(prompt) == 0:
            raise ValueError(f"row {index}: the prompt has no token; give it at least the beginning-of-text token")
    width, length = max(map(len, prompts)), max(map(len, responses))
    input_ids = torch.full((len(chosen), width + length), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(input_ids)
    for line, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        span = slice(width - len(prompt), width + len(response))
        input_ids[line, span] = torch.tensor([*prompt, *response])
        mask[line, span] = 1
    return SequenceBatch(input_ids, mask, mask[:, width:].bool(), positions(mask), width, chosen)


def positions(attention_mask: Tensor) -> Tensor:
    """Position of each token within its own row, from 0; padding on the left has position 0."""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def microbatches(lengths: Sequence[tuple[int, int]], budget_tokens: int) -> list[list[int]]:
    """Groups of row indices whose batch has at most `budget_tokens` tokens, padding included; longest rows first.

    `lengths` are the (prompt, completion) lengths. A row that is longer than the budget stands alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-sum(lengths[i]), i))
    groups: list[list[int]] = []
    width = length = 0
    for index in order:
        prompt, completion = lengths[index]
        wider, longer = max(width, prompt), max(length, completion)
        if groups and (len(groups[-1]) + 1) * (wider + longer) <= budget_tokens:
            groups[-1].append(index)
            width, length = wider, longer
        else:
            groups.append([index])
            width, length = prompt, completion
    return groups


def model_inputs(module: nn.Module, batch: SequenceBatch) -> dict[str, Any]:
    """The keyword arguments of a forward pass without a cache; positions only where the architecture takes them."""
    inputs: dict[str, Any] = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "use_cache": False,
    }
    if accepts(module, "position_ids"):
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
    """Log-probability of each response token under a causal language model, [B, R] float32, in nats; padding has 0.

    Logits are computed for the response's real tokens alone, and never copied to float32 as a whole.
    With `with_entropy`, returns also the entropy of the distribution each response token was predicted by, [B, R].
    The labels are shifted here and nowhere else: response token t is predicted by the logits of the column before it.
    """
    line, column = batch.response_mask.nonzero(as_tuple=True)
    with logits_at(model, line, batch.prompt_width - 1 + column):
        logits = forward(model, batch).logits[0]
    log_probs, entropy = selected_log_probs(logits, batch.response_ids[line, column], temperature, with_entropy)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(batch.response_mask.shape).index_put((line, column), values)

    return (spread(log_probs), spread(entropy)) if with_entropy else spread(log_probs)
