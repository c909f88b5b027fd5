"""Training stages on tiny models and made-up rows, without the runner, for the tests of trainers and stages."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter

from posttrain.config.runs import Run
from posttrain.config.schema import SFT, Model, Rank, RewardModel, Sample
from posttrain.data.tables import LABELS, PAIRS, PROMPTS, SAMPLES, write_table
from posttrain.data.tables import SFT as SFT_TABLE
from posttrain.errors import Interrupted
from posttrain.model.export import export_model, export_reward_module
from posttrain.model.heads import RewardModule
from posttrain.runtime.signals import Interruption
from tests.model.tiny import tiny_model, tiny_tokenizer_dir

EOS = 2


@dataclass
class FakeTracker:
    """Keeps metrics and sums up attempts in a file, as the real one does; may kill the process at a step."""

    path: Path
    kill_at: int | None = None
    kill_with: signal.Signals = signal.SIGKILL
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.steps[step] = metrics
        note(self.path, f"step {step}")
        if step == self.kill_at:
            os.kill(os.getpid(), self.kill_with)

    def summary(self, values: dict[str, float]) -> None:
        self.final.update(values)


@dataclass
class FakeStage:
    """What a stage's body sees of its runner."""

    name: str
    config: Any
    inputs: dict[str, Path]
    out: Path
    state: Path
    tracker: FakeTracker
    log: logging.Logger
    seed: int = 0
    device: str = "cpu"
    run_name: str | None = None
    interrupted: Callable[[], bool] = lambda: False

    def metric(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in sorted(self.tracker.steps.items())]


PAIR_RUN = {"steps": 10, "minibatch": 4, "microbatch_tokens": 80, "checkpoint_every": 3, "preferences": "data"}
ONLINE_RUN = {
    "steps": 10,
    "minibatch": 4,
    "microbatch_tokens": 60,
    "checkpoint_every": 3,
    "prompts_per_step": 6,
    "max_new_tokens": 6,
    "epochs": 2,
}
GROUP_RUN = {
    "steps": 10,
    "minibatch": 8,
    "microbatch_tokens": 60,
    "checkpoint_every": 3,
    "prompts_per_step": 3,
    "max_new_tokens": 6,
    "samples_per_prompt": 4,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sft": {"steps": 10, "minibatch": 4, "microbatch_tokens": 60, "checkpoint_every": 3},
    "reward_model": {"steps": 10, "minibatch": 4, "microbatch_tokens": 80, "checkpoint_every": 3},
    **dict.fromkeys(["dpo", "cdpo", "robust", "ipo", "hinge", "simpo", "orpo", "cpo", "dpop"], PAIR_RUN),
    "kto": {**PAIR_RUN, "microbatch_tokens": 60},
    "bco": {**PAIR_RUN, "microbatch_tokens": 60},
    **dict.fromkeys(["ppo", "remax", "reinforce++"], ONLINE_RUN),
    **dict.fromkeys(["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++_baseline", "opo"], GROUP_RUN),
    **dict.fromkeys(["raft", "online_dpo"], GROUP_RUN),
    "sample": {"prompts": 20, "samples_per_prompt": 3, "max_new_tokens": 6, "generation_batch": 6},
    "rank": {"score_batch_tokens": 60},
}  # fmt: skip
MODULES = {"sft": "sft", "reward_model": "reward_model", "sample": "sample", "rank": "rank"}


def make_stage(
    kind: str, world: Path, place: Path, kill_at: int | None = None, seed: int = 0, **overrides: Any
) -> FakeStage:
    """A stage of `kind` (a stage or a method) that reads the inputs in `world` and writes under `place`."""
    config: dict[str, Any] = {"model": overrides.pop("model", Model(base="a folder"))}
    settings = {**SETTINGS[kind], **overrides}
    if kind in MODULES:
        sections: dict[str, Any] = {"sft": SFT, "reward_model": RewardModel, "sample": Sample, "rank": Rank}
        config[kind] = sections[kind](**settings)
    else:
        config["run"] = TypeAdapter(Run).validate_python({"method": kind, **settings})
    names = {"model": "sft", "data": "data", "sft": "sft", "reward_model": "reward_model", "samples": "samples"}
    (place / "out").mkdir(parents=True, exist_ok=True)
    (place / "state").mkdir(parents=True, exist_ok=True)
    stage = FakeStage(
        name=kind,
        config=SimpleNamespace(**config),
        inputs={name: world / folder for name, folder in names.items()},
        out=place / "out",
        state=place / "state",
        tracker=FakeTracker(place / "attempts.log", kill_at),
        log=logging.getLogger(f"posttrain.{kind}"),
        seed=seed,
    )
    if kind in ("sample", "rank"):
        stage.interrupted = counting(stage, kill_at)
    return stage


