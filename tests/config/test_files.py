"""Functions of the user's own are looked at before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.config.files import check_user_files
from posttrain.config.registry import METHODS, arguments_for
from posttrain.errors import UserError
from tests.config.sections import run_of

OWN = """
def one(chosen): ...
def two(chosen, rejected, *, beta, width=1.0): ...
def three(a, b, c): ...
def beta_in_its_place(chosen, rejected, beta): ...
def with_a_default(chosen, rejected, width=1.0): ...
def any_number(*tensors): ...
def four(log_probs, old, advantages, mask): ...
def wants_tau(chosen, rejected, *, tau): ...
"""


def check(folder: Path, method: str, key: str, function: str, **settings: Any) -> None:
    path = folder / "mine.py"
    path.write_text(OWN)
    check_user_files("mine", run_of(method, **{key: f"{path}:{function}"}, **settings))


@pytest.mark.parametrize(
    ("method", "key", "function"),
    [
        ("dpo", "loss", "two"),
        ("dpo", "loss", "with_a_default"),
        ("online_dpo", "loss", "any_number"),
        ("kto", "loss", "three"),
        ("bco", "loss", "three"),
        ("grpo", "advantages", "three"),
        ("ppo", "kl_estimator", "three"),
        ("remax", "policy_loss", "four"),
    ],
)
def test_what_takes_the_tensors_that_it_gets_is_taken(method: str, key: str, function: str, tmp_path: Path) -> None:
    check(tmp_path, method, key, function)


@pytest.mark.parametrize(
    ("method", "key", "function", "gets"),
    [
        ("dpo", "loss", "one", "2 tensors: chosen, rejected"),
        ("dpo", "loss", "beta_in_its_place", "2 tensors: chosen, rejected"),
        ("kto", "loss", "two", "3 tensors: log_ratios, labels, baseline"),
        ("grpo", "advantages", "two", "3 tensors: rewards, mask, groups"),
        ("grpo", "policy_loss", "three", "4 tensors: log_probs, old, advantages, mask"),
        ("ppo", "kl_estimator", "four", "3 tensors: log_probs, ref_log_probs, mask"),
    ],
)
def test_what_takes_others_is_refused(method: str, key: str, function: str, gets: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"runs.mine.{key}: .*mine.py:{function} has .* gets {gets}"):
        check(tmp_path, method, key, function)


def test_a_setting_that_nobody_gives_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wants tau; give it as runs\.mine\.options\.tau"):
        check(tmp_path, "dpo", "loss", "wants_tau")
    check(tmp_path, "dpo", "loss", "wants_tau", options={"tau": 1.0})


def test_what_a_part_gets_is_known_for_every_method() -> None:
    for name, method in METHODS.items():
        for key in method.choices:
            wanted = {"loss": 3 if name in ("kto", "bco") else 2, "policy_loss": 4}.get(key, 3)
            assert len(arguments_for(run_of(name), key)) == wanted
