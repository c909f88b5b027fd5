"""What is known of the base model `built-in: tiny` without torch."""

from __future__ import annotations

BUILT_IN = "built-in: tiny"
"""The value of `model.base` that means this model."""
CONTEXT = 1024
"""Tokens that it can attend to."""
