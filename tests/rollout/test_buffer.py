"""The buffer is a queue whose content survives a restart."""

from __future__ import annotations

import json

import pytest

import posttrain
from posttrain.rollout.buffer import ReplayBuffer, Sample


def sample(index: int) -> Sample:
    return Sample("p", 0, index, [1, 2], [3, 4], [-0.1, -0.25], "eos", 7, reward=None if index % 2 else 0.5)


def test_first_in_first_out() -> None:
    buffer = posttrain.ReplayBuffer()
    buffer.add(sample(i) for i in range(3))
    buffer.add([sample(3)])
    assert [s.index for s in buffer.take(2)] == [0, 1]
    assert len(buffer) == 2
    with pytest.raises(ValueError, match="3 samples wanted, the buffer holds 2"):
        buffer.take(3)
    assert [s.index for s in buffer.take()] == [2, 3]
    assert buffer.take() == []


def test_the_state_survives_json_exactly() -> None:
    buffer = ReplayBuffer()
    buffer.add(sample(i) for i in range(3))
    again = ReplayBuffer()
    again.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert again.take() == buffer.take()


def test_a_state_with_other_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="samples"):
        ReplayBuffer().load_state_dict({})
    state = {"samples": [{"prompt_id": "p"}]}
    with pytest.raises(ValueError, match="keys"):
        ReplayBuffer().load_state_dict(state)
