"""Made-up texts of exact lengths in tokens, the same for every process of a row.

A text is of pieces that are one token each wherever they stand: single bytes for the tiny model, words with the space
before them for SmolLM2. So a prompt and its completion tokenised together give the ids of both.
"""

from __future__ import annotations

import math
import random
from typing import Any

from bench.work import ONLINE, PAIRS, Work

LINE = """
    the and for that with this from they have were which there their would about other into could them than then
    some time these two may first new now only its over also after use how our work well way even want because
    any give day most good look think come back see make know take people year your can just him out one all
    will say
"""
WORDS = LINE.split()


def pieces(draw: random.Random, count: int, model: str) -> list[str]:
    """`count` pieces of random words."""
    words = [f" {draw.choice(WORDS)}" for _ in range(count)]
    return words if model == "smollm2" else list("".join(words))[:count]


def lengths(draw: random.Random, work: Work) -> tuple[int, int]:
    """Tokens of a prompt and of its completion with the end token; ragged ones are uniform in their logarithm."""
    if not work.ragged:
        return work.prompt, work.completion

    def upto(longest: int, shortest: int) -> int:
        return round(math.exp(draw.uniform(math.log(shortest), math.log(longest))))

    return upto(work.prompt, 8), upto(work.completion, 16)


def make_rows(work: Work, seed: int = 0) -> list[dict[str, Any]]:
    """All rows of all steps, as texts: `prompt` and, by the method, `completion`, `chosen`, `rejected`, `label`."""
    draw = random.Random(seed)

    def text(count: int) -> str:
        return "".join(pieces(draw, count, work.model))

    rows: list[dict[str, Any]] = []
    for number in range(work.total_steps * work.rows // (work.group if work.method in ONLINE else 1)):
        prompt, completion = lengths(draw, work)
        row: dict[str, Any] = {"id": f"{number:06d}", "prompt": text(prompt)}
        if work.method in PAIRS:
            row.update(chosen=text(completion - 1), rejected=text(completion - 1))
        elif work.method not in ONLINE:
            row.update(completion=text(completion - 1), label=number % 2 == 0)
        rows.append(row)
    return rows