def counting(stage: FakeStage, kill_at: int | None) -> Callable[[], bool]:
    """Asked before each batch: notes it, and kills the process before batch `kill_at` of this attempt."""
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        if asked == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        note(stage.tracker.path, f"batch {asked}")
        return False

    return interrupted


def note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text + "\n")


def run_stage(stage: FakeStage) -> FakeStage:
    """Runs the stage's body in this process."""
    importlib.import_module(f"posttrain.stages.{MODULES.get(stage.name, 'post_train')}").run(stage)
    return stage


def run_in_process(
    kind: str,
    world: Path,
    place: Path,
    kill_at: int | None = None,
    kill_with: signal.Signals = signal.SIGKILL,
    **overrides: Any,
) -> int:
    """Runs the stage in a process of its own; its log goes to place/log. Returns the exit status (-9: killed)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.harness", "posttrain.stages.post_train"])
    process = context.Process(target=_attempt, args=(kind, world, place, kill_at, kill_with, overrides))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the stage did not end within 120 s"
    return process.exitcode


def _attempt(
    kind: str,
    world: Path,
    place: Path,
    kill_at: int | None,
    kill_with: signal.Signals,
    overrides: dict[str, Any],
) -> None:
    place.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=place / "log", level=logging.INFO, format="%(message)s")
    stage = make_stage(kind, world, place, kill_at, **overrides)
    stage.tracker.kill_with = kill_with
    if kill_with != signal.SIGKILL:
        stage.interrupted = Interruption().install()
    try:
        run_stage(stage)
    except Interrupted:
        raise SystemExit(128 + kill_with) from None


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file in `folder`, by relative path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def make_world(folder: Path, arch: str = "llama") -> Path:
    """Inputs of every training stage: data/, sft/ (a random model) and reward_model/, samples/."""
    tokenizer = tiny_tokenizer_dir(folder / "data")
    for name in ("sft", "reward_model"):
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text(json.dumps({"stage": name, "arch": arch}))
    model = tiny_model(arch, seed=1)
    export_model(model, tokenizer, folder / "sft" / "model")
    judge = RewardModule.from_causal_lm(tiny_model(arch, seed=2), seed=3)
    export_reward_module(judge, tokenizer, folder / "reward_model" / "model")
    make_tables(folder)
    return folder


def make_tables(folder: Path) -> None:
    """Rows of unequal lengths. Good completions are made of even ids, bad ones of odd ids."""
    draw = random.Random(5)

    def ids(low: int, high: int, parity: int | None = None) -> list[int]:
        found = [draw.randrange(10, 200) for _ in range(draw.randint(low, high))]
        return found if parity is None else [2 * (i // 2) + parity for i in found]

    splits = ["train"] * 40 + ["validation"] * 8
    prompts = [[1, *ids(1, 6)] for _ in splits]
    good = [[*ids(2, 8, 0), EOS] for _ in splits]
    bad = [[*ids(2, 8, 1), EOS] for _ in splits]
    keys = [{"id": f"row{i}", "split": split} for i, split in enumerate(splits)]
    rows = list(zip(keys, prompts, good, bad, strict=True))
    data = folder / "data"
    sft = [{**key, "prompt_ids": p, "completion_ids": g} for key, p, g, _ in rows]
    write_table(data / "sft.parquet", sft, SFT_TABLE)
    write_table(data / "prompts.parquet", [{**key, "prompt_ids": p, "text": "x"} for key, p, _, _ in rows], PROMPTS)
    pairs = [{**key, "prompt_ids": p, "chosen_ids": g, "rejected_ids": b, "gap": 1.0} for key, p, g, b in rows]
    write_table(data / "pairs.parquet", pairs, PAIRS)
    labels = [
        {"id": f"{key['id']}-{label}", "split": key["split"], "prompt_ids": p, "completion_ids": c, "label": label}
        for key, p, g, b in rows
        for c, label in ((g, True), (b, False))
    ]
    write_table(data / "labels.parquet", labels, LABELS)
    (folder / "samples").mkdir()
    samples = [
        {"id": key["id"], "sample": i, "prompt_ids": p, "completion_ids": c, "finish": "eos", "text": "x"}
        for key, p, g, b in rows
        for i, c in enumerate((g, b, g[1:]))
    ]
    write_table(folder / "samples" / "samples.parquet", samples, SAMPLES)
