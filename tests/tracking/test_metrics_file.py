from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from posttrain.tracking.metrics_file import MetricsFile, decode, read_lines, safe_name


def test_every_line_is_there_at_once_and_strict_json(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    before = time.time()
    file.log(3, {"train/loss": 1.5, "train/kl": float("nan"), "a": float("inf"), "b": -math.inf})
    rows = [json.loads(text, parse_constant=pytest.fail) for text in file.path.read_text().splitlines()]
    assert [set(row) for row in rows] == [{"time", "step", "metrics"}]
    assert rows[0]["step"] == 3 and before <= rows[0]["time"] <= time.time()
    (line,) = read_lines(file.path)
    assert line.values["train/loss"] == 1.5 and math.isnan(line.values["train/kl"])
    assert line.values["a"] == math.inf and line.values["b"] == -math.inf


def test_a_repeated_step_is_not_written_again(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        first.log(step, {"loss": step})
    first.close()
    resumed = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (2, 3, 4):
        resumed.log(step, {"loss": 10 * step})
    resumed.log(3, {"loss": 0, "late": 1})
    found = [(line.step, line.values) for line in read_lines(resumed.path)]
    assert found == [(1, {"loss": 1}), (2, {"loss": 2}), (3, {"loss": 3}), (4, {"loss": 40}), (3, {"late": 1})]


def test_final_values_belong_to_a_run_and_are_written_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for _ in range(2):
        file.summary({"eval/win_rate": 0.5}, run="ppo")
        file.summary({"eval/win_rate": 0.7}, run="dpo")
    found = [(line.run, line.step, line.values["eval/win_rate"]) for line in read_lines(file.path)]
    assert found == [("ppo", None, 0.5), ("dpo", None, 0.7)]


def test_a_torn_last_line_is_dropped_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.log(1, {"loss": 1})
    file.log(2, {"loss": 2})
    file.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [line.step for line in read_lines(path)] == [1]
        resumed = MetricsFile(path)
        resumed.log(2, {"loss": 2})
        assert [line.step for line in read_lines(path)] == [1, 2]
        resumed.close()


def test_a_piece_without_its_newline_is_no_line_yet() -> None:
    text = b'{"time": 1, "step": 1, "metrics": {"a": 1}}'
    assert list(decode(text)) == []
    assert len(list(decode(text + b"\n" + text))) == 1


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("train/loss", "train/loss"),
        ("eval/reward [mean]", "eval/reward _mean_"),
        ("/../a//b/", "a/b"),
        ("größe", "gr__e"),
        ("", "unnamed"),
        ("..", "unnamed"),
        ("x" * 300, "x" * 250),
    ],
)
def test_metric_names_are_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@pytest.mark.parametrize("name", ["/../a//b/", "größe: 5%", ".", "a/./b", "x" * 300, "a\nb"])
def test_mlflow_takes_every_safe_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric

    _validate_metric(safe_name(name), 1.0, 1, 1)
