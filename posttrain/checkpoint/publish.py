"""Replace a folder by another one so that a kill at any moment leaves the old or the new one, never a mixture.

Snakemake creates a rule's output folder before the job and deletes only declared files, so the target may exist, empty
or with the files of an earlier run but without its manifest: a plain rename onto it would fail.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MANIFEST = "manifest.json"


def work_folder(target: Path) -> Path:
    """The sibling on the same file system in which the new content is written."""
    return target.parent / f".{target.name}.work"


def publish(work: Path, target: Path) -> None:
    """Make `work` (complete, on the target's file system) the new `target`.

    Every file gets the mode that a new file of this user has: safetensors makes files that nobody else can read.
    Order: fsync everything in `work`; move an existing target aside; rename; fsync the parent; delete the old one.
    `repair` mends an interruption between any two of these.
    """
    target = target.resolve()
    old = _old_folder(target)
    repair(target)
    os.umask(umask := os.umask(0))
    for folder, _, files in os.walk(work):
        for name in files:
            (Path(folder) / name).chmod(0o666 & ~umask)
            _fsync(Path(folder) / name)
        _fsync(Path(folder))
    if target.exists():
        target.rename(old)
    work.rename(target)
    _fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def repair(target: Path) -> None:
    """Finish or undo a publish that was interrupted. Call it before a stage starts; harmless otherwise.

    With the old folder still aside, a target that holds files is the new one (the rename was done), and the old one is
    deleted; where the target is absent, or empty because Snakemake created it again, the old one is put back.
    """
    target = target.resolve()
    old = _old_folder(target)
    if not old.exists():
        return
    if target.exists() and any(target.iterdir()):
        shutil.rmtree(old)
        return
    if target.exists():
        target.rmdir()
    old.rename(target)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file beside `path`, fsync, rename: a reader sees the old content or the new one."""
    beside = path.parent / f".{path.name}.{os.getpid()}.work"
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _fsync(path.parent)


def _old_folder(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _fsync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; some file systems refuse it for folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)
