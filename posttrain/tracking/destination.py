"""Where metrics go: the tracking URI of an experiment, where its artifacts lie, and how both are shown."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from posttrain.config.schema import Config

STORE = Path("results/mlflow")
DEFAULT_URI = f"sqlite:///{(STORE / 'mlflow.db').as_posix()}"

_USERINFO = re.compile(r"(?<=://)[^/@\s'\"]+@")
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Destination:
    """The MLflow experiment that a stage reports to.

    `uri` may hold a password: show `mask(uri)` only. A relative SQLite path is relative to `root`, the project folder.
    """

    experiment: str
    uri: str
    root: Path
    system_metrics: bool = True

    @property
    def database(self) -> Path | None:
        """The SQLite file behind `uri`, or None where a server or another database keeps the runs."""
        if not self.uri.startswith(_SQLITE):
            return None
        return self.root / self.uri.removeprefix(_SQLITE)

    @property
    def client_uri(self) -> str:
        """The URI that works from any working folder."""
        return self.uri if self.database is None else f"{_SQLITE}{self.database.absolute().as_posix()}"

    @property
    def artifacts(self) -> str | None:
        """The artifacts' folder beside a SQLite file, relative to the project around it; None: the server's affair."""
        if self.database is None:
            return None
        folder = self.database.absolute().parent / "artifacts"
        root = self.root.absolute()
        return (folder.relative_to(root) if folder.is_relative_to(root) else folder).as_posix()

    @property
    def lock(self) -> Path:
        """A file lock under which the experiment and its parent runs are found or made."""
        return self.root / "results" / self.experiment / ".state" / "tracking.lock"


def destination(config: Config, root: Path) -> Destination:
    """MLFLOW_TRACKING_URI wins over `tracking.uri`, which wins over SQLite under results/."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or config.tracking.uri or DEFAULT_URI
    return Destination(config.experiment, uri, root, config.tracking.system_metrics)


def mask(text: str) -> str:
    """The text with the user name and password of every URI in it replaced by ***."""
    return _USERINFO.sub("***@", text)
