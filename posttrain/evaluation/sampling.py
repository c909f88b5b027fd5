"""Samples of a model on the held-out prompts, scored by the reward model and measured against the SFT model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pandas as pd

from posttrain.data.tokenizer import Tokenizer
from posttrain.errors import UserError
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.buffer import Sample
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


class Examiner:
    """Samples once for each prompt and scores what came.

    The random numbers of a sample depend on `seed` and the prompt's id alone: models that are compared get the same
    ones, which makes their comparison a paired one.
    """

    def __init__(
        self,
        rollout: RolloutManager,
        reference: Reference,
        reward_model: RewardModel,
        tokenizer: Tokenizer,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.rollout = rollout
        self.reference = reference
        self.reward_model = reward_model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.seed = seed

    def examine(self, prompts: Sequence[Row]) -> list[Row]:
        """One row of an evaluation's samples.parquet for each prompt (a row of prompts.parquet), in order."""
        requests = [(prompt["id"], prompt["prompt_ids"]) for prompt in prompts]
        samples = self.rollout.generate(requests, 1, self.sampling, self.seed)
        pairs = [(sample.prompt_ids, sample.completion_ids) for sample in samples]
        rewards = self.reward_model.score(pairs).tolist()
        reference = self.reference.log_probs(pairs).double().sum(-1).tolist()
        return [self._row(*parts) for parts in zip(prompts, samples, rewards, reference, strict=True)]

    def _row(self, prompt: Row, sample: Sample, reward: float, reference: float) -> Row:
        return {
            "id": prompt["id"],
            "prompt_ids": sample.prompt_ids,
            "completion_ids": sample.completion_ids,
            "finish": sample.finish,
            "prompt": prompt["text"],
            "text": self.tokenizer.decode(sample.completion_ids),
            "reward": reward,
            "judge": None,
            "kl": sum(sample.log_probs) - reference,
            "base_log_prob": None,
        }
