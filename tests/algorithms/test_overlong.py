from __future__ import annotations

import pytest
import torch

from posttrain.algorithms.overlong import overlong_penalty


def eq_13(length: int, longest: int, buffer: int) -> float:
    if length <= longest - buffer:
        return 0.0
    return (longest - buffer - length) / buffer if length <= longest else -1.0


@pytest.mark.parametrize(("longest", "buffer"), [(20, 5), (20, 20), (7, 1)])
def test_by_the_papers_cases(longest, buffer):
    ours = overlong_penalty(torch.arange(30), longest=longest, buffer=buffer)
    assert ours.tolist() == pytest.approx([eq_13(length, longest, buffer) for length in range(30)])
    assert (ours[:-1] >= ours[1:]).all() and ours.min() == -1 and ours.max() == 0


@pytest.mark.parametrize("buffer", [0, -1, 21])
def test_errors(buffer):
    with pytest.raises(ValueError, match="buffer"):
        overlong_penalty(torch.arange(3), longest=20, buffer=buffer)
