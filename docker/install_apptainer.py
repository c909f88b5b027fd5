"""Make `apptainer` available (`make apptainer`): the machine's own where there is one, else a private copy.

Debian 12 has no apptainer package. Debian's unstable suite has one, but it needs a newer C library than Debian 12's. It
is therefore unpacked under a private prefix together with the libraries it needs, and its two programs are pointed at
them with patchelf: no package of the host is replaced. Elsewhere the distribution's package is the right one, and the
script says which command installs it. Standard library only, since it may run before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("apptainer", "singularity")
# squashfs-tools and squashfuse make and mount images, uidmap maps ids for --fakeroot, the others serve this script.
TOOLS = ("patchelf", "squashfs-tools", "squashfuse", "uidmap", "libcap2-bin")
# The program and the libraries of the same suite that Debian 12 has only in older versions.
PROGRAM, LIBRARIES = "apptainer", ("libc6", "libseccomp2", "libsqlite3-0")
PACKAGE_COMMANDS = {
    "ubuntu": "sudo add-apt-repository -y ppa:apptainer/ppa && sudo apt-get install -y apptainer",
    "debian": "sudo make apptainer (Debian 12), or from Debian 13 on: sudo apt-get install -y apptainer",
    "rhel": "sudo dnf install -y epel-release && sudo dnf install -y apptainer",
    "fedora": "sudo dnf install -y apptainer",
    "arch": "sudo pacman -S apptainer",
    "suse": "sudo zypper install apptainer",
}


class RefusedError(Exception):
    """This machine cannot have a private copy; the message says what to install instead."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def call(command: Sequence[str | Path], **options: object) -> str:
    """Run a command and return its output; a failure raises RefusedError with its last line."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise RefusedError(f"`{Path(str(command[0])).name} {command[1]}` failed: {lines[-1]}")
    return str(done.stdout)


def version_of(program: Path) -> str | None:
    """`apptainer version 1.4.5` for a program that runs, None for one that does not."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine_runtime(private: Sequence[Path]) -> Path | None:
    """The first working apptainer or singularity on PATH that does not stand in one of our own folders."""
    own = [folder.resolve() for folder in private]
    for name in NAMES:
        for folder in os.get_exec_path():
            program = Path(folder) / name
            ours = Path(folder).resolve() in own or any(program.resolve().is_relative_to(one) for one in own)
            if os.access(program, os.X_OK) and not ours and version_of(program):
                return program
    return None


