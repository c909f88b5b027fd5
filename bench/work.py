"""The rows of the table: what one step of each works on, and the least that must be computed for it.

Read by every process of the bench, TRL's own environment included: the standard library alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["sft", "reward_model", "dpo", "kto", "grpo", "rloo", "ppo"]
ONLINE = ("grpo", "rloo", "ppo")
PAIRS = ("reward_model", "dpo")


@dataclass(frozen=True)
class Work:
    """One row of the table.

    rows: sequences, pairs, labelled completions or samples of one optimiser step. prompt, completion: their lengths in
    tokens, the end token among them; the longest where `ragged`. group: samples of one prompt. epochs: optimiser steps
    on one step's samples; of an offline method the passes over the data that share one pass of the reference.
    judge: the reward is a reward model's, not a Python function's. kl: the KL term's weight; above zero there is a
    reference. peers: TRL's settings to try, by name; the fastest counts. ours: settings of ours.
    steps, warmup: how many steps are measured, and how many go before.
    """

    name: str
    method: Method
    rows: int
    prompt: int
    completion: int
    model: Literal["tiny", "smollm2"] = "tiny"
    ragged: bool = False
    group: int = 1
    epochs: int = 1
    judge: bool = False
    kl: float = 0.0
    lora: bool = False
    shared_trunk: bool = False
    peers: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    ours: dict[str, Any] = field(default_factory=dict)
    steps: int = 6
    warmup: int = 2

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the policy takes part."""
        return self.method in ("dpo", "kto") or self.kl > 0

    @property
    def total_steps(self) -> int:
        """Steps of one process."""
        return self.warmup + self.steps


