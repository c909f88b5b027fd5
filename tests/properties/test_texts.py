"""Rules 1, 6, 9, 10, 11 and 12 on generated texts, for every kind of tokenizer: blanks, other scripts, names of special
tokens, limits of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from posttrain.data.records import Record
from posttrain.data.render import EQUAL, MARKUP, TOO_LONG, Limits, Rendered, render
from posttrain.data.tokenizer import Tokenizer
from posttrain.errors import UserError
from tests.data.conftest import KINDS

# The last two read a line end as part of what is before it: not every text can follow another with them.
ANY_TEXT = [kind for kind in KINDS if not kind.startswith("spaced")]
BYTE_LEVEL = ["built-in", "gpt2", "qwen"]
WIDE = Limits(2000, 2000, "error")
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|endoftext|>", "<|im_end|>", "<s>", "</s>"]

PIECES = st.sampled_from([*SPECIAL, " ", "  ", "\n", "the film", "a", "7", "é", "漢", "🎬", "User:", "Assistant:"])
TEXTS = st.lists(PIECES | st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).map("".join)
MESSAGES = st.lists(TEXTS, min_size=1, max_size=3).map(
    lambda texts: [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
)
PROMPTS = TEXTS | MESSAGES
POLICIES = st.sampled_from(["error", "drop", "truncate_left"])
each_kind = pytest.mark.parametrize("kind", ANY_TEXT)


def record(prompt: Any, *answers: str, number: int = 1) -> Record:
    form = "preference" if len(answers) == 2 else "prompt_completion"
    return Record(f"s/{number}", "s", f"d.csv, line {number}", form, prompt, answers)


def one(tokenizer: Tokenizer, limits: Limits, prompt: Any, *answers: str) -> Rendered:
    (row,) = render([record(prompt, *answers)], tokenizer, limits)
    return row


def whole(tokenizer: Tokenizer, prompt: Any, *answers: str) -> Rendered:
    """Without limits; examples whose messages hold markup are passed over."""
    row = one(tokenizer, WIDE, prompt, *answers)
    assume(row.dropped is None)
    return row


@each_kind
@given(prompt=PROMPTS, answer=TEXTS)
def test_one_start_and_one_terminator(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: Any, answer: str
) -> None:
    tokenizer = tokenizer_kinds[kind]
    row = whole(tokenizer, prompt, answer)
    (ids,) = row.answers
    assert ids[-1] == tokenizer.eos_id and tokenizer.eos_id not in ids[:-1]
    if isinstance(prompt, str):
        assert row.prompt_ids[0] == tokenizer.start_id and tokenizer.start_id not in row.prompt_ids[1:]
    if tokenizer.bos_id is not None:
        assert row.prompt_ids.count(tokenizer.bos_id) == 1
        assert tokenizer.bos_id == tokenizer.eos_id or tokenizer.bos_id not in ids


@each_kind
@given(prompt=PROMPTS, other=PROMPTS, answer=TEXTS, another=TEXTS)
def test_prompt_and_answer_are_tokenised_apart(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: Any, other: Any, answer: str, another: str
) -> None:
    """The prompt's ids don't hang on the answer, nor the answer's on the prompt; so the one is a prefix by making."""
    tokenizer = tokenizer_kinds[kind]
    assume(isinstance(prompt, str) == isinstance(other, str))  # after a conversation an answer may begin with a space
    first, second = whole(tokenizer, prompt, answer), whole(tokenizer, prompt, another)
    assert first.prompt_ids == second.prompt_ids
    assert first.answers == whole(tokenizer, other, answer).answers


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@given(prompt=TEXTS, answer=TEXTS)
def test_ids_are_the_text_and_no_other(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: str, answer: str
) -> None:
    tokenizer = tokenizer_kinds[kind]
    row = whole(tokenizer, prompt, answer)
    text = tokenizer.decode(row.prompt_ids[1:], skip_special_tokens=False)
    assert (text, tokenizer.decode(row.answers[0][:-1], skip_special_tokens=False)) == (prompt, answer)


