"""Small wheels, and an index of them that is a folder."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from posttrain.provenance.digests import file_digest


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> str:
    """Write a wheel that needs a package which no index has; returns its sha256."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    facts = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: no-such-package\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    own = {f"{facts}/METADATA": metadata.encode(), f"{facts}/WHEEL": wheel.encode(), f"{facts}/RECORD": b""}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in {**files, **own}.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    return file_digest(path)


def use_index(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip see the folder's wheels alone, whatever this machine's settings are; keep wheels in `cache`."""
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    for name, value in {**settings, "POSTTRAIN_CACHE": str(cache)}.items():
        monkeypatch.setenv(name, value)
