"""Digests of files, remembered by their stat so that large weights are hashed once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from posttrain.checkpoint.publish import write_atomic

Algorithm = Literal["sha256", "md5"]

# A file changed again within one tick of the file system's clock keeps its stat: younger ones are not remembered.
SETTLED_NS = 2_000_000_000


def file_digest(path: Path, algorithm: Algorithm = "sha256") -> str:
    """Hex digest of the file's bytes."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """Hex sha256 of the text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below `folder`, sorted by its path in POSIX form; hidden ones (`.name`) are left out."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent) / name for name in names if not name.startswith(".")]
    return iter(sorted(found, key=lambda path: path.relative_to(folder).as_posix()))


class DigestCache:
    """Digests by path, valid while size, times and inode are the same, kept in a JSON file.

    A file that was touched is hashed again and has the same digest. The change time is compared too, which nothing but
    the kernel can set. Several processes may use one file: the last writer's entries win, and a lost entry is only
    hashed once more. Where the file cannot be written the cache works in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, list[object]] = _read(path)
        self._new: dict[str, list[object]] = {}

    def digest(self, path: Path, algorithm: Algorithm = "sha256") -> str:
        """Hex digest of the file's bytes, from memory where its stat is unchanged."""
        key = f"{algorithm}:{path.absolute()}"
        stat = _stat(path)
        known = self._known.get(key)
        if known is not None and known[:-1] == stat:
            return str(known[-1])
        digest = file_digest(path, algorithm)
        if _stat(path) == stat and time.time_ns() - max(stat[1], stat[2]) > SETTLED_NS:
            self._known[key] = self._new[key] = [*stat, digest]
        return digest

    def save(self) -> None:
        """Add what is new to the file."""
        if not self._new:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps({**_read(self.path), **self._new}, indent=0).encode())
        except OSError:
            return
        self._new = {}


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _read(path: Path) -> dict[str, list[object]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
