"""What the recomputing scripts share: write the vectors of a peer, or compare them with the stored ones."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
RTOL = 1e-9


def differences(stored: Any, fresh: Any, tolerance: float, where: str = "") -> list[str]:
    """Places where two trees of dicts, lists and numbers differ by more than the tolerance (absolute below 1)."""
    if isinstance(stored, dict) and isinstance(fresh, dict) and stored.keys() == fresh.keys():
        return [line for key in stored for line in differences(stored[key], fresh[key], tolerance, f"{where}/{key}")]
    if isinstance(stored, list) and isinstance(fresh, list) and len(stored) == len(fresh):
        pairs = enumerate(zip(stored, fresh, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, tolerance, f"{where}[{i}]")]
    if isinstance(stored, (int, float)) and isinstance(fresh, (int, float)):
        equal = math.isclose(stored, fresh, rel_tol=tolerance, abs_tol=tolerance)
        return [] if equal else [f"{where}: {stored} != {fresh}"]
    return [] if stored == fresh else [f"{where}: {stored!r} != {fresh!r}"]


def main(file: str, fresh: dict[str, Any], tolerance: float = RTOL) -> None:
    """`--write` stores the vectors; without it they are compared, and any difference is exit status 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="store the vectors instead of comparing them")
    path = FOLDER / file
    if parser.parse_args().write:
        path.write_text(json.dumps(fresh) + "\n")
        return
    found = differences(json.loads(path.read_text()), fresh, tolerance)
    if found:
        raise SystemExit(f"{file}: {len(found)} differences, the first: " + "; ".join(found[:5]))
    print(f"{file}: equal to {fresh['peer']} {fresh['version']}")
