"""CPU threads come from the config alone: their number decides the order of sums, and so the bytes of the weights."""

from __future__ import annotations

import os
import sys


def set_thread_environment(threads: int) -> None:
    """Set what OpenMP, MKL and the tokenizers read when they are first loaded; call it before torch is imported.

    Passive waiting: with OpenMP's default spinning, two stages side by side slow each other down many times over.
    """
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS") != str(threads):
        raise RuntimeError("torch was imported before the thread environment was set")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["GOMP_SPINCOUNT"] = "0"
    os.environ["MKL_DYNAMIC"] = "FALSE"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def apply_threads(threads: int) -> None:
    """Tell torch itself; imports it."""
    import torch

    torch.set_num_threads(threads)
