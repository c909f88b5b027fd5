"""The one exception that means: the user can mend this."""

from __future__ import annotations


class UserError(Exception):
    """Bad input, said in one clear sentence that names the file, row or key and the mend.

    The command line prints the message without a traceback and exits with status 2. Keep it to five lines at most.
    """
