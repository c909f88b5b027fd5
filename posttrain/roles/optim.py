"""AdamW and the learning-rate schedule, as pure functions of settings and step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from posttrain.config.sections import Training


def learning_rate(settings: Training, base: float, step: int) -> float:
    """Learning rate of optimiser step `step` (the first is 1), for a peak of `base`.

    Warm-up rises linearly and reaches `base` at step `warmup_steps`; the first step after it has `base` too. Then
    the rate stays (`constant`), or falls to reach zero one step after the last, on a line or a half cosine.
    """
    if not 1 <= step <= settings.steps:
        raise ValueError(f"step {step} is outside 1..{settings.steps}")
    if step <= settings.warmup_steps:
        return base * step / settings.warmup_steps
    share = (step - 1 - settings.warmup_steps) / (settings.steps - settings.warmup_steps)
    if settings.schedule == "linear":
        return base * (1 - share)
    if settings.schedule == "cosine":
        return base * (1 + math.cos(math.pi * share)) / 2
    return base


def adamw(parameters: Mapping[str, Tensor], weight_decay: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) over named tensors; decay acts on matrices, not on norms and biases.

    The moments exist from the start (zeros), so that a fresh optimiser and a trained one have the same state keys.
    """
    groups = [
        {"params": [p for p in parameters.values() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, fused=True)
    for parameter in parameters.values():
        optimiser.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimiser
