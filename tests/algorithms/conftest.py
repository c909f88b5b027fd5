"""Random ragged inputs, the same in every run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

RaggedMask = Callable[[int, int], Tensor]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def ragged_mask(generator: torch.Generator) -> RaggedMask:
    """(rows, width) -> bool mask whose rows have 1..width tokens at the left; the first row is full."""

    def make(rows: int, width: int) -> Tensor:
        lengths = torch.randint(1, width + 1, (rows,), generator=generator)
        lengths[0] = width
        return torch.arange(width) < lengths[:, None]

    return make


@pytest.fixture
def normal(generator: torch.Generator) -> Callable[..., Tensor]:
    """(*shape) -> float64 normal numbers."""

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return make
