"""What a generation engine is: a small protocol, so that the training loop does not know which one it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Finish = Literal["eos", "length"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate: its prompt's ids, and the seed of its own random numbers."""

    prompt_ids: Sequence[int]
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How to sample: by temperature alone, so that a trainer's log-probabilities can match.

    `greedy` takes the most probable token instead; log-probabilities are at `temperature` all the same. `batch` is the
    number of sequences generated at once.
    """

    max_new_tokens: int
    temperature: float
    eos_id: int
    batch: int
    greedy: bool = False

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above zero, not {self.temperature}; use greedy for the best token")
        if self.max_new_tokens < 1 or self.batch < 1:
            raise ValueError("max_new_tokens and batch must be at least 1")


@dataclass(frozen=True)
class Completion:
    """What a request gave.

    `ids` are exactly the sampled ids, with the end token when it was sampled (`finish` is then "eos"); `log_probs` are
    theirs, after temperature, in nats; `version` counts the weight updates of the policy that sampled them.
    """

    ids: list[int]
    log_probs: list[float]
    finish: Finish
    version: int


class GenerationEngine(Protocol):
    """Anything that generates and takes new weights. `version` counts the updates it has taken."""

    version: int

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion per request, in the requests' order; a row does not depend on the others in its batch."""
        ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> int:
        """Takes every parameter from the stream of (name, tensor); returns the bytes that were moved."""
        ...
