"""Locks that end with their process, however it ends."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from posttrain.platforms.locks import life_line, wait_for_end

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nobody waits for life lines there")
CONTEXT = multiprocessing.get_context("spawn")


def live(folder: Path, ready: Event) -> None:
    life_line(folder)
    ready.set()
    time.sleep(60)


def start(folder: Path) -> tuple[BaseProcess, Path]:
    ready = CONTEXT.Event()
    before = set(folder.glob("*"))
    process = CONTEXT.Process(target=live, args=(folder, ready), daemon=True)
    process.start()
    assert ready.wait(30)
    [line] = set(folder.glob("[!.]*")) - before
    return process, line


def test_a_life_line_is_waited_for_until_its_process_is_killed(tmp_path: Path) -> None:
    process, line = start(tmp_path)
    waiting = [threading.Thread(target=wait_for_end, args=(line,), daemon=True) for _ in range(2)]
    for thread in waiting:
        thread.start()
    time.sleep(0.3)
    assert all(thread.is_alive() for thread in waiting)
    process.kill()
    for thread in waiting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in waiting)


def test_the_next_process_deletes_the_dead_ones_line_and_leaves_the_living(tmp_path: Path) -> None:
    dead, left = start(tmp_path)
    dead.kill()
    dead.join()
    living, line = start(tmp_path)
    other, second = start(tmp_path)
    assert set(tmp_path.iterdir()) == {line, second} and left not in (line, second)
    waiting = threading.Thread(target=wait_for_end, args=(line,), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    for process in (living, other):
        process.kill()
    waiting.join(10)
    assert not waiting.is_alive()
    wait_for_end(left)  # absent: it has ended
