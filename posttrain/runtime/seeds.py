"""Seeds: every random number is a function of the experiment's seed and of names, never of what ran before."""

from __future__ import annotations

import hashlib
import os
import random


def derive(seed: int, *names: object) -> int:
    """A seed of 63 bits from `seed` and `names` (step, prompt id, ...): sha256 over their repr, so no two mix up."""
    text = "\x00".join([repr(int(seed)), *(repr(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_all(seed: int) -> None:
    """Seed `random`, numpy and torch (every device). Imports torch."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def deterministic(device: str) -> None:
    """Make torch refuse kernels whose result differs from call to call. Imports torch.

    On CUDA some kernels that we need (cumsum) have no deterministic form: there torch warns instead of refusing. The
    promise of equal bytes is for the CPU.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(True, warn_only=device != "cpu")
    # A debugging aid that writes every new tensor twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
