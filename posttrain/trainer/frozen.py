"""Keeping the work of frozen layers for rows that go through a model more than once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn

from posttrain.errors import Interrupted
from posttrain.model.batch import Row
from posttrain.model.frozen import FrozenLayers
from posttrain.roles.batches import Forward
from posttrain.trainer.context import Context
from posttrain.trainer.progress import ProgressReport


def keep_frozen(context: Context, forward: Forward, model: nn.Module, depth: int, rows: Sequence[Row]) -> Forward:
    """`forward`, with what the first `depth` layers of `model` make of `rows` kept; nothing where no layer is frozen.

    Raises:
        Interrupted: the stage was asked to stop.
    """
    if depth == 0:
        return forward
    frozen = FrozenLayers(model, depth, forward.pad_id, forward.microbatch_tokens, forward.device)
    with ProgressReport(context.log, "frozen layers", 0, "batches") as progress:

        def each(done: int, total: int) -> None:
            if context.interrupted():
                raise Interrupted
            progress.advance(done, total=total)

        frozen.keep(rows, each)
    return dataclasses.replace(forward, frozen=frozen)
