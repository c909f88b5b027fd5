"""Where our side's time goes in one row: `python -m bench.profile ROW`, after `python -m bench --rows ROW`.

Steps after the warm-up are traced by cProfile, which also slows small calls down: the shares say where to look, the
bench says what was gained. Functions of ours are listed with all that they call, built-in ones (torch's) by themselves.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.work import ROWS, Work, as_dict
from bench.workers import ours

MOST = 25
Entry = tuple[float, int, str]
"""Seconds, calls, name."""


class ProfilingTracker(ours.MeterTracker):
    """Profiles from the end of the warm-up on."""

    profiler = cProfile.Profile()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """The first profiled step begins at the end of the last unprofiled one."""
        self.profiler.disable()
        super().log(step, metrics)
        if step >= self.work.warmup:
            self.profiler.enable()


def entries(profiler: cProfile.Profile) -> tuple[list[Entry], list[Entry], float]:
    """Functions of ours with all that they call, functions of torch and C by themselves, and the whole time."""
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own, builtin = [], []
    for (file, _, name), (_, calls, alone, whole, _) in stats.items():
        if "/posttrain/" in file:
            own.append((whole, calls, f"{file.rpartition('/posttrain/')[2]}:{name}"))
        else:
            short = file.rpartition("/site-packages/")[2]
            builtin.append((alone, calls, name if file == "~" else f"{short}:{name}"))
    total = sum(entry[2] for entry in stats.values())
    return sorted(own, reverse=True)[:MOST], sorted(builtin, reverse=True)[:MOST], total


def show(title: str, found: Sequence[Entry], total: float, steps: int, console: Console) -> None:
    """A table of shares."""
    table = Table("share", "s/step", "calls/step", title, box=None)
    for seconds, calls, name in found:
        table.add_row(f"{seconds / total:.1%}", f"{seconds / steps:.4f}", f"{calls / steps:.0f}", name)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Profiles one row."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile")
    parser.add_argument("row", choices=[work.name for work in ROWS])
    parser.add_argument("--work", type=Path, default=Path("build/bench"), help="as that of the bench")
    options = parser.parse_args(arguments)
    work: Work = next(work for work in ROWS if work.name == options.row)
    place = options.work / work.name / "profile"
    shutil.rmtree(place, ignore_errors=True)
    folders = {"models": options.work / "models" / work.model, "data": options.work / work.name / "data"}
    ours.run({"work": as_dict(work), "place": place, **folders}, ProfilingTracker)
    own, builtin, total = entries(ProfilingTracker.profiler)
    console = Console(width=160)
    show("with what they call", own, total, work.steps, console)
    show("by themselves", builtin, total, work.steps, console)


if __name__ == "__main__":
    main()
