"""Preference pairs and KTO labels: samples of the SFT model, ordered by the reward model."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any

from posttrain.checkpoint.shards import Shards
from posttrain.data.tables import RANKED_LABELS, RANKED_PAIRS, read_table, write_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model.load import load_reward_module
from posttrain.model.packing import microbatches
from posttrain.model.trees import packing_of
from posttrain.roles.batches import Forward
from posttrain.roles.reward_model import RewardModel
from posttrain.trainer.progress import ProgressReport

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

Row = dict[str, Any]


def run(stage: Stage) -> None:
    """Scores all samples, makes one pair of each prompt and one label of each sample where they say something."""
    samples = read_table(stage.inputs["samples"] / "samples.parquet").to_dict("records")
    for sample, score in zip(samples, score_samples(stage, samples), strict=True):
        sample["score"] = score
    finite = [sample for sample in samples if math.isfinite(sample["score"])]
    groups = [list(group) for _, group in groupby(finite, key=lambda sample: sample["id"])]
    pairs, pair_counts = make_pairs(groups, stage.config.rank.least_gap)
    labels, label_counts = make_labels(groups, stage.config.rank.least_label_gap)
    counts = {"not_finite": len(samples) - len(finite), **pair_counts, **label_counts}
    stage.log.info("%s", ", ".join(f"{name} {count}" for name, count in counts.items()))
    if not pairs or not labels:
        raise UserError(
            f"{stage.inputs['samples'] / 'samples.parquet'}: no prompt has two samples whose rewards differ by more "
            f"than rank.least_gap {stage.config.rank.least_gap:g}, or from their mean by more than "
            f"rank.least_label_gap {stage.config.rank.least_label_gap:g}; lower these, or raise "
            "sample.samples_per_prompt"
        )
    write_table(stage.out / "pairs.parquet", pairs, RANKED_PAIRS)
    write_table(stage.out / "labels.parquet", labels, RANKED_LABELS)
    stage.tracker.summary({f"rank/{name}": float(count) for name, count in counts.items()})


def score_samples(stage: Stage, samples: list[Row]) -> list[float]:
    """The reward of each sample, in length-sorted batches of `score_batch_tokens`."""
    folder = stage.inputs["reward_model"] / "model"
    budget = stage.config.rank.score_batch_tokens
    module = load_reward_module(folder, stage.config.model, stage.device)
    judge = RewardModel(module, Forward(load_tokenizer(folder).pad_id, budget, stage.device))
    rows = [(sample["prompt_ids"], sample["completion_ids"]) for sample in samples]
    batches = microbatches([(row,) for row in rows], budget, packing_of(module))
    with ProgressReport(stage.log, "rank", len(batches), "batches") as progress:

        def work(number: int) -> list[Row]:
            scores = judge.score([rows[i] for i in batches[number]]).tolist()
            progress.advance(number + 1)
            return [{"sample": i, "score": score} for i, score in zip(batches[number], scores, strict=True)]

        found = Shards(stage.state / "scores").run(
            len(batches), work, stage.interrupted, lambda k: stage.log.info("resumed at step %d", k)
        )
    return [row["score"] for row in sorted(found, key=lambda row: row["sample"])]


def make_pairs(groups: list[list[Row]], least_gap: float) -> tuple[list[Row], dict[str, int]]:
    """The best and the worst sample of each prompt, where they differ and the gap is above `least_gap`; counts."""
    pairs = []
    counts = {"pairs": 0, "pairs_equal": 0, "pairs_small_gap": 0}
    for group in groups:
        best = max(group, key=lambda sample: sample["score"])
        worst = min(group, key=lambda sample: sample["score"])
        gap = best["score"] - worst["score"]
        if best["completion_ids"] == worst["completion_ids"]:
            counts["pairs_equal"] += 1
        elif not gap > least_gap:
            counts["pairs_small_gap"] += 1
        else:
            counts["pairs"] += 1
            pairs.append(
                {
                    "id": best["id"],
                    "split": "train",
                    "prompt_ids": best["prompt_ids"],
                    "chosen_ids": best["completion_ids"],
                    "rejected_ids": worst["completion_ids"],
                    "gap": gap,
                    "chosen_score": best["score"],
                    "rejected_score": worst["score"],
                }
            )
    return pairs, counts


def make_labels(groups: list[list[Row]], least_gap: float) -> tuple[list[Row], dict[str, int]]:
    """Each sample is good above its prompt's mean and bad below; within `least_gap` of it, it is dropped; counts."""
    labels = []
    counts = {"desirable": 0, "undesirable": 0, "labels_small_gap": 0}
    for group in groups:
        mean = math.fsum(sample["score"] for sample in group) / len(group)
        for sample in group:
            if not abs(sample["score"] - mean) > least_gap:
                counts["labels_small_gap"] += 1
                continue
            counts["desirable" if sample["score"] > mean else "undesirable"] += 1
            labels.append(
                {
                    "id": f"{sample['id']}-{sample['sample']}",
                    "split": "train",
                    "prompt_ids": sample["prompt_ids"],
                    "completion_ids": sample["completion_ids"],
                    "label": sample["score"] > mean,
                    "score": sample["score"],
                }
            )
    return labels, counts
