"""init_tracking (host): create or migrate the store of metrics, once, before any stage writes to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from posttrain.checkpoint.publish import write_atomic
from posttrain.config.schema import Config
from posttrain.tracking.destination import mask
from posttrain.tracking.store import init_store


def main(config: Config, inputs: Mapping[str, Path], output: Path) -> None:
    """Write where metrics go as JSON, without passwords. Raises `UserError` where the store cannot be written."""
    where = init_store(config, Path.cwd(), logging.getLogger(__name__))
    content = {"experiment": where.experiment, "uri": mask(where.uri)}
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, (json.dumps(content, indent=1) + "\n").encode())