def split(rows: int, into: int, **more: Any) -> dict[str, Any]:
    """TRL's settings for a step of `rows` in so many forward passes."""
    return {"per_device_train_batch_size": rows // into, "gradient_accumulation_steps": into, **more}


SMALL: dict[str, Any] = {"ours": {"microbatch_tokens": 1024}}  # as config.yaml has it
ONLINE_64: dict[str, Any] = {"rows": 64, "prompt": 64, "completion": 64, "steps": 3, "warmup": 1, **SMALL}
WHOLE_OR_SPLIT: dict[str, Any] = {"peers": {"": {}, "4 x 16": split(64, 4)}}
PPO: dict[str, Any] = {"judge": True, "kl": 0.05, "epochs": 4, "steps": 2}
BIG: dict[str, Any] = {"model": "smollm2", "steps": 3, "warmup": 1}
PACKED: dict[str, Any] = {"packing": True, "max_length": 512}

ROWS: tuple[Work, ...] = (
    Work("sft", "sft", 8, 1, 256, peers={"": {}, "2 x 4": split(8, 2)}, ours={"microbatch_tokens": 1280}),
    Work(
        "sft-ragged", "sft", 16, 64, 448, ragged=True,
        peers={"": {}, "packed 5 x 512": split(5, 5, **PACKED), "packed 5 in one": split(5, 1, **PACKED)},
        ours={"microbatch_tokens": 512},
    ),
    Work("sft-lora", "sft", 8, 1, 256, lora=True),
    Work("rm", "reward_model", 8, 64, 129),
    Work("dpo", "dpo", 8, 64, 129, epochs=3),
    Work("kto", "kto", 8, 64, 129, epochs=3),
    Work("grpo", "grpo", group=8, **ONLINE_64, **WHOLE_OR_SPLIT),
    Work("grpo-rm", "grpo", group=8, judge=True, kl=0.04, **ONLINE_64, **WHOLE_OR_SPLIT),
    Work("rloo", "rloo", group=8, kl=0.05, **ONLINE_64, **WHOLE_OR_SPLIT),
    Work("ppo", "ppo", **{**ONLINE_64, **WHOLE_OR_SPLIT, **PPO}),
    Work("ppo-shared", "ppo", shared_trunk=True, peers={}, **{**ONLINE_64, **PPO}),
    Work(
        "sft-ragged-smollm2", "sft", 8, 64, 448, ragged=True,
        peers={"": {}, "packed 3 x 512": split(3, 3, **PACKED)}, ours={"microbatch_tokens": 512}, **BIG,
    ),
    Work("dpo-smollm2", "dpo", 4, 64, 65, epochs=3, **BIG),
    Work("grpo-smollm2", "grpo", 32, 64, 32, group=8, **BIG),
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What goes through a model: tokens, (query, key) pairs of its causal attention, and places whose logits count."""

    tokens: float
    pairs: float
    logits: float

    def __add__(self, other: Shape) -> Shape:
        return Shape(self.tokens + other.tokens, self.pairs + other.pairs, self.logits + other.logits)

    def times(self, factor: float) -> Shape:
        """So many of it."""
        return Shape(self.tokens * factor, self.pairs * factor, self.logits * factor)

    @property
    def block(self) -> tuple[int, int, int]:
        """(rows, length, last places of each row that need logits) of equal rows with the same tokens and pairs.

        A row of L tokens has L (L + 1) / 2 pairs, so L = 2 pairs / tokens - 1.
        """
        rows = max(1, round(self.tokens / max(1.0, 2 * self.pairs / self.tokens - 1)))
        length = round(self.tokens / rows)
        return rows, length, min(length, round(self.logits / rows))


def sequence(prompt: int, completion: int) -> Shape:
    """One prompt with its completion."""
    return tree(prompt, [completion])


def tree(prompt: int, completions: Sequence[int]) -> Shape:
    """A prompt that its completions share: its tokens count once."""
    pairs = prompt * (prompt + 1) / 2 + sum(c * prompt + c * (c + 1) / 2 for c in completions)
    return Shape(prompt + sum(completions), pairs, sum(completions))


@dataclass(frozen=True)
class Part:
    """A piece of the floor: what `role`'s model does, `times` in each step.

    `optimise` is clipping and AdamW's step; `generate` the prompts' forward pass and a decoding step for each token
    but the first. `head`: what follows the trunk.
    """

    kind: Literal["train", "forward", "generate", "optimise"]
    role: Literal["policy", "reference", "judge", "critic"]
    shape: Shape = Shape(0, 0, 0)
    head: Literal["lm", "score", "value", "both"] = "lm"
    times: float = 1.0


def floor_parts(work: Work, lengths: Sequence[tuple[int, int]]) -> list[Part]:
    """The least that one step computes; `lengths` are (prompt, completion) of the rows, of which the mean counts."""
    if work.method in ONLINE:
        return _online(work)
    found = [tree(p, [c] * (2 if work.method in PAIRS else 1)) for p, c in lengths]
    shape = sum(found[1:], found[0]).times(work.rows / len(found))
    optimise = Part("optimise", "policy")
    if work.method == "reward_model":
        return [Part("train", "policy", shape, "score"), optimise]
    train = Part("train", "policy", shape)
    if work.method == "sft":
        return [train, optimise]
    if work.method == "dpo":
        return [train, Part("forward", "reference", shape, times=1 / work.epochs), optimise]
    # The mismatched completions stand behind the same prompts, which are not counted again.
    other = Shape(
        work.completion, tree(work.prompt, [work.completion]).pairs - tree(work.prompt, []).pairs, work.completion
    )
    mismatched = other.times(work.rows)
    reference = Part("forward", "reference", shape + mismatched, times=1 / work.epochs)
    return [train, Part("forward", "policy", mismatched), reference, optimise]


def _online(work: Work) -> list[Part]:
    shape = tree(work.prompt, [work.completion] * work.group).times(work.rows / work.group)
    parts = [Part("generate", "policy", shape)]
    if work.judge:
        parts.append(Part("forward", "judge", shape, "score"))
    if work.kl > 0:
        parts.append(Part("forward", "reference", shape))
    if work.method != "ppo":
        return [*parts, Part("train", "policy", shape), Part("optimise", "policy")]
    if work.shared_trunk:
        parts.append(Part("forward", "policy", shape, "value"))
        parts.append(Part("train", "policy", shape, "both", times=work.epochs))
        return [*parts, Part("optimise", "policy", times=work.epochs)]
    parts.append(Part("forward", "critic", shape, "value"))
    for role, head in (("policy", "lm"), ("critic", "value")):
        parts.append(Part("train", role, shape, head, times=work.epochs))  # type: ignore[arg-type]
        parts.append(Part("optimise", role, times=work.epochs))  # type: ignore[arg-type]
    return parts


def as_dict(work: Work) -> dict[str, Any]:
    """For another process."""
    return dataclasses.asdict(work)
