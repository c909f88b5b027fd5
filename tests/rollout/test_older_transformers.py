"""The same engine under transformers 4.51, which the CUDA 12.1 image has."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.model.tiny import ARCHITECTURES

ROOT = Path(__file__).parents[2]


def lines(python: str) -> list[dict[str, Any]]:
    command = [python, "-m", "tests.rollout.generate_check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"arch"')]


def test_generation_under_4_51(transformers4: str) -> None:
    *found, windowed = lines(transformers4)
    assert [line["arch"] for line in found] == list(ARCHITECTURES)
    for line in found:
        assert line["transformers"].startswith("4.51.")
        assert line["greedy"]
        assert line["gap"] < 1e-4
        assert line["decoder"] == ("PlainDecoder" if line["arch"] == "gpt2" else "SlotDecoder")
    assert any(min(line["lengths"]) < max(line["lengths"]) for line in found), "no row was retired"
    assert "window is 8" in windowed["refused"]
