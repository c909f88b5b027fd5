"""Progress of stages that do not train: each finished batch of rows is a file, and is not computed again."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.checkpoint.publish import write_atomic
from posttrain.errors import Interrupted

log = logging.getLogger(__name__)

Row = dict[str, Any]


class Shards:
    """Finished batches in `folder`, one JSON-lines file each; the first line holds the digest of the rest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        total: int,
        work: Callable[[int], list[Row]],
        interrupted: Callable[[], bool],
        on_resume: Callable[[int], None],
    ) -> list[Row]:
        """The rows of the batches 0 ... total-1 in order; `work(i)` computes the batches that are not there yet.

        `on_resume(k)` is called once with the number of finished batches where that is not 0. Rows must be JSON.
        Raises `Interrupted` after a finished batch, once `interrupted()` is true.
        """
        finished = {index: rows for index in range(total) if (rows := self._read(index)) is not None}
        if finished:
            on_resume(len(finished))
        for index in range(total):
            if index in finished:
                continue
            if interrupted():
                raise Interrupted
            finished[index] = self._write(index, work(index))
        return [row for index in range(total) for row in finished[index]]

    def _path(self, index: int) -> Path:
        return self.folder / f"shard-{index:06d}.jsonl"

    def _write(self, index: int, rows: list[Row]) -> list[Row]:
        """Returns the rows as they are read back, so that a resumed stage sees exactly what an undisturbed one does."""
        body = "".join(json.dumps(row) + "\n" for row in rows).encode()
        head = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
        write_atomic(self._path(index), head + body)
        return [json.loads(line) for line in body.splitlines()]

    def _read(self, index: int) -> list[Row] | None:
        path = self._path(index)
        if not path.exists():
            return None
        head, _, body = path.read_bytes().partition(b"\n")
        try:
            whole = json.loads(head)["sha256"] == hashlib.sha256(body).hexdigest()
        except (ValueError, KeyError, TypeError):
            whole = False
        if whole:
            return [json.loads(line) for line in body.splitlines()]
        log.warning("%s is damaged and computed again", path.name)
        return None
