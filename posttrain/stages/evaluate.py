"""evaluate: the SFT model or a run's model on the held-out prompts, with intervals.

One pass over the prompts for each thing that is measured, so that one model is in memory at a time: the policy writes
and scores its own completions, then the SFT model, the reward model, the base model and the judge score them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.checkpoint.shards import Shards
from posttrain.data.tables import EVALUATED, read_table, write_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.evaluation.judge import VADER, open_judge
from posttrain.evaluation.metrics import absolute
from posttrain.evaluation.sampling import Writer, held_out, ids, logprob_gap, sums
from posttrain.evaluation.scoring import Scoring
from posttrain.evaluation.statistics import Estimate, write_estimates
from posttrain.model.load import load_causal_lm
from posttrain.model.tiny import BUILT_IN
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

Row = dict[str, Any]
Work = Callable[[int, Sequence[Row]], list[Row]]
"""What a pass does with a batch (its number, its rows): returns what it adds to each row, as JSON values."""


def run(stage: Stage) -> None:
    """Sample, score, summarise. Without the input `post`, the model is the SFT model itself."""
    settings = stage.config.evaluation
    prompts = held_out(read_table(stage.inputs["data"] / "prompts.parquet"), settings.prompts)
    if len(prompts) < settings.prompts:
        stage.log.warning("evaluation.prompts is %d, the test split has %d", settings.prompts, len(prompts))
    rows = [table_row(row) for row in sample_and_score(stage, prompts)]
    metrics = absolute(rows, settings.bootstrap, stage.seed)
    write_table(stage.out / "samples.parquet", rows, EVALUATED)
    write_estimates(stage.out / "metrics.json", metrics)
    report(stage, metrics)


def sample_and_score(stage: Stage, prompts: Sequence[Row]) -> list[Row]:
    """A row per prompt with what every pass adds.

    The policy's log-probabilities are computed as the reference's are, in the same batches: what rounding there is
    cancels in their difference, and a model has no KL to itself. Those of the generator are compared with them.
    """
    sft, post = stage.inputs["sft"] / "model", stage.inputs.get("post")
    policy = post / "model" if post else sft
    passes = Passes(stage, stage.config.evaluation.generation_batch)
    rows = passes.run("completions", prompts, lambda: writing(stage, policy))
    scoring, temperature = Scoring(stage, policy, rows), stage.config.evaluation.temperature
    rows = passes.run("policy", rows, lambda: own_log_probs(stage, scoring.language_model(policy, temperature)))
    if post:
        rows = passes.run("reference", rows, lambda: log_probs(scoring.language_model(sft, temperature), "reference"))
    rows = passes.run("reward", rows, lambda: rewards(stage, scoring.reward_model()))
    if stage.config.model.base != BUILT_IN:  # that one is untrained: what it finds likely says nothing
        base = stage.inputs["model"] / "model"
        rows = passes.run("base", rows, lambda: log_probs(scoring.language_model(base, 1.0), "base_log_prob"))
    judge = stage.config.evaluation.judge
    return rows if judge is None else passes.run("judge", rows, lambda: judging(stage, judge))


def table_row(row: Row) -> Row:
    """The row of samples.parquet."""
    kl = row["policy"] - row.get("reference", row["policy"])
    known = {"judge": None, "base_log_prob": None, **row, "kl": kl}
    return {name: known[name] for name in EVALUATED.names}


class Passes:
    """Passes over the same batches of rows, one after the other; finished batches of each survive a kill."""

    def __init__(self, stage: Stage, size: int) -> None:
        self.stage = stage
        self.size = size
        self.before = 0  # batches of the passes that are through
        self.worked = False

    def run(self, name: str, rows: Sequence[Row], begin: Callable[[], Work]) -> list[Row]:
        """The rows with what the pass adds to each. `begin` loads what it needs, where a batch is left to be done."""
        starts = range(0, len(rows), self.size)
        work = functools.cache(begin)

        def batch(index: int) -> list[Row]:
            self._tell(self.before + index)
            found = work()(index, rows[starts[index] : starts[index] + self.size])
            self.stage.log.info("%s: batch %d of %d", name, index + 1, len(starts))
            return found

        shards = Shards(self.stage.state / "passes" / name)
        found = shards.run(len(starts), batch, self.stage.interrupted, lambda k: None)
        self.before += len(starts)
        return [{**row, **added} for row, added in zip(rows, found, strict=True)]

    def _tell(self, finished: int) -> None:
        """Before this attempt's first batch: how many there were already."""
        if finished and not self.worked:
            self.stage.log.info("resumed at step %d", finished)
        self.worked = True


def writing(stage: Stage, folder: Path) -> Work:
    """The completions of the model in `folder`."""
    settings = stage.config.evaluation
    tokenizer = load_tokenizer(stage.inputs["sft"] / "model")
    model = load_causal_lm(folder, stage.config.model.for_generation(), stage.device)
    sampling = Sampling(settings.max_new_tokens, settings.temperature, tokenizer.eos_id, settings.generation_batch)
    writer = Writer(RolloutManager(TransformersEngine(model)), tokenizer, sampling, derive(stage.seed, "evaluate"))
    return lambda index, rows: writer.write(rows)


def own_log_probs(stage: Stage, model: Reference) -> Work:
    """`policy`: log p of each completion under the model that wrote it."""

    def work(index: int, rows: Sequence[Row]) -> list[Row]:
        found = model.log_probs(ids(rows))
        stage.tracker.log(index + 1, {"rollout/logprob_gap": logprob_gap(rows, found)})
        return [{"policy": value} for value in sums(found)]

    return work


def log_probs(model: Reference, name: str) -> Work:
    """`name`: log p of each completion under the model."""
    return lambda index, rows: [{name: value} for value in sums(model.log_probs(ids(rows)))]


def rewards(stage: Stage, model: RewardModel) -> Work:
    """`reward`: the reward model's score."""

    def work(index: int, rows: Sequence[Row]) -> list[Row]:
        found = model.score(ids(rows)).tolist()
        stage.tracker.log(index + 1, {"rollout/reward": sum(found) / len(found)})
        return [{"reward": value} for value in found]

    return work


def judging(stage: Stage, judge: str) -> Work:
    """`judge`: the independent judge's score."""
    score = open_judge(judge, None if judge == VADER else stage.inputs["judge"])

    def work(index: int, rows: Sequence[Row]) -> list[Row]:
        found = score([row["prompt"] for row in rows], [row["text"] for row in rows])
        return [{"judge": value} for value in found]

    return work


def report(stage: Stage, metrics: dict[str, Estimate]) -> None:
    """Headline values and files for MLflow, and a line each for the log."""
    stage.tracker.summary({name: found.value for name, found in metrics.items()})
    for name in ("samples.parquet", "metrics.json"):
        stage.tracker.artifact(stage.out / name)
    for name, found in metrics.items():
        stage.log.info("%s %.4g [%.4g, %.4g]", name, found.value, found.low, found.high)
