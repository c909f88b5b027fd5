from __future__ import annotations

import inspect
import subprocess
import sys
from typing import get_args

import pytest

from posttrain.config.registry import METHODS, entries, known_settings, read_settings, resolve, settings_of
from tests.config.sections import run_of


def test_every_configured_method_is_registered_and_no_other():
    from posttrain.config.runs import Run

    models = get_args(get_args(Run)[0])
    configured = {name for model in models for name in get_args(model.model_fields["method"].annotation)}
    assert configured == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_entry_resolves(name):
    method = METHODS[name]
    tables = [entry for table in method.choices.values() for entry in table.values()]
    for entry in [*entries(run_of(name)).values(), *tables]:
        assert resolve(entry).__module__ == entry.partition(":")[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_parts_keyword_only_parameters_are_keys_of_the_run(name):
    run = run_of(name)
    for table in [METHODS[name].parts, *METHODS[name].choices.values()]:
        for entry in table.values():
            parameters = inspect.signature(resolve(entry)).parameters.values()
            found = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            assert found == settings_of(entry), "read from the source as Python has it"
            assert found <= set(type(run).model_fields), entry


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_of_a_method_are_whole(name):
    """A default that a method changes is one that its parts read."""
    run = run_of(name)
    above = {
        key: field.default for base in type(run).__mro__[1:] for key, field in getattr(base, "model_fields", {}).items()
    }
    changed = {key for key, default in above.items() if key in known_settings(run) and getattr(run, key) != default}
    assert changed <= read_settings(run)


def test_importing_the_registry_imports_no_method_and_no_torch():
    code = (
        "import sys, posttrain.config.registry\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('posttrain.algorithms')])"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_the_methods_losses_lie_in_files_of_their_own():
    """So that an edit of KTO's loss is no edit of what PPO is made of."""
    modules = {name: {e.partition(":")[0] for e in entries(run_of(name)).values()} for name in METHODS}
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
