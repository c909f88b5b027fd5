"""Rows that share lines under another transformers; run by the tests as `PYTHON -m tests.model.trees_check`.

Prints one JSON line per architecture: whether the rows were packed, and the largest gap between log-probabilities of
rows together and alone. Imports nothing but torch, transformers and the model package.
"""

from __future__ import annotations

import dataclasses
import json

import torch
import transformers

from posttrain.model.batch import collate, token_log_probs
from posttrain.model.packing import Row
from posttrain.model.trees import packing_of
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

PROMPTS = [list(range(3, 3 + length)) for length in (5, 1, 17)]
ROWS: list[Row] = [(prompt, list(range(20, 20 + n))) for prompt in PROMPTS for n in (9, 1, 4)]


def check(arch: str) -> dict[str, object]:
    """Rows in the lines that the model takes, against each alone without padding."""
    model = tiny_model(arch)
    packing = packing_of(model)
    if packing is not None:  # as if attention cost nothing
        packing = dataclasses.replace(packing, masked=0.0, causal=0.0)
    batch = collate(ROWS, 0, packing)
    together = token_log_probs(model, batch)
    alone = [token_log_probs(model, collate([row], 0))[0] for row in ROWS]
    gap = max((values[: len(one)] - one).abs().max().item() for values, one in zip(together, alone, strict=True))
    return {"arch": arch, "transformers": transformers.__version__, "packed": not batch.plain, "gap": gap}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    for name in ARCHITECTURES + WINDOWED:
        print(json.dumps(check(name)))
