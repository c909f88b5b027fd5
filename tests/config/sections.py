"""Sections of a configuration for tests."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from posttrain.config.runs import Run, RunBase


def run_of(method: str, **settings: Any) -> RunBase:
    """An entry of `runs:` with the method's own defaults, and `settings`."""
    found: RunBase = TypeAdapter(Run).validate_python({"method": method, **settings})
    return found
