"""Every method by name, as data: naming one imports nothing, `resolve` imports its one file.

The entries are read by static analysis too (a stage's code slice), so they are literal strings.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Method:
    """One method: whether it learns from stored preferences or from its own samples, and what it is made of."""

    kind: Literal["preference", "online"]
    trainer: str
    parts: Mapping[str, str] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "dpo": Method(
        kind="preference",
        trainer="posttrain.trainer.objectives.pairs:Pairs",
        parts={"loss": "posttrain.algorithms.preference.dpo:dpo_loss"},
    ),
    "kto": Method(
        kind="preference",
        trainer="posttrain.trainer.objectives.labels:Labels",
        parts={
            "loss": "posttrain.algorithms.preference.kto:kto_loss",
            "kl_baseline": "posttrain.algorithms.preference.kto:kl_baseline",
        },
    ),
    "ppo": Method(
        kind="online",
        trainer="posttrain.trainer.objectives.actor_critic:ActorCritic",
        parts={
            "advantages": "posttrain.algorithms.advantages.gae:gae",
            "policy_loss": "posttrain.algorithms.policy_loss.clipped:clipped_policy_loss",
            "value_loss": "posttrain.algorithms.value_loss:clipped_value_loss",
            "kl": "posttrain.algorithms.kl:k1",
        },
    ),
    "grpo": Method(
        kind="online",
        trainer="posttrain.trainer.objectives.groups:Groups",
        parts={
            "advantages": "posttrain.algorithms.advantages.group:group_advantages",
            "policy_loss": "posttrain.algorithms.policy_loss.clipped:clipped_policy_loss",
            "kl": "posttrain.algorithms.kl:k3",
        },
    ),
}


def resolve(entry: str) -> Callable[..., Any]:
    """The function or class that "module:name" stands for; imports that module.

    Raises ValueError for an entry of another form or a name that the module lacks, ImportError for an absent module.
    """
    module, separator, name = entry.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{entry!r} is not of the form 'module:name'")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ValueError(f"module {module} has no function or class {name!r}")
    return found
