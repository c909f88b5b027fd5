"""The examples of docs/data.md are valid."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from posttrain.config.schema import Data
from posttrain.data.records import OPTIONAL, WANTED

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")


def test_examples_are_valid() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    sources = Data.model_validate(yaml.safe_load(block)).sources
    assert len(sources) == 4
    for source in sources:
        assert set(source.columns) <= {*WANTED[source.form], *OPTIONAL[source.form]}


def test_the_table_names_every_form_and_its_columns() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    assert set(rows) == set(WANTED)
    for form, columns in WANTED.items():
        assert all(f"`{column}`" in rows[form] for column in columns)
