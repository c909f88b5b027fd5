"""From a model's scored samples to its metrics, and from two models' to their paired comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posttrain.errors import UserError
from posttrain.evaluation import statistics
from posttrain.evaluation.diversity import distinct_2, repetition
from posttrain.evaluation.statistics import Estimate, Floats
from posttrain.runtime.seeds import derive

PAIRED = ("eval/reward_gain", "eval/judge_gain", "eval/win_rate")  # what `paired` gives; the second with a judge only

Row = Mapping[str, Any]


def absolute(rows: Sequence[Row], resamples: int, seed: int) -> dict[str, Estimate]:
    """Metrics of one model. `rows` have the columns of an evaluation's samples.parquet.

    eval/reward: mean score of the reward model. eval/judge: mean score of the independent judge, where there is one.
    eval/kl: nats per sequence, eval/kl_per_token: nats per token; Monte Carlo estimates of KL(model || SFT) by
    log p_model - log p_sft of the sampled tokens (k1 in Schulman 2020, "Approximating KL divergence"). eval/kl_error:
    the standard error of eval/kl, a number without an interval.
    eval/perplexity: exp(-sum log p_base / sum tokens) over all samples, where the base model is a trained one.
    eval/length: tokens, terminator included. eval/truncated: share cut by the length limit. eval/distinct_2 and
    eval/repetition: see `diversity`.
    """
    lengths = [len(row["completion_ids"]) for row in rows]
    texts = [_without_end(row) for row in rows]

    def mean(name: str, values: Sequence[float]) -> Estimate:
        return statistics.mean(values, resamples, derive(seed, "bootstrap", name))

    def per_token(name: str, values: Sequence[float]) -> Estimate:
        return statistics.ratio(values, lengths, resamples, derive(seed, "bootstrap", name))

    kl, judge, base = [row["kl"] for row in rows], _scores(rows, "judge"), _scores(rows, "base_log_prob")
    found = {"eval/reward": mean("reward", [row["reward"] for row in rows])}
    if judge is not None:
        found["eval/judge"] = mean("judge", judge)
    found |= {
        "eval/kl": mean("kl", kl),
        "eval/kl_error": statistics.standard_error(kl),
        "eval/kl_per_token": per_token("kl_per_token", kl),
    }
    if base is not None:
        found["eval/perplexity"] = statistics.exponential(per_token("perplexity", [-value for value in base]))
    return found | {
        "eval/length": mean("length", lengths),
        "eval/truncated": mean("truncated", [row["finish"] == "length" for row in rows]),
        "eval/distinct_2": distinct_2(texts),
        "eval/repetition": mean("repetition", [repetition(ids) for ids in texts]),
    }


def paired(rows: Sequence[Row], baseline: Sequence[Row], name: str, resamples: int, seed: int) -> dict[str, Estimate]:
    """Metrics of a model against the baseline's samples of the same prompts.

    eval/reward_gain and, with a judge, eval/judge_gain: mean differences of the scores. eval/win_rate: share of prompts
    where the model's score is the higher one, ties half; the score is the judge's where there is one, else the reward.
    Raises UserError where the prompts are not the same, or a judge scored only one of the two.
    """
    ours, theirs = {row["id"]: row for row in rows}, {row["id"]: row for row in baseline}
    same = ours.keys() == theirs.keys()
    if not same or any(list(ours[key]["prompt_ids"]) != list(theirs[key]["prompt_ids"]) for key in ours):
        raise UserError(f"{name} and its baseline were evaluated on different prompts: run both evaluations again")
    matched = [ours[key] for key in theirs]

    def mean(metric: str, values: Floats) -> Estimate:
        return statistics.mean(values, resamples, derive(seed, "bootstrap", metric))

    mine, other = _column(matched, "reward"), _column(baseline, "reward")
    found = {"eval/reward_gain": mean("reward_gain", mine - other)}
    judged = [_scores(part, "judge") is not None for part in (matched, baseline)]
    if any(judged):
        if not all(judged):
            raise UserError(f"a judge scored only one of {name} and its baseline: run both evaluations again")
        mine, other = _column(matched, "judge"), _column(baseline, "judge")
        found["eval/judge_gain"] = mean("judge_gain", mine - other)
    return found | {"eval/win_rate": mean("win_rate", statistics.wins(mine, other))}


def _column(rows: Sequence[Row], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=np.float64)


def _scores(rows: Sequence[Row], name: str) -> list[float] | None:
    """A nullable column: the stage fills all of it or nothing."""
    values = [row[name] for row in rows]
    return None if None in values else values


def _without_end(row: Row) -> list[int]:
    ids = list(row["completion_ids"])
    return ids[:-1] if row["finish"] == "eos" else ids
