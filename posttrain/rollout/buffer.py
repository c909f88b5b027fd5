"""Samples, and the queue that holds them between generation and training."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.rollout.engine import Finish


@dataclass
class Sample:
    """One completion of one prompt.

    `group` is common to the samples of one prompt in one call, `index` counts within the group. `log_probs` are those
    of `completion_ids` when policy `version` sampled them, after temperature, in nats. A scorer sets `reward`.
    """

    prompt_id: str
    group: int
    index: int
    prompt_ids: list[int]
    completion_ids: list[int]
    log_probs: list[float]
    finish: Finish
    version: int
    reward: float | None = None


class ReplayBuffer:
    """First in, first out: samples wait here until they are taken, and survive a restart with the resume state."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, samples: Iterable[Sample]) -> None:
        """Puts samples at the end, in their order."""
        self._samples.extend(samples)

    def take(self, n: int | None = None) -> list[Sample]:
        """Removes and returns the `n` oldest samples, or all.

        Raises:
            ValueError: there are fewer than `n`.
        """
        count = len(self) if n is None else n
        if count > len(self):
            raise ValueError(f"{count} samples wanted, the buffer holds {len(self)}")
        return [self._samples.popleft() for _ in range(count)]

    def state_dict(self) -> dict[str, Any]:
        """All samples, oldest first, as values that JSON can hold."""
        return {"samples": [dataclasses.asdict(sample) for sample in self._samples]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the content by what `state_dict` gave.

        Raises:
            ValueError: a key is missing or unknown.
        """
        if set(state) != {"samples"}:
            raise ValueError(f"the buffer's state has the key 'samples' alone, not {sorted(state)}")
        fields = {field.name for field in dataclasses.fields(Sample)}
        for values in state["samples"]:
            if set(values) != fields:
                raise ValueError(f"a sample's keys are {sorted(fields)}, not {sorted(values)}")
        self._samples = deque(Sample(**values) for values in state["samples"])
