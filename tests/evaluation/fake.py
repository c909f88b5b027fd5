"""A finished experiment's folders without any training: what `compare` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.config.schema import Flags
from posttrain.data.tables import EVALUATED, write_table
from posttrain.evaluation.comparison import Comparison, Experiment, compare
from posttrain.evaluation.entries import read_entries, read_records
from posttrain.evaluation.metrics import absolute
from posttrain.tracking.metrics_file import MetricsFile

WORDS = ("the", "film", "was", "not", "bad", "but", "its", "heart", "is", "in", "every", "scene", "<b>&", "'smile'</b>")


def rows(count: int, shift: float, seed: int) -> list[dict[str, Any]]:
    """Rows of samples.parquet whose rewards are normal around `shift`; prompts are the same for every call."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(count):
        ids = [int(token) for token in generator.integers(3, 60, size=int(generator.integers(2, 30)))]
        finish = "eos" if len(ids) < 24 else "length"
        made.append(
            {
                "id": f"p{index:04d}",
                "prompt_ids": [1, 10 + index % 7],
                "completion_ids": [*ids, 2] if finish == "eos" else ids,
                "finish": finish,
                "prompt": f"the film {index} <script>alert(1)</script>",
                "text": " ".join(WORDS[token % len(WORDS)] for token in ids),
                "reward": float(generator.normal(shift, 1)),
                "judge": float(generator.normal(shift / 2, 0.5)),
                "kl": float(abs(generator.normal(4 * abs(shift), 1))),
                "base_log_prob": float(generator.normal(-3 * len(ids), 1)),
            }
        )
    return made


def evaluation(folder: Path, name: str, shift: float, count: int = 128, judge: str | None = "vader") -> None:
    """An eval/<name> folder."""
    made = rows(count, shift, seed=len(name) + sum(map(ord, name)))
    made = made if judge else [{**row, "judge": None} for row in made]
    folder.mkdir(parents=True)
    write_table(folder / "samples.parquet", made, EVALUATED)
    metrics = {key: found.as_dict() for key, found in absolute(made, 200, 0).items()}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    record(folder, "evaluate", name, {"seed": 0, "evaluation": {"judge": judge, "prompts": count}})


def run(folder: Path, name: str, method: str, steps: int = 40, seed: int = 7, **settings: Any) -> None:
    """A runs/<name> folder with learning curves."""
    folder.mkdir(parents=True)
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        online = {"rollout/reward": 1 - 1 / step, "rollout/kl": 0.1 * step} if method in ("ppo", "grpo") else {}
        file.log(step, {"train/loss": 1 / step, **online})
    file.close()
    record(folder, "post_train", name, {"seed": seed, "run": {"method": method, "seed": seed, **settings}})


def record(folder: Path, stage: str, run: str | None, config: dict[str, Any] | None = None, **facts: Any) -> None:
    """manifest.json and run.json."""
    manifest = {
        "stage": stage,
        "run": run,
        "config": config or {},
        "image": "host",
        "device": "cpu",
        "threads": 1,
        "packages": {"torch": "2.13.0", "python": "3.11.7"},
    }
    known = {"seconds": 61.5, "host": "<host>", "started": "2026-01-01T00:00:00+00:00", "commit": "abc", "dirty": False}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "run.json").write_text(json.dumps({**known, "attempts": 1, "resumed_at": [], **facts}))


def experiment(
    root: Path,
    runs: dict[str, tuple[str, float]],
    count: int = 128,
    judge: str | None = "vader",
    seeds: dict[str, int] | None = None,
) -> dict[str, Path]:
    """results/<name> with an SFT baseline and `runs` (name -> method, reward); returns compare's inputs by name.

    `seeds` are those of runs whose seed is not 7.
    """
    evaluation(root / "eval" / "sft", "sft", 0.0, count, judge)
    inputs = {"eval-sft": root / "eval" / "sft"}
    for name, (method, shift) in runs.items():
        evaluation(root / "eval" / name, name, shift, count, judge)
        run(root / "runs" / name, name, method, seed=(seeds or {}).get(name, 7))
        inputs[f"eval-{name}"] = root / "eval" / name
        inputs[f"run-{name}"] = root / "runs" / name
    return inputs


def read(root: Path, resamples: int = 200, limits: Flags | None = None, prefix: str = "") -> Experiment:
    """The experiment in a folder that `experiment` made, its runs in the order of their names."""
    names = sorted(path.name for path in (root / "runs").iterdir())
    evaluations = {name: root / "eval" / name for name in ("sft", *names)}
    entries = read_entries(evaluations, {name: root / "runs" / name for name in names}, resamples, 0, prefix)
    folders = {name: root / name for name in ("data", "reward_model") if (root / name).is_dir()}
    return Experiment(root.name, entries, limits or Flags(), read_records(root, [*evaluations]), folders)


def comparison(root: Path, **options: Any) -> Comparison:
    """The comparison of that experiment alone."""
    return compare([read(root, **options)])
