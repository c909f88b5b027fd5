"""docs/evaluation.md names every metric and column, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from posttrain.config.schema import Evaluation
from posttrain.data.tables import EVALUATED
from posttrain.evaluation.judge import open_judge
from posttrain.evaluation.metrics import PAIRED, absolute, paired
from tests.evaluation import fake

PAGE = (Path(__file__).parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")


def named(heading: str) -> set[str]:
    """What stands in backticks in the first column of the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)
    }


def test_the_tables_name_everything() -> None:
    rows = fake.rows(8, 0.0, 1)
    assert named("Samples") == set(EVALUATED.names)
    assert named("Metrics of one model") == absolute(rows, 10, 0).keys()
    assert named("Metrics against SFT") == set(PAIRED) == paired(rows, rows, "x", 10, 0).keys()


def test_the_settings_are_valid() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Evaluation.model_validate(yaml.safe_load(block)["evaluation"])


def test_the_example_of_a_judge_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(block)
    assert open_judge("mine.py:score", tmp_path / "mine.py")(["a"], ["one two"]) == [-10.0]
