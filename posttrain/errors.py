"""The two exceptions that are no fault of the program: the user can mend it, or the user stopped it."""

from __future__ import annotations

import signal


class UserError(Exception):
    """Bad input, said in one clear sentence that names the file, row or key and the mend.

    The command line prints the message without a traceback and exits with status 2. Keep it to five lines at most.
    """


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The stage was asked to stop and has written its checkpoint; the exit status is 128 + `signum`."""

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = int(signum)
