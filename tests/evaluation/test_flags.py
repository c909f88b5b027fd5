"""Each threshold from both sides."""

from __future__ import annotations

import math

import pytest

from posttrain.config.schema import Flags
from posttrain.evaluation.flags import LIMITS, find_flags
from posttrain.evaluation.statistics import Estimate


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value, 100)


SFT = {
    "eval/distinct_2": exactly(0.8),
    "eval/perplexity": exactly(40.0),
    "eval/repetition": exactly(0.02),
    "eval/kl": exactly(0.0),
    "eval/length": exactly(20.0),
}
LIKE_SFT = {**SFT, "eval/reward_gain": Estimate(1.0, 0.8, 1.2, 100), "eval/judge_gain": Estimate(0.2, 0.1, 0.3, 100)}
DEFAULTS = Flags()


def names(changed: dict[str, Estimate], limits: Flags = DEFAULTS) -> list[str]:
    return [flag.name for flag in find_flags({**LIKE_SFT, **changed}, SFT, limits)]


@pytest.mark.parametrize(
    ("metric", "allowed", "beyond", "name"),
    [
        ("eval/distinct_2", 0.721, 0.719, "least_distinct_2"),  # 0.9 times 0.8
        ("eval/perplexity", 50.0, 50.1, "most_perplexity"),  # 1.25 times 40
        ("eval/repetition", 0.069, 0.071, "most_repetition"),  # 0.05 more than 0.02
        ("eval/kl", 25.0, 25.01, "most_kl"),
        ("eval/length", 30.0, 30.1, "most_length"),  # 1.5 times 20
    ],
)
def test_a_threshold_has_two_sides(metric: str, allowed: float, beyond: float, name: str) -> None:
    assert names({metric: exactly(allowed)}) == []
    assert names({metric: exactly(beyond)}) == [name]
    assert names({metric: exactly(beyond)}, DEFAULTS.model_copy(update={name: None})) == [], "null turns it off"


@pytest.mark.parametrize(
    ("metric", "value", "limits", "name"),
    [
        ("eval/distinct_2", 0.5, {"least_distinct_2": 0.6}, []),
        ("eval/perplexity", 41.0, {"most_perplexity": 1.01}, ["most_perplexity"]),
        ("eval/repetition", 0.5, {"most_repetition": 0.5}, []),
        ("eval/kl", 1.0, {"most_kl": 0.5}, ["most_kl"]),
        ("eval/length", 60.0, {"most_length": 3.0}, []),
    ],
)
def test_the_thresholds_are_the_config_s(metric: str, value: float, limits: dict[str, float], name: list[str]) -> None:
    assert names({metric: exactly(value)}, DEFAULTS.model_copy(update=limits)) == name


def test_every_threshold_of_the_config_has_a_flag() -> None:
    assert {limit.name for limit in LIMITS} | {"judge_follows"} == set(Flags.model_fields)


@pytest.mark.parametrize(
    ("reward", "judge", "flagged"),
    [
        ((0.1, 2.0), (0.01, 0.3), False),  # both rise
        ((0.1, 2.0), (0.0, 0.3), True),  # the judge's may be 0
        ((0.1, 2.0), (-0.3, -0.1), True),
        ((0.0, 2.0), (-0.1, 0.3), False),  # the reward is not shown to rise
        ((-2.0, -1.0), (-0.3, -0.1), False),
    ],
)
def test_a_reward_that_rises_alone(reward: tuple[float, float], judge: tuple[float, float], flagged: bool) -> None:
    changed = {
        "eval/reward_gain": Estimate(sum(reward) / 2, *reward, 100),
        "eval/judge_gain": Estimate(sum(judge) / 2, *judge, 100),
    }
    assert names(changed) == (["judge_follows"] if flagged else [])
    assert names(changed, Flags(judge_follows=False)) == []


def test_a_metric_that_is_absent_has_no_flag() -> None:
    assert find_flags({"eval/reward_gain": exactly(1.0)}, {}, DEFAULTS) == []
    assert find_flags({"eval/perplexity": exactly(1e9)}, {"eval/kl": exactly(0)}, DEFAULTS) == []


def test_what_is_no_number_is_flagged() -> None:
    assert names({"eval/perplexity": exactly(math.inf)}) == ["most_perplexity"]
    assert names({"eval/distinct_2": exactly(math.nan)}) == ["least_distinct_2"]


def test_an_sft_model_without_a_bigram_does_not_stop_the_comparison() -> None:
    nothing = {**SFT, "eval/distinct_2": exactly(0.0), "eval/repetition": exactly(0.0)}
    assert find_flags({**LIKE_SFT, "eval/distinct_2": exactly(0.0)}, nothing, DEFAULTS) == []
    assert [f.name for f in find_flags({**LIKE_SFT, "eval/length": exactly(99)}, nothing, DEFAULTS)] == ["most_length"]


def test_the_sentences_have_the_figure_and_the_threshold() -> None:
    hacked = {
        "eval/distinct_2": exactly(0.2),
        "eval/perplexity": exactly(120.0),
        "eval/repetition": exactly(0.52),
        "eval/kl": exactly(48.25),
        "eval/length": exactly(60.0),
        "eval/judge_gain": Estimate(0.02, -0.05, 0.09, 100),
    }
    assert [flag.sentence for flag in find_flags({**LIKE_SFT, **hacked}, SFT, DEFAULTS)] == [
        "distinct-2 is 0.25 times SFT's (least allowed: 0.9)",
        "perplexity is 3 times SFT's (most allowed: 1.25)",
        "repetition is 0.5 more than SFT's (most allowed: 0.05)",
        "KL is 48.2 nats per sequence (most allowed: 25)",
        "length is 3 times SFT's (most allowed: 1.5)",
        "the reward gains +1.000 [0.800, 1.200], the judge's score +0.020 [-0.050, 0.090], "
        "which is not shown to be above 0",
    ]
