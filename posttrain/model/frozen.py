"""The work of frozen layers, done once.

Where only the last layers train, the models of a run (policy, reference, reward model, critic) have the first layers in
common. What these make of a row is computed once and recalled wherever the row goes through one of the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.model.batch import SequenceBatch, collate, model_inputs
from posttrain.model.layers import Recall, decoder_layers, trunk_of
from posttrain.model.packing import Row, microbatches
from posttrain.model.trees import packing_of

Key = tuple[tuple[int, ...], tuple[int, ...] | None]  # a prompt's ids, and of a completion its own

# Of all rows together. Rows that need more are not kept: the frozen layers then work in every forward pass.
MOST_BYTES = 1 << 30


class FrozenLayers:
    """What the first `depth` layers of `model`, none of which trains, make of some rows.

    A row is known by its ids, and kept without padding; rows with one prompt keep it once. The batches in which rows
    are computed (of at most `tokens` tokens, padding included) depend on the rows that are asked for alone, so that a
    resumed run gets the same numbers.
    """

    def __init__(self, model: nn.Module, depth: int, pad_id: int, tokens: int, device: str) -> None:
        self._model: nn.Module | None = model
        self._depth = depth
        self._pad_id, self._tokens, self._device = pad_id, tokens, device
        self._packing = packing_of(model)
        self._kept: dict[Key, Tensor] = {}
        self._as_tuple = False

    @torch.no_grad()
    def keep(self, rows: Sequence[Row], each: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Computes `rows` in place of all that is kept; `each` is told how many batches of how many are done."""
        self._kept = {}
        distinct = list({_key(row, True): row for row in rows}.values())
        tokens = sum(map(len, {tuple(prompt) for prompt, _ in distinct})) + sum(len(c) for _, c in distinct)
        trunk = self._trunk()
        if tokens * trunk.config.hidden_size * trunk.dtype.itemsize > MOST_BYTES:
            return
        groups = microbatches([(row,) for row in distinct], self._tokens, self._packing)
        for done, group in enumerate(groups, start=1):
            chosen = [distinct[i] for i in group]
            batch = collate(chosen, self._pad_id, self._packing).to(self._device)
            hidden = self._run(batch)
            for line, start, stop, row, prompt in batch.segments:
                key = _key(chosen[row], prompt is not None)
                if key not in self._kept:
                    self._kept[key] = hidden[line, start:stop].clone()
            each(done, len(groups))

    def recall(self, batch: SequenceBatch, rows: Sequence[Row]) -> Recall | None:
        """The hidden states of the batch of these rows; None where one of them is not kept."""
        found = [self._kept.get(_key(rows[row], prompt is not None)) for _, _, _, row, prompt in batch.segments]
        known = [states for states in found if states is not None]
        if len(known) < len(found):
            return None
        hidden = known[0].new_zeros(*batch.input_ids.shape, known[0].shape[-1])
        for (line, start, stop, _, _), states in zip(batch.segments, known, strict=True):
            hidden[line, start:stop] = states
        return Recall(hidden, self._depth, self._as_tuple)

    def let_go(self) -> None:
        """Frees the model. What is kept stays; nothing more can be."""
        self._model = None

    def _trunk(self) -> PreTrainedModel:
        assert self._model is not None
        return trunk_of(self._model)

    def _run(self, batch: SequenceBatch) -> Tensor:
        """Hidden states [B, T, H] after the last frozen layer; the layers above it do not run."""

        def stop(_: nn.Module, __: Any, output: Any) -> None:
            self._as_tuple = isinstance(output, tuple)
            raise _ReachedError(output[0] if self._as_tuple else output)

        trunk = self._trunk()
        handle = decoder_layers(trunk)[self._depth - 1].register_forward_hook(stop)
        try:
            trunk(**model_inputs(trunk, batch))
        except _ReachedError as reached:
            return reached.hidden
        finally:
            handle.remove()
        raise AssertionError("the forward pass did not come to its layers")


class _ReachedError(Exception):
    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


def _key(row: Row, whole: bool) -> Key:
    """What the states of a row's completion are kept under (`whole`), or those of its prompt."""
    prompt, completion = row
    return (tuple(prompt), tuple(completion)) if whole else (tuple(prompt), None)
