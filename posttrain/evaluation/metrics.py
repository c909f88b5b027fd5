"""From a model's scored samples to its metrics, and from two models' to their paired comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posttrain.errors import UserError
from posttrain.evaluation import statistics
from posttrain.evaluation.diversity import distinct_2, repetition
from posttrain.evaluation.statistics import Estimate
from posttrain.runtime.seeds import derive

PAIRED = ("eval/reward_gain", "eval/win_rate")  # what `paired` gives

Row = Mapping[str, Any]


def absolute(rows: Sequence[Row], resamples: int, seed: int) -> dict[str, Estimate]:
    """Metrics of one model. `rows` have the columns of an evaluation's samples.parquet.

    eval/reward: mean score. eval/kl: nats per sequence, eval/kl_per_token: nats per token; Monte Carlo estimates of
    KL(model || SFT) by log p_model - log p_sft of the sampled tokens (k1 in Schulman 2020, "Approximating KL
    divergence").
    eval/length: tokens, terminator included. eval/truncated: share cut by the length limit. eval/distinct_2 and
    eval/repetition: see `diversity`.
    """
    lengths = [len(row["completion_ids"]) for row in rows]
    texts = [_without_end(row) for row in rows]

    def mean(name: str, values: Sequence[float]) -> Estimate:
        return statistics.mean(values, resamples, derive(seed, "bootstrap", name))

    kl = [row["kl"] for row in rows]
    return {
        "eval/reward": mean("reward", [row["reward"] for row in rows]),
        "eval/kl": mean("kl", kl),
        "eval/kl_per_token": statistics.ratio(kl, lengths, resamples, derive(seed, "bootstrap", "kl_per_token")),
        "eval/length": mean("length", lengths),
        "eval/truncated": mean("truncated", [row["finish"] == "length" for row in rows]),
        "eval/distinct_2": distinct_2(texts),
        "eval/repetition": mean("repetition", [repetition(ids) for ids in texts]),
    }


def paired(rows: Sequence[Row], baseline: Sequence[Row], name: str, resamples: int, seed: int) -> dict[str, Estimate]:
    """Metrics of a model against the baseline's samples of the same prompts.

    eval/reward_gain: mean difference of the scores; eval/win_rate: share of prompts where the model's score is the
    higher one, ties half. Raises UserError where the prompts are not the same.
    """
    ours, theirs = {row["id"]: row for row in rows}, {row["id"]: row for row in baseline}
    same = ours.keys() == theirs.keys()
    if not same or any(list(ours[key]["prompt_ids"]) != list(theirs[key]["prompt_ids"]) for key in ours):
        raise UserError(f"{name} and its baseline were evaluated on different prompts: run both evaluations again")
    mine = np.array([ours[key]["reward"] for key in theirs])
    other = np.array([theirs[key]["reward"] for key in theirs])
    return {
        "eval/reward_gain": statistics.mean(mine - other, resamples, derive(seed, "bootstrap", "reward_gain")),
        "eval/win_rate": statistics.mean(
            statistics.wins(mine, other), resamples, derive(seed, "bootstrap", "win_rate")
        ),
    }


def _without_end(row: Row) -> list[int]:
    ids = list(row["completion_ids"])
    return ids[:-1] if row["finish"] == "eos" else ids
