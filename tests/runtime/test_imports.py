"""What a stage's process does not import."""

from __future__ import annotations

import subprocess
import sys


def test_a_model_is_loaded_without_scipy() -> None:
    """The same imports without the call bring both in, so that the test can fail."""
    code = """
import sys
from posttrain.runtime.imports import without_scipy
if sys.argv[1] == "without":
    without_scipy()
import posttrain.model.load, posttrain.model.lora
from transformers import LlamaForCausalLM
print(*sorted({"scipy", "sklearn"} & set(sys.modules)))
"""
    found = {
        how: subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, check=True
        ).stdout.split()
        for how in ("with", "without")
    }
    assert found == {"with": ["scipy", "sklearn"], "without": []}
