"""What each form makes of a row, and every row that is refused or dropped."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from posttrain.config.schema import Form
from posttrain.data.records import Dropped, Record, make_record, plain_text, select
from posttrain.errors import UserError

WHERE = "d.jsonl, line 7"


def record(form: Form, values: dict[str, Any], columns: dict[str, str] | None = None) -> Record:
    return make_record(form, "src", WHERE, select(form, columns or {}, WHERE, values), prompt_words=2)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


MADE: dict[str, tuple[Form, dict[str, Any], Any, tuple[str, ...]]] = {
    "rating": ("ratings", {"text": " one two three. ", "rating": "-1.5"}, "one two", (" three.",)),
    "prompt and completion": ("prompt_completion", {"prompt": "p ", "completion": " c"}, "p ", (" c",)),
    "chat prompt": ("prompt_completion", {"prompt": [user("p")], "completion": [bot("c")]}, [user("p")], ("c",)),
    "messages": ("messages", {"messages": [user("p"), bot("c")]}, [user("p")], ("c",)),
    "messages as JSON in a cell": ("messages", {"messages": json.dumps([user("p"), bot("c")])}, [user("p")], ("c",)),
    "messages of many turns": (
        "messages",
        {"messages": [{"role": "system", "content": "s"}, user("a"), bot("b"), user("c"), bot("d")]},
        [{"role": "system", "content": "s"}, user("a"), bot("b"), user("c")],
        ("d",),
    ),
    "keys beside role and content are left out": (
        "messages",
        {"messages": [{**user("p"), "name": "x"}, bot("c")]},
        [user("p")],
        ("c",),
    ),
    "explicit prompt": ("preference", {"prompt": "p", "chosen": "a", "rejected": "b"}, "p", ("a", "b")),
    "explicit prompt, common opening stays": (
        "preference",
        {"prompt": "p", "chosen": "I am", "rejected": "I do"},
        "p",
        ("I am", "I do"),
    ),
    "implicit prompt": ("preference", {"chosen": "Q A: yes", "rejected": "Q A: yeah"}, "Q A:", (" yes", " yeah")),
    "conversations": (
        "preference",
        {"chosen": [user("p"), bot("a")], "rejected": [user("p"), bot("b")]},
        [user("p")],
        ("a", "b"),
    ),
    "conversations that repeat the prompt": (
        "preference",
        {"prompt": "p", "chosen": [user("p"), bot("a")], "rejected": [user("p"), bot("b")]},
        [user("p")],
        ("a", "b"),
    ),
    "a text prompt of two messages": (
        "preference",
        {"prompt": "p", "chosen": [bot("a")], "rejected": [bot("b")]},
        [user("p")],
        ("a", "b"),
    ),
    "kto": ("kto", {"prompt": "p", "completion": "c", "label": True}, "p", ("c",)),
}


@pytest.mark.parametrize("case", MADE)
def test_records(case: str) -> None:
    form, values, prompt, answers = MADE[case]
    made = record(form, values)
    assert (made.prompt, made.answers, made.form, made.source, made.where) == (prompt, answers, form, "src", WHERE)


def test_ids() -> None:
    values = {"prompt": "p", "completion": "c"}
    assert record("prompt_completion", values).id == "src/line 7"
    for missing in (None, math.nan, ""):
        assert record("prompt_completion", {**values, "id": missing}).id == "src/line 7"
    assert record("prompt_completion", {**values, "id": 12}).id == "src/12"
    assert record("prompt_completion", {**values, "key": "k"}, {"id": "key"}).id == "src/k"


@pytest.mark.parametrize(("given", "wanted"), [("3", 3.0), (-4, -4.0), ("1e3", 1000.0), (0.25, 0.25), (" 2 ", 2.0)])
def test_ratings(given: Any, wanted: float) -> None:
    assert record("ratings", {"text": "a b c", "rating": given}).rating == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(True, True), (False, False), (1, True), (0, False), (1.0, True), (0.0, False)]
    + [(word, True) for word in ("true", "True", "TRUE", "yes", "Y", "1", " t ")]
    + [(word, False) for word in ("false", "False", "no", "N", "0", "f")],
)
def test_labels(given: Any, wanted: bool) -> None:
    assert record("kto", {"prompt": "p", "completion": "c", "label": given}).label is wanted


def pc(prompt: Any = "p", completion: Any = "c") -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion}


def chosen(a: Any, b: Any, **more: Any) -> dict[str, Any]:
    return {"chosen": a, "rejected": b, **more}


REFUSED: dict[str, tuple[Form, dict[str, Any], list[str]]] = {
    "empty text": ("ratings", {"text": "  ", "rating": 1}, ["text is empty"]),
    "None text": ("ratings", {"text": None, "rating": 1}, ["text is missing"]),
    "NaN text": ("ratings", {"text": math.nan, "rating": 1}, ["text is missing"]),
    "number for a text": ("ratings", {"text": 5, "rating": 1}, ["text is of type int", "wanted text"]),
    "half a surrogate pair": ("ratings", {"text": "a \ud83d b c", "rating": 1}, ["surrogate"]),
    **{
        f"rating {value!r}": ("ratings", {"text": "a b c", "rating": value}, ["rating", what])
        for value, what in [
            ("good", "'good' is not a finite number"),
            ("", "missing"),
            (None, "missing"),
            (math.nan, "missing"),
            ("nan", "not a finite number"),
            ("inf", "not a finite number"),
            (math.inf, "not a finite number"),
            (True, "not a finite number"),
            ("1_000", "not a finite number"),
            ("1,5", "not a finite number"),
            ([1], "not a finite number"),
            (10**400, "not a finite number"),
            ("-1e10", "'-1e10' is beyond 1e+09"),
        ]
    },
    "empty prompt": ("prompt_completion", pc(prompt=""), ["prompt is empty"]),
    "blank prompt": ("prompt_completion", pc(prompt=" \n"), ["prompt is empty"]),
    "no messages in the prompt": ("prompt_completion", pc(prompt=[]), ["prompt must be a list", "at least one"]),
    "empty completion": ("prompt_completion", pc(completion=""), ["completion is empty"]),
    "completion of two messages": ("prompt_completion", pc(completion=[user("a"), bot("b")]), ["one message"]),
    "completion by the user": ("prompt_completion", pc(completion=[user("a")]), ["assistant"]),
    "messages as text": ("messages", {"messages": "hi"}, ["messages must be a list"]),
    "no messages": ("messages", {"messages": []}, ["at least one message"]),
    "None for messages": ("messages", {"messages": None}, ["messages must be a list"]),
    "the user's last": ("messages", {"messages": [user("a"), bot("b"), user("c")]}, ["last message is the user's"]),
    "an answer alone": ("messages", {"messages": [bot("b")]}, ["prompt is empty"]),
    "other keys": ("messages", {"messages": [{"from": "human", "value": "a"}]}, ["['from', 'value']", "role, content"]),
    "a text for a message": ("messages", {"messages": ["a", "b"]}, ["messages[0]", "str"]),
    "another role": (
        "messages",
        {"messages": [{"role": "bot", "content": "a"}]},
        ["messages[0]", "'bot'", "assistant"],
    ),
    "an empty message": ("messages", {"messages": [user(""), bot("b")]}, ["messages[0].content is empty"]),
    "content in parts": (
        "messages",
        {"messages": [{"role": "user", "content": [{}]}, bot("b")]},
        ["content is of type list"],
    ),
    "an empty answer": ("messages", {"messages": [user("a"), bot(" ")]}, ["messages[1].content is empty"]),
    "no common opening": ("preference", chosen("yes", "no"), ["prompt is empty", "prompt column"]),
    "two kinds": ("preference", chosen([user("a"), bot("b")], "no"), ["two kinds"]),
    "empty chosen": ("preference", chosen("", "no", prompt="p"), ["chosen is empty"]),
    "null prompt": ("preference", chosen("a", "b", prompt=None), ["prompt is missing"]),
    "different conversations": (
        "preference",
        chosen([user("a"), bot("b")], [user("c"), bot("d")]),
        ["differ before their last message"],
    ),
    "the user's last in a pair": ("preference", chosen([user("a"), user("b")], [user("a"), bot("c")]), ["assistant's"]),
    "two answers without a question": ("preference", chosen([bot("a")], [bot("b")]), ["prompt is empty"]),
    "another prompt than the conversation's": (
        "preference",
        chosen([user("a"), bot("b")], [user("a"), bot("c")], prompt="z"),
        ["differ"],
    ),
    **{
        f"label {value!r}": ("kto", {**pc(), "label": value}, ["label", what])
        for value, what in [
            ("maybe", "'maybe' is not a boolean"),
            (2, "not a boolean"),
            (0.5, "not a boolean"),
            ("", "missing"),
            (None, "missing"),
            (math.nan, "missing"),
            ([True], "not a boolean"),
        ]
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_row(case: str) -> None:
    form, values, words = REFUSED[case]
    with pytest.raises(UserError) as fault:
        record(form, values)
    message = str(fault.value)
    assert message.startswith(WHERE) and all(word in message for word in words), message


@pytest.mark.parametrize(
    ("form", "values", "reason"),
    [
        ("ratings", {"text": "one two", "rating": 1}, "no word left after the prompt"),
        ("ratings", {"text": "one", "rating": 1}, "no word left after the prompt"),
        ("preference", chosen("Q a", "Q a"), "chosen equals rejected"),
        ("preference", chosen("a", "a", prompt="p"), "chosen equals rejected"),
        ("preference", chosen([user("p"), bot("a")], [user("p"), bot("a")]), "chosen equals rejected"),
        ("preference", chosen("Q A: yes", "Q A: yes but"), "one answer is only the common opening"),
    ],
)
def test_dropped_with_the_reason(form: Form, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(Dropped, match=f"^{reason}$"):
        record(form, values)


@pytest.mark.parametrize(
    ("form", "columns", "values", "words"),
    [
        (
            "ratings",
            {},
            {"review": "a", "stars": 1},
            ["['review', 'stars']", "['rating', 'text']", "columns: {ours: theirs}"],
        ),
        ("ratings", {"text": "body"}, {"text": "a", "rating": 1}, ["['rating', 'text']", "['body', 'rating']"]),
        ("preference", {"prompt": "q"}, {"chosen": "a", "rejected": "b"}, ["['chosen', 'rejected']", "'q'"]),
        ("kto", {}, pc(), ["['completion', 'prompt']", "label"]),
        ("kto", {"txt": "a"}, {**pc(), "label": 1}, ["columns.txt", "prompt, completion, label"]),
    ],
)
def test_other_columns_are_named(form: Form, columns: dict[str, str], values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as fault:
        select(form, columns, WHERE, values)
    assert all(word in str(fault.value) for word in words), str(fault.value)


def test_columns_map_ours_to_theirs() -> None:
    made = record("ratings", {"body": "a b c", "stars": 4, "rating": "x"}, {"text": "body", "rating": "stars"})
    assert (made.prompt, made.answers, made.rating) == ("a b", (" c",), 4.0)


def test_plain_text_of_a_conversation() -> None:
    assert plain_text([{"role": "system", "content": "s"}, user("a")]) == "System: s\nUser: a\nAssistant:"
    assert plain_text("as it is ") == "as it is "
