"""Where texts are cut, with expectations written by hand."""

from __future__ import annotations

import pytest

from posttrain.data.opening import common_opening, opening_words


@pytest.mark.parametrize(
    ("text", "words", "opening"),
    [
        ("one two three", 2, "one two"),
        ("one  two\tthree", 2, "one  two"),
        ("one two", 2, "one two"),
        ("one", 2, "one"),
        ("one two three", 1, "one"),
        ("  one two", 1, "  one"),
        ("", 3, ""),
        ("don't stop now", 1, "don't"),
        ("a\u00a0b c", 1, "a"),
    ],
)
def test_opening_words(text: str, words: int, opening: str) -> None:
    assert opening_words(text, words) == (opening, text[len(opening) :])


@pytest.mark.parametrize(
    ("first", "second", "opening"),
    [
        ("Q: hi A: yes", "Q: hi A: no", "Q: hi A:"),
        ("Q: hi A: yes", "Q: hi A: yeah", "Q: hi A:"),
        ("Q: hi\n\nA:\nyes", "Q: hi\n\nA:\nno", "Q: hi\n\nA:"),
        ("I am", "I do", "I"),
        ("same words here", "same words", "same words"),
        ("same words", "same wordsmith", "same"),
        ("yes", "no", ""),
        ("", "no", ""),
        ("f(x) = 1", "f(y) = 1", "f("),
        ("12 + 34", "12 + 35", "12 +"),
        ("a\u0301 b", "a\u0300 b", ""),
        ("so e\u0301 b", "so e b", "so"),
        ("hi \U0001f468\u200d\U0001f469 a", "hi \U0001f468 a", "hi"),
        ("good\u3002\u597d", "good\u3002\u4e0d", "good\u3002"),
    ],
)
def test_common_opening(first: str, second: str, opening: str) -> None:
    assert common_opening(first, second) == opening
    assert common_opening(second, first) == opening
