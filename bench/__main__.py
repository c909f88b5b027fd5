"""`python -m bench`, from the repository's folder."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.figures import summarise
from bench.measure import SIDES, Row, sides_of, trl_environment
from bench.work import ROWS, Work

WIDTH = 160  # of the table in a file
QUICK = {"steps": 2, "warmup": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the rows that are asked for; 1 where a side failed."""
    options = _parser().parse_args(arguments)
    works = [_adjusted(work, options) for work in ROWS if any(fnmatch.fnmatch(work.name, p) for p in options.rows)]
    if not works:
        names = ", ".join(work.name for work in ROWS)
        raise SystemExit(f"--rows: no row is called {' '.join(options.rows)}; there are {names}")
    console, rows, rounds = Console(width=None if sys.stdout.isatty() else WIDTH), [], {}
    for work in works:
        figures, rounds[work.name] = measured(work, options, console)
        rows.append(figures)
        report.write(options.out, rows, rounds, {k: v for k, v in vars(options).items() if k != "out"})
    report.show(rows, console)
    console.print(f"all steps: {options.out}")
    return int(any(row["failed"] for row in rows))


def measured(work: Work, options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], list[Any]]:
    """The figures of one row, and what its rounds gave."""
    row, calls, found = Row(work, options.work), None, []
    sides = sides_of(work, options.sides)
    if not (trl_environment(work) / ".installed").exists():
        sides = [side for side in sides if not side.startswith("trl")]
        if "trl" in options.sides and work.peers:
            console.print(f"{work.name}: TRL is left out; install it by make {trl_environment(work)}/.installed")
    row.prepare()
    total = 1 if options.quick else options.rounds
    for number in range(total):
        console.print(f"{work.name}: round {number + 1} of {total}, {', '.join(sides)}", style="dim")
        found.append(row.measure(sides, number, calls))
        calls = found[0].get("floor", {}).get("calls")
    return summarise(work, found), found


def _adjusted(work: Work, options: argparse.Namespace) -> Work:
    changes = dict(QUICK) if options.quick else {}
    if options.steps is not None:
        changes["steps"] = options.steps
    return dataclasses.replace(work, **changes)  # type: ignore[arg-type]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="posttrain, TRL and the floor, step by step")
    parser.add_argument("--rows", nargs="+", default=["*"], help="names or patterns, as 'sft*'; all without it")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), help="what is measured; all without it"
    )
    parser.add_argument("--steps", type=int, help="measured steps of each process, instead of the row's own")
    parser.add_argument("--rounds", type=int, default=2, help="how often each process is started anew")
    parser.add_argument("--quick", action="store_true", help="two steps, one round: does it work at all?")
    parser.add_argument("--out", type=Path, default=Path("build/bench/bench.json"), help="the JSON file")
    parser.add_argument("--work", type=Path, default=Path("build/bench"), help="models, data and logs")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
