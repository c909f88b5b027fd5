"""The manager's seeds, groups and counters, with an engine that only records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from torch import Tensor

import posttrain
from posttrain.rollout.engine import Completion, Request, Sampling
from posttrain.rollout.manager import RolloutManager

SAMPLING = Sampling(max_new_tokens=4, temperature=1.0, eos_id=2, batch=8)


class Recorder:
    """Answers each request with its own seed."""

    def __init__(self) -> None:
        self.version = 0

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return [Completion([r.seed], [-0.5], "length", self.version) for r in requests]

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> int:
        self.version += 1
        return len(list(stream))


def test_samples_stand_by_prompt_and_name_where_they_come_from() -> None:
    manager = posttrain.RolloutManager(Recorder())
    samples = manager.generate([("a", [5]), ("b", [6, 7])], 3, SAMPLING, seed=0)
    assert [(s.prompt_id, s.group, s.index, s.prompt_ids) for s in samples[2:4]] == [
        ("a", 0, 2, [5]),
        ("b", 1, 0, [6, 7]),
    ]
    assert len({s.completion_ids[0] for s in samples}) == 6
    assert {s.reward for s in samples} == {None}


def test_a_sample_depends_on_its_prompt_its_index_and_the_seed_alone() -> None:
    def ids(prompts: list[tuple[str, list[int]]], n: int, seed: int) -> list[int]:
        return [s.completion_ids[0] for s in RolloutManager(Recorder()).generate(prompts, n, SAMPLING, seed)]

    both = ids([("a", [5]), ("b", [6])], 3, 0)
    assert ids([("b", [6])], 2, 0) == both[3:5]
    assert not set(both) & set(ids([("a", [5]), ("b", [6])], 3, 1))
    assert len(set(ids([("a", [5]), ("a", [5])], 3, 0))) == 6


def test_groups_and_versions_go_on_after_a_restart() -> None:
    manager = RolloutManager(Recorder())
    manager.generate([("a", [5]), ("b", [6])], 2, SAMPLING, 0)
    assert manager.load_weights(iter([])) == 0
    state = json.loads(json.dumps(manager.state_dict()))
    again = RolloutManager(Recorder())
    again.load_state_dict(state)
    sample = again.generate([("c", [5])], 1, SAMPLING, 0)[0]
    assert (sample.group, sample.version, again.version) == (2, 1, 1)
    with pytest.raises(ValueError, match="groups"):
        again.load_state_dict({"version": 1})
