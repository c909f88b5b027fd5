"""Workers take turns, step by step; one that fails says why."""

import sys
from pathlib import Path

import pytest

from bench.measure import attempt
from bench.turns import Worker, WorkerError


def worker(name, place, **task):
    task = {"name": name, "steps": 3, "notes": str(place / "notes"), **task}
    return Worker(Path(sys.executable), "tests.bench.counting_worker", task, place / name)


def test_steps_are_done_in_turn(tmp_path):
    workers = [worker(name, tmp_path) for name in "ab"]
    for _ in range(3):
        for each in workers:
            each.step()
    results = [each.finish() for each in workers]
    assert (tmp_path / "notes").read_text().split() == ["a0", "b0", "a1", "b1", "a2", "b2"]
    for result in results:
        assert result["tokens"] == [7, 7], "the first step is warm-up"
        assert len(result["seconds"]) == 2 and min(result["seconds"]) >= 0


def test_a_worker_that_fails_says_why(tmp_path):
    each = worker("a", tmp_path, fails_at=1)
    each.step()
    with pytest.raises(WorkerError, match="as it was told"):
        each.step()
    found = {}
    attempt(found, "ours", worker("b", tmp_path, fails_at=0).step)
    assert "as it was told" in found["ours"]["failed"]


def test_a_worker_whose_bench_is_gone_ends(tmp_path):
    each = worker("a", tmp_path)
    each.step()
    each.close()
    assert (tmp_path / "notes").read_text().split() == ["a0"]
