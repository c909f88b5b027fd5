"""The scripts of docker/ are no package: tests import them from their folder, as `python docker/build_sif.py` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docker"))
