"""The trainings of recompute/curves.py by our own trainers.

`python -m tests.oracles.our_curves` writes docs/results/curves.csv, from which docs/results/curves.py draws.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedModel

from posttrain.config.registry import entries, resolve
from posttrain.config.schema import SFT, RewardModel
from posttrain.data.tables import LABELS, PAIRS, write_table
from posttrain.model.export import export_model
from posttrain.model.heads import RewardModule
from posttrain.roles.batches import Forward
from posttrain.trainer.comparison import RewardPairs
from posttrain.trainer.parts import parts_of
from posttrain.trainer.supervised import SupervisedTokens
from posttrain.trainer.trainer import Job
from tests.model.tiny import tiny_tokenizer_dir
from tests.oracles.recompute.curves import COMMON, MINIBATCH, MODEL, PAD, SEED, SETTINGS, STEPS, examples, fill
from tests.oracles.stored import vectors
from tests.trainer.harness import make_stage

CSV = Path(__file__).parents[2] / "docs" / "results" / "curves.csv"
COLUMNS = ("training", "step", "trl", "posttrain")
FORWARD = Forward(PAD, microbatch_tokens=80)
"""So small that each minibatch is 2 to 4 micro-batches."""


def curve(kind: str, place: Path, *, first: int = STEPS, seed: int = SEED, **changed: Any) -> list[float]:
    """The losses of the first of STEPS steps, with `changed` settings. `place` is for what has to be in files."""
    sizes = {"steps": STEPS, "minibatch": MINIBATCH, "microbatch_tokens": FORWARD.microbatch_tokens}
    settings = {**COMMON, **SETTINGS[kind], **sizes, **changed}
    job = job_of(kind, settings, seed, place)
    return [job.step(step)[0]["train/loss"] for step in range(1, first + 1)]


def job_of(kind: str, settings: dict[str, Any], seed: int, place: Path) -> Job:
    if kind == "sft":
        rows = [(row.prompt, row.chosen) for row in examples()]
        return SupervisedTokens(network(LlamaForCausalLM), rows, SFT(**settings), FORWARD, seed)
    if kind == "reward_model":
        classifier: Any = network(LlamaForSequenceClassification)
        module = RewardModule(classifier.model, classifier.score)
        pairs = [((row.prompt, row.chosen), (row.prompt, row.rejected)) for row in examples()]
        return RewardPairs(module, pairs, [0.0] * len(pairs), RewardModel(**settings), FORWARD, seed)
    write_inputs(place)
    stage = make_stage(kind, place, place / "run", seed=seed, preferences="data", checkpoint_every=STEPS, **settings)
    job: Job = resolve(entries(stage.config.run)["job"])(stage, parts_of(stage.config.run, {}))
    return job


def network(cls: Any) -> PreTrainedModel:
    model: PreTrainedModel = cls(LlamaConfig(**MODEL, num_labels=1)).eval()
    fill(model)
    return model


def write_inputs(place: Path) -> None:
    """The model, and the rows as pairs and as labelled completions."""
    export_model(network(LlamaForCausalLM), tiny_tokenizer_dir(place / "data"), place / "sft" / "model")
    (place / "sft" / "manifest.json").write_text("{}")
    pairs, labels = [], []
    for number, row in enumerate(examples()):
        key = {"id": f"row{number}", "split": "train", "prompt_ids": row.prompt}
        pairs.append({**key, "chosen_ids": row.chosen, "rejected_ids": row.rejected, "gap": 1.0})
        labels.append({**key, **dict(zip(("completion_ids", "label"), row.labelled(number), strict=True))})
    write_table(place / "data" / "pairs.parquet", pairs, PAIRS)
    write_table(place / "data" / "labels.parquet", labels, LABELS)


def main() -> None:
    """Trains all of them."""
    with CSV.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for kind, theirs in vectors("trl_curves")["losses"].items():
            with tempfile.TemporaryDirectory() as place:
                ours = curve(kind, Path(place))
            table.writerows((kind, step, *pair) for step, pair in enumerate(zip(theirs, ours, strict=True), 1))


if __name__ == "__main__":
    main()
