"""Where an image's base comes from: a container registry where one is reached, else a Debian root made here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from posttrain.errors import UserError

PROBE_SECONDS = 15
# The error codes of the registry protocol; where none is reached, the fault is another one.
ANSWERS = re.compile(r"\b(MANIFEST_UNKNOWN|NAME_UNKNOWN|UNAUTHORIZED|DENIED|TOOMANYREQUESTS)\b|manifest unknown")
LOCAL_CERTIFICATES = Path("usr/local/share/ca-certificates")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))


def registry_answers(apptainer: str, reference: str, folder: Path) -> bool:
    """True if the registry of an image reference answers within PROBE_SECONDS.

    Apptainer itself asks, with its own mirrors, proxies and credentials, for a tag that does not exist: nothing is
    downloaded.
    """
    name = re.sub(r"(:[^/:]+|@[^/]+)$", "", reference)
    command = [apptainer, "build", str(folder / "probe.sif"), f"docker://{name}:no-such-tag-registry-probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 or bool(ANSWERS.search(done.stderr))


def make_debian(suite: str, packages: str, root: Path) -> None:
    """Make a Debian root file system with the packages (space separated) in it.

    Certificate authorities that this machine's administrator added go in too (a proxy that re-signs TLS needs them),
    and device nodes go out: `apptainer build --fakeroot` could not copy them.

    Raises:
        UserError: this machine is no Debian of that suite, or mmdebstrap is absent or fails.
    """
    sources = next((path for path in SOURCES if path.exists()), None)
    if os.geteuid() or sources is None or f"VERSION_CODENAME={suite}" not in Path("/etc/os-release").read_text():
        raise UserError(
            "No container registry is reached, and only root on Debian 12 can make the base image without one; "
            "build where a registry is reached and copy the .sif here."
        )
    if shutil.which("mmdebstrap") is None:
        _run(["apt-get", "-qq", "update"], "apt-get update")
        _run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", "mmdebstrap"], "apt-get install mmdebstrap")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")]
    _run([*command, f"--include={','.join(packages.split())}", suite, str(root), str(sources)], "mmdebstrap")
    _trust_local_certificates(root)
    for node in (root / "dev").iterdir():
        shutil.rmtree(node) if node.is_dir() and not node.is_symlink() else node.unlink()


def _trust_local_certificates(root: Path) -> None:
    certificates = sorted(("/" / LOCAL_CERTIFICATES).glob("**/*.crt"))
    if not certificates:
        return
    for certificate in certificates:
        shutil.copy(certificate, root / LOCAL_CERTIFICATES)
    _run(["chroot", str(root), "update-ca-certificates"], "update-ca-certificates")
    (root / "etc/pip.conf").write_text(f"[global]\ncert = {BUNDLE}\n")


def _run(command: list[str], what: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UserError(f"The base image could not be made: {what} said `{lines[-1]}`; mend that and start again.")
