"""posttrain: a containerised, reproducible experiment pipeline for LLM post-training.

Importing the package loads nothing heavy; the public engine classes resolve when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "ReplayBuffer": "posttrain.rollout.buffer",
    "RolloutManager": "posttrain.rollout.manager",
    "Trainer": "posttrain.trainer.trainer",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
