"""evaluate: the SFT model or a run's model on the held-out prompts, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posttrain.checkpoint.shards import Shards
from posttrain.data.tables import EVALUATED, read_table, write_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.evaluation.metrics import absolute
from posttrain.evaluation.sampling import Examiner, held_out
from posttrain.evaluation.statistics import Estimate, write_estimates
from posttrain.model.load import load_causal_lm, load_reward_module
from posttrain.roles.batches import Forward
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

Row = dict[str, Any]

_SCORE_TOKENS = 8192  # of one forward pass of the reward model or the reference, padding included


def run(stage: Stage) -> None:
    """Sample, score, summarise. Without the input `post`, the model is the SFT model itself."""
    settings = stage.config.evaluation
    prompts = held_out(read_table(stage.inputs["data"] / "prompts.parquet"), settings.prompts)
    if len(prompts) < settings.prompts:
        stage.log.warning("evaluation.prompts is %d, the test split has %d", settings.prompts, len(prompts))
    rows = sample_and_score(stage, open_examiner(stage), prompts)
    metrics = absolute(rows, settings.bootstrap, stage.seed)
    write_table(stage.out / "samples.parquet", rows, EVALUATED)
    write_estimates(stage.out / "metrics.json", metrics)
    report(stage, metrics)


def open_examiner(stage: Stage) -> Examiner:
    """Load the three models: the one to examine, the SFT model, the reward model."""
    config = stage.config
    settings = config.evaluation
    sft = load_causal_lm(stage.inputs["sft"] / "model", config.model, stage.device)
    post = stage.inputs.get("post")
    policy = load_causal_lm(post / "model", config.model, stage.device) if post else sft
    reward = load_reward_module(stage.inputs["reward_model"] / "model", config.model, stage.device)
    tokenizer = load_tokenizer(stage.inputs["sft"] / "model")
    forward = Forward(tokenizer.pad_id, _SCORE_TOKENS, stage.device, settings.temperature)
    return Examiner(
        RolloutManager(TransformersEngine(policy)),
        Reference(sft, forward),
        RewardModel(reward.eval(), forward),
        tokenizer,
        Sampling(settings.max_new_tokens, settings.temperature, tokenizer.eos_id, settings.generation_batch),
        derive(stage.seed, "evaluate"),
    )


def sample_and_score(stage: Stage, examiner: Examiner, prompts: Sequence[Row]) -> list[Row]:
    """A row per prompt; finished batches survive a kill."""
    size = stage.config.evaluation.generation_batch
    starts = range(0, len(prompts), size)

    def work(index: int) -> list[Row]:
        rows = examiner.examine(prompts[starts[index] : starts[index] + size])
        stage.tracker.log(index + 1, {"rollout/reward": sum(row["reward"] for row in rows) / len(rows)})
        stage.log.info("batch %d of %d", index + 1, len(starts))
        return rows

    return Shards(stage.state / "shards").run(
        len(starts), work, stage.interrupted, lambda k: stage.log.info("resumed at step %d", k)
    )


def report(stage: Stage, metrics: dict[str, Estimate]) -> None:
    """Headline values and files for MLflow, and a line each for the log."""
    stage.tracker.summary({name: found.value for name, found in metrics.items()})
    for name in ("samples.parquet", "metrics.json"):
        stage.tracker.artifact(stage.out / name)
    for name, found in metrics.items():
        stage.log.info("%s %.4g [%.4g, %.4g]", name, found.value, found.low, found.high)
