"""Where a text is cut into prompt and completion: after some words, or where two answers part."""

from __future__ import annotations

import re
import unicodedata
from itertools import takewhile

_JOINER = "\u200d"


def opening_words(text: str, words: int) -> tuple[str, str]:
    """The first `words` words of `text` and all that follows, its space included: they add up to `text`."""
    found = re.match(rf"\s*\S+(?:\s+\S+){{0,{words - 1}}}", text)
    end = found.end() if found else 0
    return text[:end], text[end:]


def common_opening(first: str, second: str) -> str:
    """The longest common beginning of two texts that ends where a word ends.

    Space at the end of the beginning is left to the answers, because tokenizers keep a space with the word after it. A
    letter never parts from its accents, nor an emoji from what is joined to it. Empty if the first words differ.
    """
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    while end and any(_joined(text, end) for text in (first, second)):
        end -= 1
    return first[:end].rstrip()


def _joined(text: str, at: int) -> bool:
    """Whether a cut before `text[at]` would part what belongs together."""
    if at >= len(text):
        return False
    left, right = text[at - 1], text[at]
    if unicodedata.category(right).startswith("M") or _JOINER in (left, right):
        return True
    return _in_word(left) and _in_word(right)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
