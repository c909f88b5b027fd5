import math

import pytest
import torch

from posttrain.config.schema import SFT
from posttrain.roles.optim import adamw, learning_rate


def rates(**settings):
    chosen = SFT(steps=10, **settings)
    return [learning_rate(chosen, 0.5, step) for step in range(1, 11)]


def test_constant():
    assert rates() == [0.5] * 10


def test_warm_up_reaches_the_peak_at_its_last_step():
    found = rates(warmup_steps=4)
    assert found[:5] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])
    assert found[5:] == [0.5] * 5


def test_linear_would_reach_zero_one_step_after_the_last():
    assert rates(schedule="linear") == pytest.approx([0.5 * (1 - i / 10) for i in range(10)])


def test_cosine_with_warm_up():
    found = rates(schedule="cosine", warmup_steps=2)
    assert found == pytest.approx([0.25, 0.5, *(0.25 * (1 + math.cos(math.pi * i / 8)) for i in range(8))])


def test_warm_up_to_the_last_step():
    assert rates(warmup_steps=10, schedule="linear") == pytest.approx([0.5 * i / 10 for i in range(1, 11)])


@pytest.mark.parametrize("step", [0, 11])
def test_a_step_outside_the_run_is_refused(step):
    with pytest.raises(ValueError, match=r"outside 1\.\.10"):
        learning_rate(SFT(steps=10), 1.0, step)


def test_decay_acts_on_matrices_only():
    matrix, vector = (torch.ones(shape, requires_grad=True) for shape in ((2, 2), (2,)))
    optimiser = adamw({"matrix": matrix, "vector": vector}, weight_decay=0.5)
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
    optimiser.step()
    assert torch.allclose(matrix, torch.tensor(0.95))
    assert torch.equal(vector, torch.ones(2))
