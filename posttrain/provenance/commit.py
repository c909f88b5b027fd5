"""Which commit of the code ran: for run.json and MLflow's tags only, never for a stage key."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VARIABLE = "POSTTRAIN_COMMIT"  # "<commit>" or "<commit>-dirty": for containers, which have no git


def current_commit(root: Path) -> tuple[str | None, bool | None]:
    """Commit and whether the working tree differs from it; None where it cannot be told."""
    given = os.environ.get(VARIABLE)
    if given:
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
