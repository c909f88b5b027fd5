"""The README's table is that of the committed figures, and says what the project promises of them."""

from __future__ import annotations

import pytest

from bench.report import README, committed, readme
from bench.work import ROWS

FIGURES = {row["row"]: row for row in committed()}


def test_the_readme_has_the_committed_figures() -> None:
    text = README.read_text(encoding="utf-8")
    assert readme(text, committed()) == text
    assert all(f"| {name} | {row['ours']['tokens_per_cpu_second']:.0f} |" in text for name, row in FIGURES.items())


def test_the_rows_are_those_of_the_bench() -> None:
    """A row that the table lacks was not measured; the README names it."""
    names = [work.name for work in ROWS]
    assert list(FIGURES) == [name for name in names if name in FIGURES]
    assert not any(row["failed"] for row in FIGURES.values())
    text = README.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in names if name not in FIGURES)


@pytest.mark.parametrize("name", list(FIGURES))
def test_ahead_of_trl_within_reach_of_the_floor_and_in_less_memory(name: str) -> None:
    row = FIGURES[name]
    assert row["ours_to_floor"] >= 0.85
    if "trl" in row:
        assert row["ours_to_trl"] > 1
        assert row["ours"]["peak_mib"] <= row["trl"]["peak_mib"]
