"""The scripts of docker/ are no package: tests import them from their folder, as `python docker/build_sif.py` does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docker"))


@pytest.fixture(scope="session")
def runtime() -> str:
    """The container runtime. A developer's machine may lack one and skip; a CI run that lacks it fails."""
    import build_sif

    from posttrain.errors import UserError

    try:
        return build_sif.find_runtime()
    except UserError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
