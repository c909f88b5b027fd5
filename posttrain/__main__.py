"""`python -m posttrain`: the same as the command `posttrain`."""

from __future__ import annotations

import sys

from posttrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
