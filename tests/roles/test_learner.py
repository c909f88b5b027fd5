import pytest
import torch
from torch import nn

from posttrain.config.schema import SFT
from posttrain.errors import UserError
from posttrain.roles.learner import Learner

SETTINGS = SFT(steps=10, learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5)


def linear(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(4, 3, dtype=dtype)


def parts(module, inputs, pieces):
    for piece in inputs.chunk(pieces):
        loss = module(piece).square().sum() / len(inputs)
        yield loss, {"rows": len(piece) / len(inputs)}


def test_one_step_is_what_torch_does_with_the_whole_batch():
    inputs = torch.randn(6, 4)
    ours, theirs = linear(), linear()
    learner = Learner(ours, SETTINGS, SETTINGS.learning_rate)
    decay = [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}]
    oracle = torch.optim.AdamW(decay, lr=0.01, foreach=False)
    for step in range(1, 4):
        metrics = learner.update(parts(ours, inputs, 3), step)
        loss = theirs(inputs).square().sum() / 6
        oracle.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        oracle.step()
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert metrics["grad_norm"] > 0.5, "the test must clip"
        assert metrics["rows"] == pytest.approx(1.0)
        assert metrics["learning_rate"] == 0.01
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
    assert torch.allclose(ours.bias, theirs.bias, atol=1e-6)


def test_a_frozen_parameter_has_no_state_and_does_not_move():
    module = linear()
    module.bias.requires_grad_(False)
    before = module.bias.clone()
    learner = Learner(module, SETTINGS, 0.01)
    learner.update(parts(module, torch.randn(2, 4), 1), 1)
    assert sorted(learner.tensors()) == [
        "model/weight",
        "optimiser/weight/exp_avg",
        "optimiser/weight/exp_avg_sq",
        "optimiser/weight/step",
    ]
    assert torch.equal(module.bias, before)


def test_small_steps_are_not_lost_in_half_precision():
    module = linear(torch.bfloat16)
    learner = Learner(module, SFT(steps=200, learning_rate=1e-5), 1e-5)
    start = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    inputs = torch.randn(4, 4, dtype=torch.bfloat16)
    for step in range(1, 101):
        learner.update(parts(module, inputs, 2), step)
    moved = (learner.tensors()["model/weight"] - start["model/weight"]).abs()
    assert learner.tensors()["model/weight"].dtype == torch.float32
    assert float(moved.mean()) > 5e-4, "a hundred steps of 1e-5 each"
    assert torch.equal(module.weight, learner.tensors()["model/weight"].bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_continues_exactly(dtype):
    inputs = torch.randn(4, 4, dtype=dtype)
    whole, first, second = (linear(dtype) for _ in range(3))
    straight = Learner(whole, SETTINGS, 0.01)
    for step in range(1, 7):
        straight.update(parts(whole, inputs, 2), step)
    half = Learner(first, SETTINGS, 0.01)
    for step in range(1, 4):
        half.update(parts(first, inputs, 2), step)
    rest = Learner(second, SETTINGS, 0.01)
    rest.load({name: tensor.clone() for name, tensor in half.tensors().items()})
    for step in range(4, 7):
        rest.update(parts(second, inputs, 2), step)
    assert torch.equal(whole.weight, second.weight)
    assert all(torch.equal(value, rest.tensors()[name]) for name, value in straight.tensors().items())


def test_a_gradient_that_is_not_finite_stops_the_training():
    module = linear()
    with pytest.raises(UserError, match=r"diverged.*nan.*learning_rate"):
        Learner(module, SETTINGS, 0.01).update(parts(module, torch.full((2, 4), torch.nan), 1), 1)
    assert module.weight.isfinite().all()


def test_a_module_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter"):
        Learner(linear().requires_grad_(False), SETTINGS, 0.01)
