"""A finished experiment's folders without any training: what `compare` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.tables import EVALUATED, write_table
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


def evaluation(folder: Path, name: str, shift: float, count: int = 128) -> None:
    """An eval/<name> folder."""
    made = rows(count, shift, seed=len(name) + sum(map(ord, name)))
    folder.mkdir(parents=True)
    write_table(folder / "samples.parquet", made, EVALUATED)
    metrics = {key: found.as_dict() for key, found in absolute(made, 200, 0).items()}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    record(folder, "evaluate", name)


def run(folder: Path, name: str, method: str, steps: int = 40) -> None:
    """A runs/<name> folder with learning curves."""
    folder.mkdir(parents=True)
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        online = {"rollout/reward": 1 - 1 / step, "train/kl": 0.1 * step} if method in ("ppo", "grpo") else {}
        file.log(step, {"train/loss": 1 / step, **online})
    file.close()
    record(folder, "post_train", name, {"seed": 7, "run": {"method": method}})


def record(folder: Path, stage: str, run: str | None, config: dict[str, Any] | None = None) -> None:
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
    facts = {"seconds": 61.5, "host": "<host>", "started": "2026-01-01T00:00:00+00:00", "commit": "abc", "dirty": False}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "run.json").write_text(json.dumps({**facts, "attempts": 1}))


def experiment(root: Path, runs: dict[str, tuple[str, float]], count: int = 128) -> dict[str, Path]:
    """results/<name> with an SFT baseline and `runs` (name -> method, reward); returns compare's inputs by name."""
    evaluation(root / "eval" / "sft", "sft", 0.0, count)
    inputs = {"eval-sft": root / "eval" / "sft"}
    for name, (method, shift) in runs.items():
        evaluation(root / "eval" / name, name, shift, count)
        run(root / "runs" / name, name, method)
        inputs[f"eval-{name}"] = root / "eval" / name
        inputs[f"run-{name}"] = root / "runs" / name
    return inputs
