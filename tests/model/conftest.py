"""What the tests of models share."""

from __future__ import annotations

import random

import pytest

from posttrain.config.schema import Model
from posttrain.model.packing import Packing, Row

FREE = Packing(masked=0.0, causal=0.0)
"""Attention costs nothing: the arrangement with the fewest tokens wins."""


@pytest.fixture
def settings() -> Model:
    return Model(base="unused")


def _ids(generator: random.Random, length: int) -> list[int]:
    return [generator.randrange(3, 300) for _ in range(length)]


@pytest.fixture
def rows() -> list[Row]:
    """Unequal lengths: a one-token prompt, a one-token response, and ids equal to the padding's within the text."""
    draw = random.Random(0)
    return [
        (_ids(draw, 1), [*_ids(draw, 4), 2]),
        (_ids(draw, 7), _ids(draw, 1)),
        ([1, 0, *_ids(draw, 18)], [0, *_ids(draw, 10), 0]),
        (_ids(draw, 3), _ids(draw, 9)),
    ]


@pytest.fixture
def family(rows: list[Row]) -> list[Row]:
    """Also rows that share prompts, of one token and of many, one completion that begins another, and an empty one."""
    draw = random.Random(1)
    first, third = rows[0], rows[2]
    more: list[Row] = [(first[0], _ids(draw, length)) for length in (14, 3)]
    more += [(third[0], _ids(draw, 6)), (third[0], third[1][:5]), (third[0], [])]
    return [*rows, *more, (_ids(draw, 2), _ids(draw, 2))]
