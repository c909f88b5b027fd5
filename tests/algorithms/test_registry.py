from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from posttrain.algorithms.registry import METHODS, resolve


def test_every_configured_method_is_registered_and_no_other():
    from posttrain.config.schema import Run

    models = get_args(get_args(Run)[0])
    configured = {name for model in models for name in get_args(model.model_fields["method"].annotation)}
    assert configured == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_entry_resolves(name):
    for entry in [METHODS[name].trainer, *METHODS[name].parts.values()]:
        assert resolve(entry).__module__ == entry.partition(":")[0]


def test_importing_the_registry_imports_no_method_and_no_torch():
    code = (
        "import sys, posttrain.algorithms.registry\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('posttrain.algorithms.')])"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "['posttrain.algorithms.registry']"


def test_the_methods_losses_lie_in_files_of_their_own():
    """So that an edit of KTO's loss is no edit of what PPO is made of."""
    modules = {name: {e.partition(":")[0] for e in method.parts.values()} for name, method in METHODS.items()}
    assert not modules["kto"] & (modules["ppo"] | modules["grpo"] | modules["dpo"])
    assert not modules["dpo"] & (modules["ppo"] | modules["grpo"])


@pytest.mark.parametrize("entry", ["", "module", "posttrain.algorithms.kl:", ":k1"])
def test_malformed_entries_are_refused(entry):
    with pytest.raises(ValueError, match="module:name"):
        resolve(entry)


def test_absent_names_are_refused():
    with pytest.raises(ValueError, match="no function or class 'k9'"):
        resolve("posttrain.algorithms.kl:k9")
    with pytest.raises(ImportError):
        resolve("posttrain.algorithms.absent:k1")
