"""The same engine under transformers 4.51, which the CUDA 12.1 image has."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.model.tiny import ARCHITECTURES

OTHER_PYTHON = os.environ.get("POSTTRAIN_TF451_PYTHON")
ROOT = Path(__file__).parents[2]


def lines(python: str) -> list[dict[str, Any]]:
    command = [python, "-m", "tests.rollout.generate_check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"arch"')]


@pytest.mark.skipif(OTHER_PYTHON is None, reason="POSTTRAIN_TF451_PYTHON names no Python with transformers 4.51")
def test_generation_under_4_51() -> None:
    *found, windowed = lines(str(OTHER_PYTHON))
    assert [line["arch"] for line in found] == list(ARCHITECTURES)
    for line in found:
        assert line["transformers"].startswith("4.51.")
        assert line["greedy"]
        assert line["gap"] < 1e-4
    assert any(min(line["lengths"]) < max(line["lengths"]) for line in found), "no row was retired"
    assert "window is 8" in windowed["refused"]
