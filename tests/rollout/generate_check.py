"""Generation under another transformers; run by the tests as `PYTHON -m tests.rollout.generate_check`.

Prints one JSON line per architecture: whether greedy ids equal transformers' own, and the largest gap between the
engine's log-probabilities and the trainer's. Imports nothing but torch, transformers and the engine.
"""

from __future__ import annotations

import json

import torch
import transformers

from posttrain.errors import UserError
from posttrain.model.batch import collate, token_log_probs
from posttrain.rollout.decoder import decoder_for
from posttrain.rollout.engine import Request, Sampling
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import ARCHITECTURES, tiny_model

PROMPTS = [list(range(3, 3 + length)) for length in (5, 1, 17, 9, 9, 9)]


def check(arch: str) -> dict[str, object]:
    """The engine against transformers' own `generate` and the trainer's log-probabilities."""
    model = tiny_model(arch)
    engine = TransformersEngine(model)
    requests = [Request(ids, seed) for seed, ids in enumerate(PROMPTS)]
    greedy = engine.generate(requests, Sampling(12, 1.0, eos_id=2, batch=3, greedy=True))
    arguments = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0}
    theirs = [model.generate(torch.tensor([ids]), **arguments)[0, len(ids) :].tolist() for ids in PROMPTS]
    # An end token that a random model meets soon, so that rows retire and others take their places.
    sampled = engine.generate(requests, Sampling(12, 2.0, eos_id=greedy[0].ids[0], batch=4))
    batch = collate([(ids, c.ids) for ids, c in zip(PROMPTS, sampled, strict=True)], pad_id=0)
    trainer = token_log_probs(model, batch, 2.0)
    gaps = [
        (trainer[row, : len(c.ids)] - torch.tensor(c.log_probs)).abs().max().item() for row, c in enumerate(sampled)
    ]
    return {
        "arch": arch,
        "transformers": transformers.__version__,
        "greedy": [c.ids for c in greedy] == theirs,
        "gap": max(gaps),
        "lengths": [len(c.ids) for c in sampled],
        "decoder": type(decoder_for(model, 4, 17, 12)).__name__,
    }


def beyond_the_window() -> dict[str, object]:
    """What a Gemma 2 with a window of 8 tokens says to 12 new ones."""
    try:
        return check("gemma2") | {"refused": None}
    except UserError as error:
        return {"arch": "gemma2", "refused": str(error)}


if __name__ == "__main__":
    for name in ARCHITECTURES:
        print(json.dumps(check(name)))
    print(json.dumps(beyond_the_window()))
