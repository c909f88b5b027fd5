"""manifest.json: what a stage's folder holds and what it was made from. Equal runs have equal manifests."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from posttrain.checkpoint.publish import MANIFEST, write_atomic
from posttrain.errors import UserError
from posttrain.provenance.digests import DigestCache, file_digest, files_below

# Files beside the manifest that may differ between two equal runs.
NOT_OUTPUTS = {MANIFEST, "run.json", "metrics.jsonl", "report.html"}

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy", "pandas", "pyarrow", "pydantic")

Manifest = dict[str, Any]


def outputs(folder: Path) -> dict[str, dict[str, Any]]:
    """Digest and size of every file in a stage's folder, by its path in POSIX form."""
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_digest(path), "size": path.stat().st_size}
        for path in files_below(folder)
        if path.relative_to(folder).as_posix() not in NOT_OUTPUTS
    }


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into its folder: sorted keys, so equal content is equal bytes."""
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomic(folder / MANIFEST, (text + "\n").encode())


def read(folder: Path) -> Manifest:
    """The manifest of a stage's folder. Raises `UserError` where it is missing or is not one."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is missing: {folder} is no finished stage; run snakemake to make it") from None
    except ValueError:
        raise UserError(f"{path} is damaged; {_mend(folder)}") from None
    if not isinstance(manifest, dict) or not _listing(manifest.get("outputs")):
        raise UserError(f"{path} is not a stage's manifest; {_mend(folder)}")
    return manifest


def finished(folder: Path) -> list[Path]:
    """The folder itself, or the stages' folders below it, which have manifests; the folder again where none has."""
    below = (path.parent for path in sorted(folder.rglob(MANIFEST)) if not path.is_relative_to(folder / ".state"))
    return [folder] if (folder / MANIFEST).exists() else list(below) or [folder]


def _listing(outputs: Any) -> bool:
    return isinstance(outputs, dict) and all(
        isinstance(entry, dict) and {"sha256", "size"} <= entry.keys() for entry in outputs.values()
    )


def faults(folder: Path, manifest: Manifest, cache: DigestCache) -> list[str]:
    """Every file that is not as the manifest says, each with what is wrong."""
    listed: dict[str, dict[str, Any]] = manifest["outputs"]
    present = {path.relative_to(folder).as_posix(): path for path in files_below(folder)}
    found = []
    for name, entry in listed.items():
        if name not in present:
            found.append(f"{folder / name} is missing")
        elif present[name].stat().st_size != entry["size"] or cache.digest(present[name]) != entry["sha256"]:
            found.append(f"{folder / name} does not match its manifest")
    found += [
        f"{folder / name} is not in its manifest" for name in present if name not in listed and name not in NOT_OUTPUTS
    ]
    return found


def verify(folder: Path, cache: DigestCache) -> Manifest:
    """The manifest, once every file of the folder is as it says. Raises `UserError` naming the first that is not."""
    manifest = read(folder)
    found = faults(folder, manifest, cache)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UserError(f"{found[0]}{more}; {_mend(folder)}")
    return manifest


def package_versions() -> dict[str, str]:
    """Versions of what can change a stage's bytes, and Python's own."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _mend(folder: Path) -> str:
    return f"delete {folder} and run snakemake again to remake it"
