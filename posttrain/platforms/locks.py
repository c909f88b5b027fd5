"""File locks that end with their process, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def try_lock(path: Path, create: bool = True) -> int | None:
    """Take the lock without waiting: a descriptor that holds it until it is closed, or None where another holds it.

    Raises `FileNotFoundError` where the file is not there and is not to be made.
    """
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    try:
        _lock(descriptor)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def held(path: Path, create: bool = True) -> Iterator[bool]:
    """Whether the lock was free; it is held inside the block. Arguments and errors are those of `try_lock`."""
    descriptor = try_lock(path, create)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def life_line(folder: Path) -> Path:
    """A new file in `folder` that this process holds a lock on until it ends; those of dead processes are deleted.

    Whoever can open the file can wait for the end of this process (`wait_for_end`), also from a container that sees no
    process outside, and knows by the file's absence that it has ended. Locked before it has its name, so that no other
    process takes it for a dead one's.
    """
    own = folder / f"{platform.node()}-{os.getpid()}"
    beside = own.with_name(f".{own.name}")
    assert try_lock(beside) is not None, f"{beside} is a name of this process alone"
    beside.replace(own)
    atexit.register(own.unlink, missing_ok=True)
    for other in folder.glob(f"{platform.node()}-*"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = try_lock(other) if other != own else None
            if descriptor is not None:
                other.unlink()
                os.close(descriptor)
    return own


def wait_for_end(line: Path) -> None:
    """Return when the process has ended whose `life_line` this is (not on Windows)."""
    try:
        descriptor = os.open(line, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _share(descriptor)
    finally:
        os.close(descriptor)


def _share(descriptor: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
