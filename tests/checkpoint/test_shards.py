"""Progress of stages that do not train: what is finished is not computed again, and resuming changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.checkpoint.shards import Shards
from posttrain.errors import Interrupted

Rows = list[dict[str, Any]]


def rows(batch: int) -> Rows:
    return [{"id": f"{batch}-é\u2028", "ids": [batch, 2], "score": batch / 3, "none": None}] * (batch % 3)


class Work:
    """Counts its calls; interrupts, or dies, after `end` of them."""

    def __init__(self, end: int = 1000, fatal: bool = False) -> None:
        self.done: list[int] = []
        self.resumed: list[int] = []
        self.end, self.fatal = end, fatal

    def __call__(self, batch: int) -> Rows:
        if self.fatal and len(self.done) == self.end:
            raise MemoryError
        self.done.append(batch)
        return rows(batch)

    def interrupted(self) -> bool:
        return not self.fatal and len(self.done) >= self.end

    def run(self, folder: Path) -> Rows:
        return Shards(folder).run(7, self, self.interrupted, self.resumed.append)


WHOLE = [row for batch in range(7) for row in rows(batch)]


def test_undisturbed(tmp_path: Path) -> None:
    work = Work()
    assert work.run(tmp_path) == WHOLE
    assert work.done == list(range(7)) and work.resumed == []


@pytest.mark.parametrize("fatal", [False, True], ids=["interrupted", "dead"])
def test_resumes_after_the_finished_batches(tmp_path: Path, fatal: bool) -> None:
    first = Work(3, fatal)
    with pytest.raises(MemoryError if fatal else Interrupted):
        first.run(tmp_path)
    second = Work()
    assert second.run(tmp_path) == WHOLE
    assert second.resumed == [3] and second.done == [3, 4, 5, 6]


@pytest.mark.parametrize("harm", [b"", b"{}\n", None])
def test_a_harmed_shard_is_computed_again(tmp_path: Path, harm: bytes | None) -> None:
    Work().run(tmp_path)
    path = tmp_path / "shard-000002.jsonl"
    path.write_bytes(path.read_bytes()[:-2] if harm is None else harm)
    work = Work()
    assert work.run(tmp_path) == WHOLE
    assert work.done == [2]


def test_signal_before_the_first_batch(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        Work(0).run(tmp_path)