def distribution() -> tuple[set[str], str]:
    """({ID and ID_LIKE words}, VERSION_ID) of this machine."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        return {platform.system().lower()}, ""
    return {facts.get("ID", ""), *facts.get("ID_LIKE", "").split()}, facts.get("VERSION_ID", "")


def advice(words: set[str]) -> str:
    for word in ("ubuntu", "debian", "fedora", "rhel", "arch", "suse"):
        if word in words and not (word == "fedora" and "rhel" in words):
            return f"Install it with: {PACKAGE_COMMANDS[word]}"
    return "Install the package `apptainer` of your distribution, or run without --use-singularity."


def check_can_install() -> None:
    """Raise RefusedError unless this is Debian 12 on x86-64, as root."""
    words, version = distribution()
    if not ("debian" in words and "ubuntu" not in words and version == "12" and platform.machine() == "x86_64"):
        raise RefusedError(f"no Apptainer or Singularity was found on this machine. {advice(words)}")
    if os.geteuid():
        raise RefusedError("no Apptainer or Singularity was found; root installs a private copy: sudo make apptainer")


def debian_mirror() -> str:
    """The Debian archive that this machine's apt already uses."""
    listing = call(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"])
    for line in listing.splitlines():
        origin, label, uri = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return uri
    raise RefusedError("apt knows no Debian archive here: run `apt-get update` and try again")


def fetch_packages(work: Path) -> None:
    """Download the packages of the unstable suite into `work`, with a private apt state: the host's lists stay."""
    for folder in ("parts", "lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "parts/unstable.sources").write_text(
        f"Types: deb\nURIs: {debian_mirror()}\nSuites: sid\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": work / "parts",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]
    call([*apt, "-qq", "update"])
    call([*apt, "-qq", "download", PROGRAM, *LIBRARIES], cwd=work)


def unpack(work: Path, prefix: Path) -> None:
    """Lay the packages out under `prefix` and point the programs at the private C library."""
    call(["dpkg-deb", "-x", next(work.glob(f"{PROGRAM}_*.deb")), work / "app"])
    for name in LIBRARIES:
        call(["dpkg-deb", "-x", next(work.glob(f"{name}_*.deb")), work / "lib"])
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.copytree(work / "app/usr", prefix, symlinks=True)
    for folder in ("etc", "var"):
        shutil.copytree(work / "app" / folder, prefix / folder, symlinks=True, dirs_exist_ok=True)
        (prefix / "lib" / folder).symlink_to(f"../{folder}")  # the starter looks for both under lib/
    libc = prefix / "libc"
    libc.mkdir()
    for library in (work / "lib/usr/lib/x86_64-linux-gnu").glob("*.so*"):
        shutil.copy2(library, libc, follow_symlinks=False)
    loader = libc / "ld-linux-x86-64.so.2"
    for program in (prefix / "bin/apptainer", prefix / "lib/x86_64-linux-gnu/apptainer/bin/starter"):
        call(["patchelf", "--set-interpreter", loader, "--force-rpath", "--set-rpath", libc, program])


def fit_to_root(prefix: Path) -> None:
    """Grant containers what this root really has, and give root a range of ids for --fakeroot where it has none.

    A root without CAP_SYS_RESOURCE (a container host, a sandbox) cannot grant the full set that is the default.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = call(["capsh", f"--decode={status['CapEff'].strip()}"]).strip().partition("=")[2]
    settings = prefix / "etc/apptainer/apptainer.conf"
    lines = settings.read_text().splitlines()
    key = "root default capabilities"
    settings.write_text("".join(f"{key} = file\n" if line.startswith(key) else f"{line}\n" for line in lines))
    call([prefix / "bin/apptainer", "capability", "add", "--user", "root", names.upper()])
    for table in (Path("/etc/subuid"), Path("/etc/subgid")):
        known = table.read_text() if table.exists() else ""
        if not any(line.startswith("root:") for line in known.splitlines()):
            table.write_text(f"{known}root:100000:65536\n")


def install_private(prefix: Path) -> None:
    """Install the private copy under `prefix`; raises RefusedError where that fails."""
    say(f"installing a private Apptainer under {prefix} (Debian 12, about a minute)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    call(["apt-get", "-qq", "update"])
    call(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *TOOLS], env=environment)
    with tempfile.TemporaryDirectory() as folder:
        fetch_packages(Path(folder))
        unpack(Path(folder), prefix)
    fit_to_root(prefix)


def link(program: Path, folder: Path) -> None:
    """Make both names in `folder` lead to `program`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(program)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make apptainer available: the machine's own, else a private copy.")
    parser.add_argument("--prefix", type=Path, default=ROOT / ".apptainer", help="where a private copy goes")
    parser.add_argument("--bin", type=Path, default=ROOT / ".venv/bin", help="the folder that gets the links")
    options = parser.parse_args(arguments)
    prefix, links = options.prefix.absolute(), options.bin.absolute()
    program = machine_runtime([prefix / "bin", links, prefix])
    try:
        if program is None:
            program = prefix / "bin/apptainer"
            if version_of(program) is None:
                check_can_install()
                install_private(prefix)
        version = version_of(program)
        if version is None:
            raise RefusedError(f"{program} was installed but does not run")
    except RefusedError as error:
        say(f"make apptainer: {error}")
        return 2
    link(program, links)
    say(f"{version} ({program}), linked into {links}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
