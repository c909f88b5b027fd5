"""What is refused, with the reason; locks end with their holder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.platforms.locks import held, try_lock
from posttrain.platforms.policy import Facts, facts, refuse_unsupported


def test_macos_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"macOS is not supported: .*use Linux or WSL2"):
        refuse_unsupported(Facts("Darwin"))
    refuse_unsupported(Facts("Linux"))
    refuse_unsupported(Facts("Windows"))
    refuse_unsupported(facts())


def test_a_lock_is_held_once_and_freed(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "lock") as first:
        assert first
        with held(tmp_path / "a" / "lock") as second:
            assert not second
    with held(tmp_path / "a" / "lock") as again:
        assert again


def test_a_killed_process_frees_its_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try_lock(tmp_path / "lock")
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    assert try_lock(tmp_path / "lock") is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert try_lock(tmp_path / "lock") is not None
