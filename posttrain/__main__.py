"""`python -m posttrain`: the same as the command `posttrain`."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main` takes over: Ctrl-C among the imports shows no traceback
    from posttrain.cli import main

    sys.exit(main())
