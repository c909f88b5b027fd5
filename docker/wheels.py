"""Download the wheels of a lock file on the host, for the Python and C library of the image.

pip runs with the host's settings (index, folder of wheels, certificates), so that none of them has to enter the image.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path


def platforms(glibc: str, machine: str) -> list[str]:
    """Wheel platform tags that a C library of version `glibc` ("2.36") can load, newest first."""
    major, _, minor = glibc.partition(".")
    tags = [f"manylinux_{major}_{number}_{machine}" for number in range(int(minor), 16, -1)]
    return [*tags, f"manylinux2014_{machine}", f"linux_{machine}"]


def download(lock: Path, python: str, glibc: str, folder: Path) -> str | None:
    """Fill `folder` with the wheels of `lock` and what they need.

    Returns None, or pip's reason why that is not possible on this machine.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    command += ["--dest", str(folder), "-r", str(lock)]
    for tag in platforms(glibc, platform.machine()):
        command += ["--platform", tag]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return errors[-1] if errors else (done.stderr.strip().splitlines() or ["pip download failed"])[-1]
