"""Completions of the held-out prompts by one model, and their log-probabilities under any model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from posttrain.data.tokenizer import Tokenizer
from posttrain.errors import UserError
from posttrain.model.batch import Row as Ids
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager

Row = dict[str, Any]


def held_out(prompts: pd.DataFrame, wanted: int) -> list[Row]:
    """At most `wanted` prompts of the test split, the same for every model: those whose ids have the lowest hashes.

    A prompt that is added to the data so replaces one at most. Raises UserError where the test split is empty.
    """
    rows: list[Row] = [dict(row) for row in prompts[prompts["split"] == "test"].to_dict("records")]
    if not rows:
        raise UserError("prompts.parquet has no prompt in its test split: add data, or raise data.split.test")
    return sorted(rows, key=lambda row: hashlib.sha256(str(row["id"]).encode()).digest())[:wanted]


class Writer:
    """Completes each prompt once.

    The random numbers of a sample depend on `seed` and the prompt's id alone: models that are compared get the same
    ones, which makes their comparison a paired one.
    """

    def __init__(self, rollout: RolloutManager, tokenizer: Tokenizer, sampling: Sampling, seed: int) -> None:
        self.rollout = rollout
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.seed = seed

    def write(self, prompts: Sequence[Row]) -> list[Row]:
        """One row for each prompt (a row of prompts.parquet), in order.

        `sampled` are the log-probabilities that the generator gave the completion's tokens.
        """
        requests = [(prompt["id"], prompt["prompt_ids"]) for prompt in prompts]
        samples = self.rollout.generate(requests, 1, self.sampling, self.seed)
        return [
            {
                "id": prompt["id"],
                "prompt_ids": sample.prompt_ids,
                "completion_ids": sample.completion_ids,
                "finish": sample.finish,
                "prompt": prompt["text"],
                "text": self.tokenizer.decode(sample.completion_ids),
                "sampled": sample.log_probs,
            }
            for prompt, sample in zip(prompts, samples, strict=True)
        ]


def ids(rows: Sequence[Row]) -> list[Ids]:
    """(prompt ids, completion ids) of each row: what roles read."""
    return [(row["prompt_ids"], row["completion_ids"]) for row in rows]


def sums(log_probs: Tensor) -> list[float]:
    """From log-probabilities of tokens [N, R], zero where there is no token, to those of completions, in nats."""
    found: list[float] = log_probs.double().sum(-1).tolist()
    return found


def logprob_gap(rows: Sequence[Row], log_probs: Tensor) -> float:
    """Mean distance per token of what the generator said, `sampled`, from `log_probs` [N, R] of the same model."""
    gaps = [
        abs(ours - theirs)
        for row, line in zip(rows, log_probs.tolist(), strict=True)
        for ours, theirs in zip(row["sampled"], line, strict=False)
    ]
    return sum(gaps) / len(gaps)
