"""What some tests need of the machine beside the pinned packages. A continuous integration run must have all of it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def lacking(what: str, target: str) -> None:
    """Skip the test where its need was not installed; fail where everything must run."""
    message = f"{what} was not found; type `make {target}`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def runtime() -> str:
    """The container runtime's program."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("apptainer", path=path) or shutil.which("singularity", path=path)
    if found is None:
        lacking("Apptainer or Singularity", "apptainer")
    return str(found)


@pytest.fixture(scope="session")
def transformers4() -> str:
    """The Python of an environment with transformers 4.51, the version of the CUDA 12.1 image."""
    python = ROOT / ".venv-transformers4" / "bin" / "python"
    if not python.exists():
        lacking("the environment with transformers 4.51", "transformers4")
    return str(python)