@each_kind
@given(
    prompt=PROMPTS, answer=TEXTS, limit=st.integers(2, 12), policy=st.sampled_from(["error", "drop", "truncate_left"])
)
def test_a_prompt_over_the_limit(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: Any, answer: str, limit: int, policy: Any
) -> None:
    tokenizer = tokenizer_kinds[kind]
    full = whole(tokenizer, prompt, answer)
    limits = Limits(limit, 2000, policy)
    if len(full.prompt_ids) <= limit:
        assert one(tokenizer, limits, prompt, answer) == full
    elif policy == "error":
        with pytest.raises(UserError, match=rf"d\.csv, line 1: the prompt has {len(full.prompt_ids)} tokens"):
            one(tokenizer, limits, prompt, answer)
    elif policy == "drop":
        row = one(tokenizer, limits, prompt, answer)
        assert (row.dropped, row.prompt_ids, row.answers) == (TOO_LONG, [], [])
    else:
        row = one(tokenizer, limits, prompt, answer)
        assert (row.cut_prompt, len(row.prompt_ids), row.answers) == (True, limit, full.answers)
        begins = full.prompt_ids[0] == tokenizer.start_id
        assert not begins or row.prompt_ids[0] == tokenizer.start_id
        assert row.prompt_ids[begins:] == full.prompt_ids[-(limit - begins) :]


@each_kind
@given(prompt=PROMPTS, answer=TEXTS, limit=st.integers(1, 12), room=st.none() | st.integers(1, 12))
def test_a_cut_answer_is_a_beginning_without_eos(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: Any, answer: str, limit: int, room: int | None
) -> None:
    tokenizer = tokenizer_kinds[kind]
    full = whole(tokenizer, prompt, answer)
    window = None if room is None else len(full.prompt_ids) + room
    row = one(tokenizer, Limits(2000, limit, "error", window), prompt, answer)
    length = min(limit, room or limit)
    assert row.answers == [full.answers[0][:length]]
    assert row.cut_answers == (len(full.answers[0]) > length)
    assert (tokenizer.eos_id in row.answers[0]) == (row.cut_answers == 0)


@each_kind
@given(prompt=PROMPTS, shared=TEXTS, ends=st.tuples(TEXTS, TEXTS), limit=st.integers(1, 12))
def test_a_pair_made_equal_by_the_cut_is_dropped(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], prompt: Any, shared: str, ends: tuple[str, str], limit: int
) -> None:
    tokenizer = tokenizer_kinds[kind]
    answers = [shared + end for end in ends]
    full = [whole(tokenizer, prompt, answer).answers[0] for answer in answers]
    row = one(tokenizer, Limits(2000, limit, "error"), prompt, *answers)
    if full[0][:limit] == full[1][:limit]:
        assert (row.dropped, row.prompt_ids, row.answers) == (EQUAL, [], [])
    else:
        assert row.dropped is None
        assert row.answers == [ids[:limit] for ids in full] and all(row.answers)
        assert row.cut_answers == sum(len(ids) > limit for ids in full)


@each_kind
@given(rows=st.lists(st.tuples(PROMPTS, TEXTS), min_size=1, max_size=5), limit=st.integers(2, 20))
def test_rows_keep_their_order_and_do_not_see_each_other(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], rows: Sequence[tuple[Any, str]], limit: int
) -> None:
    tokenizer = tokenizer_kinds[kind]
    records = [record(prompt, answer, number=n) for n, (prompt, answer) in enumerate(rows)]
    limits = Limits(limit, limit, "drop")
    found = render(records, tokenizer, limits)
    assert [row.id for row in found] == [each.id for each in records]
    assert found == [render([each], tokenizer, limits)[0] for each in records]
    assert {row.dropped for row in found} <= {None, TOO_LONG, MARKUP}


@each_kind
@given(texts=st.lists(TEXTS, max_size=3), place=st.integers(0, 3))
def test_an_empty_prompt_or_answer_is_an_error_with_its_row(
    kind: str, tokenizer_kinds: dict[str, Tokenizer], texts: list[str], place: int
) -> None:
    tokenizer, place = tokenizer_kinds[kind], min(place, len(texts))
    for empty in (("", "a"), ("a", "")):
        rows = [(text, text) for text in texts]
        rows.insert(place, empty)
        records = [record(prompt, answer, number=n) for n, (prompt, answer) in enumerate(rows)]
        with pytest.raises(UserError, match=rf"d\.csv, line {place}: (the prompt|a completion) has no tokens"):
            render(records, tokenizer, WIDE)
