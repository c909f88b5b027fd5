"""The public way to generate samples: prompts in, groups of samples out, whatever the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from posttrain.rollout.buffer import Sample
from posttrain.rollout.engine import GenerationEngine, Request, Sampling
from posttrain.runtime.seeds import derive

Prompt = tuple[str, Sequence[int]]  # id, token ids


class RolloutManager:
    """Asks an engine for `n` samples of each prompt and keeps count of groups and policy versions."""

    def __init__(self, engine: GenerationEngine) -> None:
        self.engine = engine
        self._groups = 0

    @property
    def version(self) -> int:
        """How many weight updates the engine has taken."""
        return self.engine.version

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling, seed: int) -> list[Sample]:
        """`n` samples of each (id, ids) prompt, prompt after prompt, in the prompts' order.

        A sample depends on the weights, the seed, its prompt and its index alone, not on the other prompts. A prompt
        that stands twice among `prompts` gets two groups of different samples.

        Raises:
            UserError: a prompt and its new tokens do not fit into the model's context.
        """
        seen: Counter[str] = Counter()
        requests = []
        for prompt_id, ids in prompts:
            names = [(prompt_id, str(seen[prompt_id]), str(index)) for index in range(n)]
            requests += [Request(ids, derive(seed, *name)) for name in names]
            seen[prompt_id] += 1
        completions = self.engine.generate(requests, sampling)
        samples = []
        for position, completion in enumerate(completions):
            (prompt_id, ids), index = prompts[position // n], position % n
            samples.append(
                Sample(
                    prompt_id=prompt_id,
                    group=self._groups + position // n,
                    index=index,
                    prompt_ids=list(ids),
                    completion_ids=completion.ids,
                    log_probs=completion.log_probs,
                    finish=completion.finish,
                    version=completion.version,
                )
            )
        self._groups += len(prompts)
        return samples

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> int:
        """Hands the trainer's weights to the engine; returns the bytes moved (0 where both share their storage)."""
        return self.engine.load_weights(stream)

    def state_dict(self) -> dict[str, int]:
        """The counters: groups made and weight updates taken. The weights are the trainer's to keep."""
        return {"groups": self._groups, "version": self.engine.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the counters back.

        Raises:
            ValueError: a key is missing or unknown.
        """
        if set(state) != {"groups", "version"}:
            raise ValueError(f"the rollout's state has the keys groups and version, not {sorted(state)}")
        self._groups, self.engine.version = int(state["groups"]), int(state["version"])
