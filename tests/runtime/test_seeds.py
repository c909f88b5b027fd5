"""Seeds are functions of seed and names, fixed for good: results on users' disks depend on them."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy
import pytest
import torch

from posttrain.runtime.seeds import derive, deterministic, seed_all
from posttrain.runtime.threads import apply_threads, set_thread_environment


def test_the_values_never_change() -> None:
    """The numbers are sha256sum's: of "0", and of "0", "'step'" and "1" with NUL between them."""
    assert derive(0) == 3456079177858693020
    assert derive(0, "step", 1) == 5303653856826222404


def test_no_two_names_mix_up() -> None:
    cases = [(0, "a", "b"), (0, "ab"), (0, "a", 1), (0, "a", "1"), (1, "a", "b"), (0, "b", "a"), (0,), (0, "a\x00b")]
    assert len({derive(*case) for case in cases}) == len(cases)
    assert all(0 <= derive(seed) < 2**63 for seed in (-1, 0, 2**70))


def test_seed_all_seeds_every_generator() -> None:
    def draw() -> tuple[float, float, float]:
        seed_all(derive(3, "step", 7))
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    assert draw() == draw()
    seed_all(derive(3, "step", 8))
    assert random.random() != draw()[0]


def test_deterministic_kernels_are_demanded_on_the_cpu() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        deterministic("cpu")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        deterministic("cuda")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


def test_threads_reach_torch() -> None:
    code = """
from posttrain.runtime.threads import set_thread_environment, apply_threads
set_thread_environment(2)
import torch
apply_threads(2)
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"


def test_too_late_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(RuntimeError, match="torch was imported before"):
        set_thread_environment(5)
    apply_threads(torch.get_num_threads())
