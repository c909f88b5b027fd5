from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import UserError
from posttrain.evaluation.metrics import PAIRED, absolute, paired


def row(key: str, ids: list[int], finish: str = "eos", reward: float = 0.0, kl: float = 0.0) -> dict[str, Any]:
    return {"id": key, "prompt_ids": [1], "completion_ids": ids, "finish": finish, "reward": reward, "kl": kl}


ROWS = [
    row("a", [5, 6, 2], reward=1.0, kl=3.0),
    row("b", [5, 6, 5, 6], "length", reward=4.0, kl=1.0),
    row("c", [2], reward=-2.0, kl=0.5),
]


def test_every_metric_by_hand() -> None:
    found = {name: estimate.value for name, estimate in absolute(ROWS, 50, 0).items()}
    assert found == {
        "eval/reward": pytest.approx(1.0),
        "eval/kl": pytest.approx(1.5),
        "eval/kl_per_token": pytest.approx(4.5 / 8),
        "eval/length": pytest.approx(8 / 3),
        "eval/truncated": pytest.approx(1 / 3),
        # without terminators: 5 6 | 5 6, 6 5, 5 6 | nothing
        "eval/distinct_2": pytest.approx(2 / 4),
        "eval/repetition": pytest.approx((0 + 1 / 3 + 0) / 3),
    }


def test_every_interval_holds_its_value_and_counts_prompts() -> None:
    for estimate in absolute(ROWS, 200, 0).values():
        assert estimate.low <= estimate.value <= estimate.high and estimate.n == 3


def test_pairs_are_matched_by_id_not_by_place() -> None:
    baseline = [row("c", [2], reward=0.0), row("a", [2], reward=1.0), row("b", [2], reward=2.0)]
    found = paired(ROWS, baseline, "ppo", 100, 0)
    assert tuple(found) == PAIRED
    assert found["eval/reward_gain"].value == pytest.approx((0 + 2 - 2) / 3)
    assert found["eval/win_rate"].value == pytest.approx((0.5 + 1 + 0) / 3)


def test_a_pairing_is_sharper_than_two_means() -> None:
    ours = [row(str(i), [2], reward=10.0 * i + 1) for i in range(50)]
    theirs = [row(str(i), [2], reward=10.0 * i) for i in range(50)]
    found = paired(ours, theirs, "ppo", 100, 0)["eval/reward_gain"]
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("change", [{"id": "z"}, {"prompt_ids": [9]}])
def test_other_prompts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"ppo .* different prompts"):
        paired(ROWS, [*ROWS[:2], {**ROWS[2], **change}], "ppo", 10, 0)
