"""The results in README.md, from the files that `compare` made: `python docs/results/table.py` prints them.

`--write` puts them between the markers of README.md. docs/results/summary.csv is that of config.yaml. Where they are
there, docs/results/seeds.csv is that of configs/seeds.yaml (seeds_runs.csv is its summary.csv), and hacking.csv the
summary.csv of configs/hacking.yaml.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from posttrain.evaluation.entries import BASELINE
from posttrain.evaluation.seeds import GAINS
from posttrain.evaluation.summary import COLUMNS, Column

HERE = Path(__file__).resolve().parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

WITH_INTERVAL = ("eval/judge_gain", "eval/win_rate", "eval/reward_gain")
ALONE = ("eval/kl", "eval/perplexity", "eval/distinct_2")
SHOWN = [column for column in COLUMNS if column.metric in (*WITH_INTERVAL, *ALONE)]
BLANK = "\N{EN DASH}"  # as in the report

Row = Mapping[str, str]


def results(folder: Path = HERE) -> str:
    """The Markdown between the markers: tables of runs, of seeds and of reward hacking, as far as there are files."""
    runs = _read(folder / "summary.csv")
    prompts = " or ".join(sorted({row["prompts"] for row in runs}, key=int))
    parts = [
        f"One training of each, {prompts} held-out prompts; in brackets 95 % intervals over prompts, paired with SFT's "
        "completions of the same prompts.",
        "\n".join(_runs_table(runs)),
    ]
    if (folder / "seeds.csv").exists():
        parts += [
            "The larger experiment of `configs/seeds.yaml`, each method trained with several seeds: the mean over the "
            "seeds, in brackets its 95 % interval (Student's t) over trainings; then in how many seeds the paired "
            "interval over prompts lies above 0.",
            "\n".join(_seeds_table(_read(folder / "seeds.csv"))),
        ]
    if (folder / "hacking.csv").exists():
        parts += [
            "Reward hacking, made on purpose (`configs/hacking.yaml`): no KL penalty, no budget and a high learning "
            "rate. Flags name the thresholds that a run broke.",
            "\n".join(_runs_table(_read(folder / "hacking.csv"))),
        ]
    return "\n\n".join(parts)


def between_markers(page: str) -> str:
    """What stands between the markers of a page. Raises SystemExit where it has not one pair of them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise SystemExit(f"README.md: write one line {BEGIN} and one line {END} below it, where the table belongs")
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    """Print the tables, or write them into README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables between the markers of README.md")
    if not parser.parse_args().write:
        print(results())
        return
    page = README.read_text(encoding="utf-8")
    between_markers(page)
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{results()}\n{END}{after}", encoding="utf-8")


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _runs_table(rows: Sequence[Row]) -> Iterator[str]:
    columns = [column for column in SHOWN if column.key in rows[0]]
    yield from _head(["Run", *(column.title for column in columns), "Flags"])
    for row in rows:
        name = "SFT (baseline)" if row["run"] == BASELINE else _code(row["run"])
        cells = [_cell(row, column, error=row.get("kl_error", "")) for column in columns]
        yield _line([name, *cells, row["flags"].replace(";", ", ") or BLANK])


def _seeds_table(rows: Sequence[Row]) -> Iterator[str]:
    columns = [column for column in SHOWN if column.key in rows[0]]
    counted = [column for column in columns if column.metric in GAINS]
    yield from _head(
        ["Group", "Seeds", *(column.title for column in columns), *(f"{column.title} > 0 in" for column in counted)]
    )
    for row in rows:
        counts = [row[f"{column.key}_above_0"] for column in counted]
        cells = [_cell(row, column) for column in columns]
        yield _line([_code(row["group"]), row["seeds"], *cells, *(count or BLANK for count in counts)])


def _cell(row: Row, column: Column, error: str = "") -> str:
    value = row[column.key]
    if not value:
        return BLANK
    shown = _number(value, column.digits)
    if column.metric == "eval/kl" and error:
        return f"{shown} ± {_number(error, column.digits)}"
    if column.metric in WITH_INTERVAL:
        low, high = (_number(row[f"{column.key}_{end}"], column.digits) for end in ("low", "high"))
        return f"{'+' if column.metric in GAINS and float(value) > 0 else ''}{shown} [{low}, {high}]"
    return shown


def _number(text: str, digits: int) -> str:
    """Rounded; + 0.0 makes a zero of a negative zero."""
    return f"{round(float(text), digits) + 0.0:.{digits}f}"


def _code(name: str) -> str:
    return f"`{name}`"


def _head(titles: Sequence[str]) -> Iterator[str]:
    yield _line(titles)
    yield _line(["---"] + ["---:"] * (len(titles) - 2) + ["---"])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
