"""What a function of the user's own gives is looked at where it is given: whose fault, and the mend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.errors import UserError
from posttrain.trainer.parts import parts_of
from tests.config.sections import run_of

OWN = """
import torch

def good(chosen, rejected):
    return chosen - rejected, {"gap": (chosen - rejected).detach()}

def not_a_number(chosen, rejected):
    return (chosen - rejected) * float("nan"), {}

def detached(chosen, rejected):
    return (chosen - rejected).detach(), {}

def whole_numbers(chosen, rejected):
    return (chosen > rejected).int(), {}

def one_statistic(chosen, rejected):
    return chosen - rejected, {"gap": (chosen - rejected).mean()}

def a_plain_number(chosen, rejected):
    return chosen - rejected, {"gap": 1.0}

def a_name_of_the_trainers(chosen, rejected):
    return chosen - rejected, {"loss": chosen.detach()}

def a_name_that_is_none(chosen, rejected):
    return chosen - rejected, {3: chosen.detach()}

def bools(rewards, mask, groups):
    return mask

def infinite(rewards, mask, groups):
    return torch.where(mask, rewards / 0, 0.0)

def garbage_where_masked(rewards, mask, groups):
    return torch.where(mask, rewards, float("nan"))

def nothing_known(log_probs, reference, mask):
    return (log_probs - reference) * float("nan")

def infinite_policy(log_probs, old, advantages, mask):
    return log_probs / 0, {}

def garbage_policy(log_probs, old, advantages, mask):
    return torch.where(mask, -advantages * log_probs, float("inf")), {}
"""
MASK = torch.tensor([[True, True, False], [True, False, False]])


def call(folder: Path, method: str, key: str, function: str, *tensors: Any) -> Any:
    path = folder / "mine.py"
    path.write_text(OWN)
    return parts_of(run_of(method, **{key: f"{path}:{function}"}), {key: path})[key](*tensors)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([0.5, 3.0], requires_grad=True)


def test_a_good_loss_is_passed_on(tmp_path: Path) -> None:
    losses, stats = call(tmp_path, "dpo", "loss", "good", *pair())
    assert losses.tolist() == stats["gap"].tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("not_a_number", "made NaN or an infinity of finite numbers; mend the function"),
        ("detached", "returned losses without a gradient"),
        ("whole_numbers", "returned torch.int32, where floating-point numbers belong"),
        ("one_statistic", r"returned as the statistic 'gap' \(\), where a tensor of shape \(2,\) belongs"),
        ("a_plain_number", "returned as the statistic 'gap' float, where a tensor"),
        ("a_name_of_the_trainers", "has a statistic 'loss', a name that cannot be given"),
        ("a_name_that_is_none", "has a statistic 3, a name that cannot be given"),
    ],
)
def test_a_faulty_loss_is_named(function: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"loss: .*mine.py:{function} {said}"):
        call(tmp_path, "dpo", "loss", function, *pair())


@pytest.mark.parametrize(
    ("key", "function", "said"),
    [
        ("advantages", "bools", "returned torch.bool"),
        ("advantages", "infinite", "made NaN or an infinity"),
        ("kl_estimator", "nothing_known", "made NaN or an infinity"),
        ("policy_loss", "infinite_policy", "made NaN or an infinity"),
    ],
)
def test_other_faulty_parts_are_named(key: str, function: str, said: str, tmp_path: Path) -> None:
    values = torch.rand(2, 3, requires_grad=key == "policy_loss")
    others = {
        "advantages": (MASK, torch.tensor([0, 0])),
        "kl_estimator": (torch.rand(2, 3), MASK),
        "policy_loss": (torch.rand(2, 3), torch.rand(2, 3), MASK),
    }
    with pytest.raises(UserError, match=f"{key}: .*mine.py:{function} {said}"):
        call(tmp_path, "grpo", key, function, values, *others[key])


def test_values_where_there_is_no_token_may_be_anything(tmp_path: Path) -> None:
    groups, policy = torch.tensor([0, 0]), torch.rand(2, 3, requires_grad=True)
    call(tmp_path, "grpo", "advantages", "garbage_where_masked", torch.rand(2, 3), MASK, groups)
    call(tmp_path, "grpo", "policy_loss", "garbage_policy", policy, torch.rand(2, 3), torch.rand(2, 3), MASK)


def test_a_model_that_has_diverged_is_not_the_functions_fault(tmp_path: Path) -> None:
    chosen, rejected = pair()
    losses, _ = call(tmp_path, "dpo", "loss", "good", chosen * float("nan"), rejected)
    assert losses.isnan().all()
