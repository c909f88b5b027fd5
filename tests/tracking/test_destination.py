from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.tracking.destination import Destination, destination, mask
from tests.tracking.project import config


def test_the_environment_wins_over_the_config_over_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path("/p")
    assert destination(config(), root).uri == "sqlite:///results/mlflow/mlflow.db"
    assert destination(config(uri="http://a:1"), root).uri == "http://a:1"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b:2")
    assert destination(config(uri="http://a:1"), root).uri == "http://b:2"


def test_a_sqlite_store_inside_the_project_has_relative_artifacts() -> None:
    where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", Path("/p"))
    assert where.client_uri == "sqlite:////p/results/mlflow/mlflow.db"
    assert where.artifacts == "results/mlflow/artifacts"


def test_a_sqlite_store_elsewhere_has_absolute_artifacts_and_a_server_its_own() -> None:
    assert Destination("quick", "sqlite:////data/m.db", Path("/p")).artifacts == "/data/artifacts"
    server = Destination("quick", "http://a:1", Path("/p"))
    assert server.artifacts is None and server.client_uri == "http://a:1"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://ann:secret@host:5000/x", "http://***@host:5000/x"),
        ("uri: postgresql://ann:s%40cret@db/m and http://t@h", "uri: postgresql://***@db/m and http://***@h"),
        ("http://host/a@b", "http://host/a@b"),
        ("mail ann@example.org", "mail ann@example.org"),
    ],
)
def test_passwords_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
