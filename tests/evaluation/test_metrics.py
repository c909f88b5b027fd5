from __future__ import annotations

import math
import statistics as standard
from typing import Any

import pytest

from posttrain.errors import UserError
from posttrain.evaluation.metrics import PAIRED, absolute, paired


def row(key: str, ids: list[int], finish: str = "eos", **changed: Any) -> dict[str, Any]:
    made = {"id": key, "prompt_ids": [1], "completion_ids": ids, "finish": finish, "reward": 0.0, "kl": 0.0}
    return {**made, "judge": None, "base_log_prob": None, **changed}


ROWS = [
    row("a", [5, 6, 2], reward=1.0, kl=3.0),
    row("b", [5, 6, 5, 6], "length", reward=4.0, kl=1.0),
    row("c", [2], reward=-2.0, kl=0.5),
]
JUDGED = [
    {**row, "judge": judge, "base_log_prob": base}
    for row, judge, base in zip(ROWS, (0.5, -0.1, 0.2), (-6.0, -10.0, -2.0), strict=True)
]


def test_every_metric_by_hand() -> None:
    found = {name: estimate.value for name, estimate in absolute(ROWS, 50, 0).items()}
    assert found == {
        "eval/reward": pytest.approx(1.0),
        "eval/kl": pytest.approx(1.5),
        "eval/kl_error": pytest.approx(standard.stdev([3.0, 1.0, 0.5]) / math.sqrt(3)),
        "eval/kl_per_token": pytest.approx(4.5 / 8),
        "eval/length": pytest.approx(8 / 3),
        "eval/truncated": pytest.approx(1 / 3),
        # without terminators: 5 6 | 5 6, 6 5, 5 6 | nothing
        "eval/distinct_2": pytest.approx(2 / 4),
        "eval/repetition": pytest.approx((0 + 1 / 3 + 0) / 3),
    }


def test_a_judge_and_a_trained_base_add_a_metric_each() -> None:
    found = absolute(JUDGED, 50, 0)
    assert found.keys() - absolute(ROWS, 50, 0).keys() == {"eval/judge", "eval/perplexity"}
    assert found["eval/judge"].value == pytest.approx(0.2)
    assert found["eval/perplexity"].value == pytest.approx(math.exp(18 / 8)), "of sums, not a mean of ratios"
    alone = [{**row, "base_log_prob": None} for row in JUDGED]
    assert "eval/judge" in absolute(alone, 50, 0) and "eval/perplexity" not in absolute(alone, 50, 0)


def test_every_interval_holds_its_value_and_counts_prompts() -> None:
    for estimate in absolute(JUDGED, 200, 0).values():
        assert estimate.low <= estimate.value <= estimate.high and estimate.n == 3


def test_one_prompt_is_enough_for_finite_numbers() -> None:
    for estimate in absolute(JUDGED[:1], 20, 0).values():
        assert all(map(math.isfinite, (estimate.value, estimate.low, estimate.high)))


def test_pairs_are_matched_by_id_not_by_place() -> None:
    baseline = [row("c", [2], reward=0.0), row("a", [2], reward=1.0), row("b", [2], reward=2.0)]
    found = paired(ROWS, baseline, "ppo", 100, 0)
    assert list(found) == ["eval/reward_gain", "eval/win_rate"]
    assert found["eval/reward_gain"].value == pytest.approx((0 + 2 - 2) / 3)
    assert found["eval/win_rate"].value == pytest.approx((0.5 + 1 + 0) / 3)


def test_the_judge_decides_who_wins() -> None:
    baseline = [
        row("c", [2], reward=0.0, judge=0.1),
        row("a", [2], reward=9.0, judge=0.5),
        row("b", [2], reward=9.0, judge=0.6),
    ]
    found = paired(JUDGED, baseline, "ppo", 100, 0)
    assert tuple(found) == PAIRED
    assert found["eval/reward_gain"].value == pytest.approx((1 - 9 + 4 - 9 - 2 - 0) / 3)
    assert found["eval/judge_gain"].value == pytest.approx((0.0 - 0.7 + 0.1) / 3)
    assert found["eval/win_rate"].value == pytest.approx((0.5 + 0 + 1) / 3), "a tie is half a win"


def test_a_pairing_is_sharper_than_two_means() -> None:
    ours = [row(str(i), [2], reward=10.0 * i + 1, judge=5.0 * i + 2) for i in range(50)]
    theirs = [row(str(i), [2], reward=10.0 * i, judge=5.0 * i) for i in range(50)]
    found = paired(ours, theirs, "ppo", 100, 0)
    for name, gain in (("eval/reward_gain", 1.0), ("eval/judge_gain", 2.0)):
        assert (found[name].low, found[name].value, found[name].high) == (gain, gain, gain)
    wide = absolute(ours, 100, 0)["eval/judge"]
    assert wide.high - wide.low > 10


@pytest.mark.parametrize("change", [{"id": "z"}, {"prompt_ids": [9]}])
def test_other_prompts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"ppo .* different prompts"):
        paired(ROWS, [*ROWS[:2], {**ROWS[2], **change}], "ppo", 10, 0)


@pytest.mark.parametrize(("ours", "theirs"), [(ROWS, JUDGED), (JUDGED, ROWS)])
def test_a_judge_of_one_alone_is_refused(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    with pytest.raises(UserError, match="a judge scored only one of ppo and its baseline"):
        paired(ours, theirs, "ppo", 10, 0)
