"""The stage key: one digest of all that decides what a stage makes. Resume state is kept under it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from posttrain.provenance.digests import text_digest


def stage_key(
    stage: str,
    run: str | None,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    code: str,
    image: str,
) -> str:
    """32 hex digits. `config` is the stage's slice as plain values, `inputs` and `code` are digests."""
    parts = {"stage": stage, "run": run, "config": config, "inputs": inputs, "code": code, "image": image}
    return text_digest(json.dumps(parts, sort_keys=True, allow_nan=False))[:32]
