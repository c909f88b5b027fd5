"""The stat cache: hashes once, and is never fooled."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from posttrain.provenance import digests
from posttrain.provenance.digests import DigestCache, file_digest, files_below


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are really hashed; every file counts as settled."""
    hashed: list[Path] = []

    def digest(path: Path, algorithm: digests.Algorithm = "sha256") -> str:
        hashed.append(path)
        return file_digest(path, algorithm)

    monkeypatch.setattr(digests, "file_digest", digest)
    monkeypatch.setattr(digests, "SETTLED_NS", -1)
    return hashed


def test_the_bytes_decide(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a\r\nb")
    assert file_digest(path) == hashlib.sha256(b"a\r\nb").hexdigest()
    assert file_digest(path, "md5") == hashlib.md5(b"a\r\nb").hexdigest()


def test_hashed_once_over_processes(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 100)
    for _ in range(3):
        cache = DigestCache(tmp_path / "cache.json")
        assert cache.digest(path) == hashlib.sha256(b"w" * 100).hexdigest()
        assert cache.digest(path) == hashlib.sha256(b"w" * 100).hexdigest()
        cache.save()
    assert counted == [path]


def test_touch_hashes_again_with_the_same_digest(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w")
    cache = DigestCache(tmp_path / "cache.json")
    before = cache.digest(path)
    os.utime(path, (1, 1))
    assert cache.digest(path) == before
    assert len(counted) == 2


def test_a_flipped_byte_with_size_and_time_kept_is_seen(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    cache = DigestCache(tmp_path / "cache.json")
    before, stat = cache.digest(path), path.stat()
    time.sleep(0.05)  # a tick of the file system's clock
    path.write_bytes(b"abd")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert cache.digest(path) != before


def test_a_file_that_was_written_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    cache = DigestCache(tmp_path / "cache.json")
    cache.digest(path)
    cache.save()
    assert not cache.path.exists()


def test_md5_and_sha256_are_kept_apart(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    cache = DigestCache(tmp_path / "cache.json")
    assert len(cache.digest(path)) == 64 and len(cache.digest(path, "md5")) == 32


@pytest.mark.parametrize("content", ["", "[]", "{", '{"sha256:/x": 3}'])
def test_a_damaged_cache_is_started_anew(tmp_path: Path, content: str, counted: list[Path]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    (tmp_path / "cache.json").write_text(content)
    cache = DigestCache(tmp_path / "cache.json")
    assert cache.digest(path) == hashlib.sha256(b"x").hexdigest()
    cache.save()
    assert len(json.loads((tmp_path / "cache.json").read_text())) >= 1


def test_two_caches_on_one_file_keep_both_entries(tmp_path: Path, counted: list[Path]) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    caches = [DigestCache(tmp_path / "cache.json") for _ in "ab"]
    for cache, name in zip(caches, "ab", strict=True):
        cache.digest(tmp_path / name)
        cache.save()
    assert len(json.loads((tmp_path / "cache.json").read_text())) == 2


def test_files_below_is_sorted_and_leaves_hidden_ones_out(tmp_path: Path) -> None:
    for name in ("b/c", "a.txt", "b.txt", ".hidden", ".git/config", "b/.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)] == ["a.txt", "b.txt", "b/c"]
