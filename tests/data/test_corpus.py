"""The split and what is dropped before it: sides depend on text alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.schema import Data, Source, Split
from posttrain.data.corpus import Corpus, normalise, read_corpus, side, source_names
from posttrain.errors import UserError


def read(tmp_path: Path, rows: list[dict[str, Any]], form: str = "prompt_completion", **data: Any) -> Corpus:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_corpus(Data(sources=[Source(file="d.jsonl", form=form)], **data), tmp_path)


def rated(count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "text": f"opening {n % 97} words {n % 89} then the rest {n}", "rating": n % 9 - 4}
        for n in range(count)
    ]


def test_sides_have_the_shares_asked_for() -> None:
    shares = Split(validation=0.1, test=0.2)
    sides = [side(f"text {n}", shares) for n in range(20_000)]
    assert sides.count("validation") / 20_000 == pytest.approx(0.1, abs=0.01)
    assert sides.count("test") / 20_000 == pytest.approx(0.2, abs=0.012)


def test_sides_are_pinned() -> None:
    """By hand: sha256sum of "hello" begins with 2cf24dba, and 0x2cf24dba / 2^32 = 0.1756."""
    assert side("hello", Split(validation=0, test=0.18)) == "test"
    assert side("hello", Split(validation=0, test=0.17)) == "train"
    assert side("hello", Split(validation=0.02, test=0.16)) == "validation"
    assert side(" Hello\n", Split(validation=0, test=0.18)) == "test"
    assert side([{"role": "user", "content": "HELLO"}], Split(validation=0, test=0.18)) == "test"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("A  film\n", "a film", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("STRASSE", "stra\u00dfe", True),
        ("\uff21", "a", True),
        ("a film", "a film.", False),
    ],
)
def test_normalise(first: str, second: str, same: bool) -> None:
    assert (normalise(first) == normalise(second)) is same


def test_sides_do_not_depend_on_row_order(tmp_path: Path) -> None:
    rows = rated(300)
    shuffled = random.Random(0).sample(rows, len(rows))
    first, second = (read(tmp_path, order, "ratings") for order in (rows, shuffled))
    assert {r.id: s for r, s in zip(first.records, first.splits, strict=True)} == {
        r.id: s for r, s in zip(second.records, second.splits, strict=True)
    }


def test_no_prompt_is_on_two_sides(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"Some {n % 20}  words {n}", "rating": 1} for n in range(400)]
    corpus = read(tmp_path, rows, "ratings", prompt_words=2, split=Split(validation=0.3, test=0.3))
    sides: dict[str, set[str]] = {}
    for record, split in zip(corpus.records, corpus.splits, strict=True):
        sides.setdefault(normalise(str(record.prompt)), set()).add(split)
    assert len(sides) == 20 and all(len(found) == 1 for found in sides.values())
    assert len(set(corpus.splits)) == 3


def test_repeats_are_dropped_and_counted_and_order_is_kept(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "completion": "1"},
        {"prompt": "b", "completion": "2"},
        {"prompt": "a", "completion": "1"},
        {"prompt": "a", "completion": "3"},
        {"prompt": "A", "completion": "1"},
    ]
    corpus = read(tmp_path, rows, split=Split(validation=0, test=0))
    assert [(r.prompt, r.answers[0]) for r in corpus.records] == [("a", "1"), ("b", "2"), ("a", "3"), ("A", "1")]
    tally = corpus.tallies["d"]
    assert (tally.read, dict(tally.dropped)) == (5, {"repeats an earlier row": 1})


def test_labels_that_contradict_each_other_are_no_repeats(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "1", "label": label} for label in (True, False, True)]
    corpus = read(tmp_path, rows, "kto", split=Split(validation=0, test=0))
    assert [r.label for r in corpus.records] == [True, False]


def test_texts_without_a_rest_are_counted(tmp_path: Path) -> None:
    rows = [{"text": text, "rating": 1} for text in ("one two three", "one two", "one")]
    corpus = read(tmp_path, rows, "ratings", prompt_words=2, split=Split(validation=0, test=0))
    assert len(corpus.records) == 1
    assert dict(corpus.tallies["d"].dropped) == {"no word left after the prompt": 2}


def test_an_id_given_twice_names_both_places(tmp_path: Path) -> None:
    rows = [{"id": "x", "prompt": "a", "completion": "1"}, {"id": "x", "prompt": "b", "completion": "1"}]
    with pytest.raises(UserError, match=r"line 2: the id 'x' was given before, at .*line 1"):
        read(tmp_path, rows)


def test_nothing_left_for_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row"):
        read(tmp_path, [{"prompt": "a", "completion": "1"}], split=Split(validation=0, test=0.999999))


def test_only_training_texts_reach_the_tokenizer(tmp_path: Path) -> None:
    corpus = read(tmp_path, rated(300), "ratings", split=Split(validation=0.3, test=0.3))
    texts = list(corpus.training_texts())
    assert len(texts) == corpus.splits.count("train") > 0
    held_out = [
        str(r.prompt) + r.answers[0] for r, s in zip(corpus.records, corpus.splits, strict=True) if s != "train"
    ]
    assert held_out and not set(texts) & set(held_out)


def test_source_names_are_different() -> None:
    files = ["a/train.jsonl", "b/train.jsonl", "a/train.csv"]
    sources = [Source(file=file, form="messages") for file in files] + [Source(hub="who/what", form="messages")]
    assert source_names(sources) == ["a/train", "b/train", "a/train#2", "who/what"]
