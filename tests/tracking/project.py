"""The experiment of the tracking tests, and a look into its store past MLflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from posttrain.config.schema import Config


def config(**tracking: Any) -> Config:
    return Config.model_validate(
        {
            "experiment": "quick",
            "data": {"sources": [{"file": "a.csv", "form": "ratings"}]},
            "model": {"base": "built-in: tiny"},
            "runs": {"ppo": {"method": "ppo", "seed": 5}, "dpo": {"method": "dpo"}},
            "tracking": tracking,
        }
    )


def query(project: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of the store, read past MLflow."""
    with closing(sqlite3.connect(project / "results/mlflow/mlflow.db", timeout=20)) as connection:
        return connection.execute(sql, values).fetchall()
