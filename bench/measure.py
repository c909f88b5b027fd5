"""One row: its models and data, then all its sides in turn, step by step."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.turns import Worker, WorkerError
from bench.work import Work, as_dict

PEERS = Path(".venv/peers")
ENVIRONMENTS = {"ppo": PEERS / "trl_older"}
SIDES = ("ours", "trl", "floor")

Found = dict[str, dict[str, Any]]
"""What each side measured, by its name; `failed` with the reason where it did not come to an end."""


def trl_environment(work: Work) -> Path:
    """TRL's virtual environment for this row: PPO left TRL in 1.13."""
    return ENVIRONMENTS.get(work.method, PEERS / "trl")


def sides_of(work: Work, wanted: Sequence[str]) -> list[str]:
    """ours, floor, and TRL in each of the settings to try, which follow a colon."""
    found: list[str] = []
    for side in wanted:
        found += [f"trl:{name}" for name in work.peers] if side == "trl" else [side]
    return found


class Row:
    """The folders and workers of one row."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder / work.name
        self.task = {
            "work": as_dict(work),
            "models": str(folder / "models" / work.model),
            "data": str(self.folder / "data"),
        }

    def prepare(self) -> None:
        """Makes models and data."""
        Worker(Path(sys.executable), "bench.workers.prepare", self.task, self.folder / "prepare").finish()

    def measure(self, sides: Sequence[str], number: int, calls: Sequence[int] | None) -> Found:
        """All sides in turn; `calls` is what the floor of an earlier round found to be the fastest."""
        shutil.rmtree(self.folder / str(number), ignore_errors=True)
        workers = {side: self.worker(side, self.folder / str(number), calls) for side in sides}
        found: Found = {}
        try:
            for _ in range(self.work.total_steps):
                for side in [side for side in workers if side not in found]:
                    attempt(found, side, workers[side].step)
            for side in [side for side in workers if side not in found]:
                attempt(found, side, lambda side=side: found.update({side: workers[side].finish()}))
        finally:
            for worker in workers.values():
                worker.close()
        return found

    def worker(self, side: str, folder: Path, calls: Sequence[int] | None) -> Worker:
        """The process of one side."""
        place = folder / side.replace(":", "-").replace(" ", "-")
        task: Mapping[str, Any] = {**self.task, "place": str(place)}
        if side == "ours":
            return Worker(Path(sys.executable), "bench.workers.ours", task, place)
        if side == "floor":
            return Worker(Path(sys.executable), "bench.workers.floor", {**task, "calls": calls}, place)
        settings = self.work.peers[side.partition(":")[2]]
        python = trl_environment(self.work) / "bin" / "python"
        return Worker(python, "bench.workers.trl_trainers", {**task, "settings": settings}, place)


def attempt(found: Found, side: str, act: Any) -> None:
    """Acts; a worker that fails takes no further part in its round."""
    try:
        act()
    except WorkerError as error:
        found[side] = {"failed": str(error)}
