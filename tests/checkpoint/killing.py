"""Kill a real process, with SIGKILL, just before its n-th change of the file system."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


def killed_everywhere(work: Callable[[], object], most: int = 300) -> Iterator[int]:
    """Run `work` in a child process again and again, killed before its call 0, 1, ...; yields after each kill.

    Calls that count are those that change what is on the disk, and the fsyncs between them. Ends with the first run
    that reaches its end. The caller resets the folder between two runs.
    """
    for fatal in range(most):
        child = os.fork()
        if child == 0:
            _run_and_die(work, fatal)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the work failed in the child"
            assert fatal > 0, "the hook saw no call"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield fatal
    raise AssertionError(f"still killed after {most} calls")


def _run_and_die(work: Callable[[], object], fatal: int) -> None:
    left = [fatal]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*arguments, **options)

        return wrapper

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))
    pathlib.Path.write_text = deadly(pathlib.Path.write_text)  # type: ignore[method-assign]
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)
