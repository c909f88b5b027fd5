"""The table, the JSON file, and the README's table: `python -m bench.report` writes it from results.json.

`python -m bench.report build/bench/bench.json` first takes a run's rows into results.json, in place of earlier ones.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.work import ROWS

HEADS = (
    "row", "ours\ntokens/CPU-s", "TRL\ntokens/CPU-s", "floor\ntokens/CPU-s",
    "ours/TRL", "floor/TRL\n(ceiling)", "ours/floor",
    "ours\npeak MiB", "TRL\npeak MiB", "ours\nMFU", "floor\nMFU", "TRL's settings",
)  # fmt: skip

FOLDER = Path(__file__).parent
README, RESULTS = FOLDER / "README.md", FOLDER / "results.json"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->\n"


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line for each row; a dash where a side has no figure."""
    found = Table(box=None, header_style="bold")
    for head in HEADS:
        found.add_column(head, justify="left" if head in ("row", "TRL's settings") else "right")
    for row in rows:
        found.add_row(*cells(row))
    return found


def cells(row: dict[str, Any]) -> list[str]:
    """The texts of one line."""

    def of(side: str, name: str, form: str) -> str:
        return format(row[side][name], form) if side in row else "-"

    def share(name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.2f}"

    return [
        row["row"],
        *(of(side, "tokens_per_cpu_second", ".0f") for side in ("ours", "trl", "floor")),
        *(share(name) for name in ("ours_to_trl", "ceiling", "ours_to_floor")),
        *(of(side, "peak_mib", ".0f") for side in ("ours", "trl")),
        *(
            f"{row[side]['utilisation']:.0%}" if "utilisation" in row.get(side, {}) else "-"
            for side in ("ours", "floor")
        ),
        row["trl_settings"] or "-",
    ]


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Prints the table, then what failed."""
    console.print(table(rows))
    rates = [row["matmul_rate"] for row in rows if "matmul_rate" in row]
    if rates:
        console.print(f"matrix products: {max(rates) / 1e9:.1f} GFLOP/s in float32 on one thread")
    for row in rows:
        for side, reason in row["failed"].items():
            console.print(f"{row['row']}, {side} failed:\n{reason}", style="red", markup=False, highlight=False)


def write(path: Path, rows: Sequence[dict[str, Any]], rounds: dict[str, Any], options: dict[str, Any]) -> None:
    """All figures, and every step behind them."""
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "options": options,
        "rows": rows,
        "rounds": rounds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


def processor() -> str:
    """The name of the CPU."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The README's table, with when and where it was measured."""
    heads = [head.replace("\n", "<br>") for head in HEADS]
    lines = [heads, ["---", *["---:"] * (len(HEADS) - 2), "---"], *map(cells, rows)]
    rate = max(row["matmul_rate"] for row in rows) / 1e9
    where = ", ".join(sorted({f"{row['date'][:10]}, {row['processor']}" for row in rows}))
    rounds = ", ".join(sorted({str(row["rounds"]) for row in rows}))
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{where}; rounds of a row: {rounds}. Matrix products reach {rate:.0f} GFLOP/s in float32.\n\n{body}"


def readme(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """The README with the table of `rows` in the place of its own."""
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}{markdown(rows)}{END}{after}"


def committed() -> list[dict[str, Any]]:
    """The rows of results.json."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return found


def main(runs: Sequence[str]) -> None:
    """Takes in the rows of the runs named, and writes the README's table."""
    rows = {row["row"]: row for row in committed()}
    for run in runs:
        content = json.loads(Path(run).read_text(encoding="utf-8"))
        facts = {"date": content["date"], "processor": content["processor"], "rounds": content["options"]["rounds"]}
        rows |= {row["row"]: {**row, **facts} for row in content["rows"]}
    ordered = [rows[work.name] for work in ROWS if work.name in rows]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), ordered), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
