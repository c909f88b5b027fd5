"""Byte-level BPE by its definition: split with a regular expression, then merge the best pair until none is left.

Written from GPT-2's published rule and independent of `tokenizers`. Slow; the pieces of a text are remembered.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import regex

GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
DIGITS = regex.compile(r"\p{N}|[^\p{N}]+")
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + place) for place, byte in enumerate(OTHERS)}


class Reference:
    """The ids of a text, with no special token added and none read."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], digits_alone: bool) -> None:
        self.ids = {token: place for place, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): place for place, merge in enumerate(merges)}
        self.digits_alone = digits_alone
        self.piece = functools.lru_cache(maxsize=None)(self._piece)

    def encode(self, text: str) -> list[int]:
        parts = DIGITS.findall(text) if self.digits_alone else [text]
        return [number for part in parts for piece in GPT2.findall(part) for number in self.piece(piece)]

    def _piece(self, piece: str) -> list[int]:
        units = [BYTES[byte] for byte in piece.encode()]
        while True:
            pairs = [pair for pair in itertools.pairwise(units) if pair in self.ranks]
            if not pairs:
                return [self.ids[unit] for unit in units]
            best = min(pairs, key=self.ranks.__getitem__)
            place = list(itertools.pairwise(units)).index(best)
            units[place : place + 2] = ["".join(best)]
