"""What the tests of models share."""

from __future__ import annotations

import random

import pytest

from posttrain.config.schema import Model
from posttrain.model.batch import Row


@pytest.fixture
def settings() -> Model:
    return Model(base="unused")


@pytest.fixture
def rows() -> list[Row]:
    """Unequal lengths: a one-token prompt, a one-token response, and ids equal to the padding's within the text."""
    generator = random.Random(0)

    def ids(length: int) -> list[int]:
        return [generator.randrange(3, 300) for _ in range(length)]

    return [(ids(1), [*ids(4), 2]), (ids(7), ids(1)), ([1, 0, *ids(18)], [0, *ids(10), 0]), (ids(3), ids(9))]
