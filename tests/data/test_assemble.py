"""Which form feeds which table, and what is dropped on the way."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from posttrain.config.schema import RatingPairs
from posttrain.data.assemble import Tables, assemble, demand
from posttrain.data.corpus import Corpus, Tally
from posttrain.data.records import Record
from posttrain.data.render import Rendered
from posttrain.errors import UserError

START = 1
Given = tuple[Record, str, Rendered]


def given(number: int, form: Any, prompt: list[int], *answers: list[int], split: str = "train", **more: Any) -> Given:
    dropped = more.pop("dropped", None)
    source = more.pop("source", "src")
    record = Record(f"{source}/{number}", source, "f, line 1", form, f"p{number}", ("a",) * len(answers), **more)
    return record, split, Rendered(record.id, prompt, list(answers), dropped=dropped)


def make(*rows: Given, margin: float = 1.0, per_text: int = 2) -> tuple[Tables, Corpus]:
    tallies = {record.source: Tally(record.source, record.form, len(rows)) for record, _, _ in rows}
    corpus = Corpus([record for record, _, _ in rows], [split for _, split, _ in rows], tallies)
    settings = RatingPairs(margin=margin, per_text=per_text)
    return assemble(corpus, [rendered for _, _, rendered in rows], settings, 0, START), corpus


def test_each_form_feeds_its_tables() -> None:
    made, _ = make(
        given(1, "prompt_completion", [1, 5], [6, 2]),
        given(2, "messages", [1, 7], [8, 2], split="test"),
        given(3, "preference", [1, 9], [10, 2], [11, 2]),
        given(4, "kto", [1, 12], [13, 2], label=False),
    )
    assert made.sft == [
        {"id": "src/1", "split": "train", "prompt_ids": [1, 5], "completion_ids": [6, 2]},
        {"id": "src/2", "split": "test", "prompt_ids": [1, 7], "completion_ids": [8, 2]},
    ]
    assert [row["id"] for row in made.prompts] == ["src/1", "src/2", "src/3", "src/4"]
    assert made.prompts[0] == {"id": "src/1", "split": "train", "prompt_ids": [1, 5], "text": "p1"}
    assert made.pairs is not None and made.labels is not None
    (pair,) = made.pairs
    assert math.isnan(pair.pop("gap"))
    assert pair == {
        "id": "src/3",
        "split": "train",
        "prompt_ids": [1, 9],
        "chosen_ids": [10, 2],
        "rejected_ids": [11, 2],
    }
    assert made.labels == [
        {"id": "src/4", "split": "train", "prompt_ids": [1, 12], "completion_ids": [13, 2], "label": False}
    ]


def test_absent_forms_give_no_table() -> None:
    made, _ = make(given(1, "prompt_completion", [1, 5], [6, 2]))
    assert made.pairs is None and made.labels is None


def test_rated_texts_are_whole_in_pairs_after_one_start() -> None:
    made, _ = make(
        given(1, "ratings", [START, 5], [6, 2], rating=2.0),
        given(2, "ratings", [START, 7, 8], [9], rating=-1.5),
    )
    assert made.pairs == [
        {
            "id": "src/1>src/2",
            "split": "train",
            "prompt_ids": [START],
            "chosen_ids": [5, 6, 2],
            "rejected_ids": [7, 8, 9],
            "gap": 3.5,
        }
    ]
    assert [row["id"] for row in made.sft] == ["src/1", "src/2"]


def test_rated_pairs_stay_within_split_and_source() -> None:
    rows = [
        given(n, "ratings", [START, n], [n, 2], rating=float(n % 5), split=split, source=source)
        for n, (split, source) in enumerate(
            [(split, source) for split in ("train", "validation", "test") for source in ("a", "b") for _ in range(10)],
            start=3,
        )
    ]
    made, _ = make(*rows)
    side = {record.id: (record.source, split) for record, split, _ in rows}
    assert made.pairs is not None
    for pair in made.pairs:
        better, worse = pair["id"].split(">")
        assert side[better] == side[worse] and side[better][1] == pair["split"]
    splits = [pair["split"] for pair in made.pairs]
    assert splits == sorted(splits, key=["train", "validation", "test"].index) and len(set(splits)) == 3


def test_pairs_made_equal_by_the_cut_are_counted() -> None:
    made, _ = make(
        given(1, "ratings", [START, 5], [6], rating=2.0),
        given(2, "ratings", [START, 5], [6], rating=0.0),
        given(3, "ratings", [START, 5], [7], rating=0.0),
    )
    assert made.pairs is not None and [row["id"] for row in made.pairs] == ["src/1>src/3"]
    assert made.dropped["pairs: chosen equals rejected after the cut"] == 1


def test_dropped_rows_are_in_no_table_and_counted_with_their_source() -> None:
    made, corpus = make(
        given(1, "prompt_completion", [1, 5], [6, 2]),
        given(2, "prompt_completion", [], dropped="too long"),
        given(3, "prompt_completion", [], dropped="too long", source="other"),
    )
    assert [row["id"] for row in made.sft] == [row["id"] for row in made.prompts] == ["src/1"]
    assert [corpus.tallies[name].dropped for name in ("src", "other")] == [Counter({"too long": 1})] * 2


def test_equal_prompts_are_one_prompt() -> None:
    made, _ = make(
        given(1, "prompt_completion", [1, 5], [6, 2]),
        given(2, "prompt_completion", [1, 5], [7, 2]),
        given(3, "prompt_completion", [1, 6], [7, 2]),
    )
    assert [row["id"] for row in made.prompts] == ["src/1", "src/3"]
    assert made.dropped == {"prompts: repeats an earlier prompt": 1}
    assert len(made.sft) == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([given(1, "preference", [1, 5], [6, 2], [7, 2])], "no training row is left to imitate"),
        ([given(1, "messages", [1, 5], [6, 2], split="test")], "no training row is left to imitate"),
        ([given(n, "ratings", [1, n], [n, 2], rating=n / 10) for n in range(3, 6)], "margin"),
        (
            [given(1, "messages", [1, 5], [6, 2])],
            r"evaluation \(1 rows read; by split: 1 train,",
        ),
        ([given(1, "messages", [1, 5], [6, 2], dropped="too long")], "1 rows read; 1 dropped: too long;"),
    ],
)
def test_what_the_chain_needs_is_demanded(rows: list[Given], words: str) -> None:
    tables, corpus = make(*rows)
    with pytest.raises(UserError, match=words):
        demand(tables, corpus, RatingPairs())
