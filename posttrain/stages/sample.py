"""Completions of the SFT model for training prompts, from which `rank` makes preferences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posttrain.checkpoint.shards import Shards
from posttrain.data.tables import SAMPLES, write_table
from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.load import load_causal_lm
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import Prompt, RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive
from posttrain.trainer.order import permutation
from posttrain.trainer.progress import ProgressReport
from posttrain.trainer.rows import training_prompts

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage


def run(stage: Stage) -> None:
    """Chooses prompts, samples them batch by batch, writes samples.parquet in the prompts' order."""
    prompts = choose_prompts(stage)
    rows = sample(stage, prompts)
    place = {prompt_id: i for i, (prompt_id, _) in enumerate(prompts)}
    rows.sort(key=lambda row: (place[row["id"]], row["sample"]))
    write_table(stage.out / "samples.parquet", rows, SAMPLES)
    truncated = sum(row["finish"] == "length" for row in rows) / len(rows)
    length = sum(len(row["completion_ids"]) for row in rows) / len(rows)
    stage.tracker.summary({"rollout/truncated": truncated, "rollout/length": length})


def choose_prompts(stage: Stage) -> list[Prompt]:
    """`sample.prompts` training prompts chosen by the seed, in the data's order; all of them where there are fewer."""
    found, wanted = training_prompts(stage), stage.config.sample.prompts
    if len(found) < wanted:
        stage.log.info("%d training prompts, fewer than sample.prompts %d: all are used", len(found), wanted)
    chosen = permutation(len(found), stage.seed, "sampled prompts")[:wanted]
    return [found[i] for i in sorted(chosen)]


def sample(stage: Stage, prompts: list[Prompt]) -> list[dict[str, Any]]:
    """A row of samples.parquet for every sample; prompts of similar length go through generation together."""
    settings = stage.config.sample
    folder = stage.inputs["sft"] / "model"
    tokenizer = load_tokenizer(folder)
    rollout = RolloutManager(
        TransformersEngine(load_causal_lm(folder, stage.config.model.for_generation(), stage.device))
    )
    sampling = Sampling(settings.max_new_tokens, settings.temperature, tokenizer.eos_id, settings.generation_batch)
    by_length = sorted(prompts, key=lambda prompt: len(prompt[1]))
    size = max(1, settings.generation_batch // settings.samples_per_prompt)
    batches = [by_length[i : i + size] for i in range(0, len(by_length), size)]
    seed = derive(stage.seed, "sample")
    with ProgressReport(stage.log, "sample", len(batches), "batches") as progress:

        def work(number: int) -> list[dict[str, Any]]:
            samples = rollout.generate(batches[number], settings.samples_per_prompt, sampling, seed)
            progress.advance(number + 1)
            return [
                {
                    "id": s.prompt_id,
                    "sample": s.index,
                    "prompt_ids": s.prompt_ids,
                    "completion_ids": s.completion_ids,
                    "finish": s.finish,
                    "text": tokenizer.decode(s.completion_ids),
                }
                for s in samples
            ]

        return Shards(stage.state / "samples").run(
            len(batches), work, stage.interrupted, lambda k: stage.log.info("resumed at step %d", k)
        )
