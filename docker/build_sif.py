"""Build one image of docker/images.json as a .sif file: `python docker/build_sif.py cpu OUT.sif`.

Needs Apptainer (or Singularity) and no container daemon. The recipe is the Dockerfile; see dockerfile.py for its
translation, base_image.py for where the base comes from and wheels.py for the packages. The finished file appears under
its name at once, and a second build of the same image waits for the first one and uses its result.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import base_image  # noqa: E402
import dockerfile  # noqa: E402
import wheels  # noqa: E402

from posttrain.errors import UserError  # noqa: E402
from posttrain.provenance.images import image_id  # noqa: E402

COMPRESSION = "-comp zstd -Xcompression-level 3"
HEARTBEAT_SECONDS = 30
# The compressed image against the space that its build takes.
COMPRESSED_SHARE = 0.3


@dataclass(frozen=True)
class Image:
    """One entry of docker/images.json.

    `lock` is relative to the repository, `disk_gb` the space that a build takes, `debootstrap` the Debian suite that
    makes the base where no registry is reached.
    """

    name: str
    base: str
    lock: str
    python: str
    glibc: str
    packages: str
    disk_gb: float
    debootstrap: str | None = None


class Progress:
    """Numbered steps with the seconds since the start, one plain line each, on standard error."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()

    def line(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:4.0f} s] {text}", file=sys.stderr, flush=True)

    def step(self, text: str) -> None:
        self.done += 1
        self.line(f"{self.done}/{self.total} {text}")


def load_image(name: str) -> Image:
    """The entry of docker/images.json; raises UserError for an unknown name."""
    entries = json.loads((ROOT / "docker/images.json").read_text())
    if name not in entries:
        raise UserError(f"docker/images.json has no image `{name}`; it has {', '.join(entries)}.")
    return Image(name=name, **entries[name])


def find_runtime() -> str:
    """The apptainer or singularity program; raises UserError where there is none."""
    beside = Path(sys.executable).parent
    for name in ("apptainer", "singularity"):
        if found := shutil.which(name) or shutil.which(name, path=str(beside)):
            return found
    raise UserError("No Apptainer or Singularity was found to build the image with; install one with `make apptainer`.")


def check_space(folder: Path, gigabytes: float, what: str) -> None:
    """Raise UserError unless the file system of `folder` has that many free gigabytes."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise UserError(
            f"{folder} has {free:.1f} GB free and {what} needs {gigabytes:.1f} GB; free some space, or name another "
            "place with TMPDIR (the build) or POSTTRAIN_CACHE (the image)."
        )


@contextlib.contextmanager
def only_builder(out: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of this image file; says so when it has to wait for another build."""
    with out.with_name(f".{out.name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.line(f"waiting for another process that builds {out.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch_wheels(image: Image, work: Path, progress: Progress) -> bool:
    """Download the wheels of the lock into `work`/mnt/wheels; False where pip has to run inside the image instead."""
    progress.step(f"packages: downloading the wheels of {image.lock}")
    folder = work / "mnt/wheels"
    folder.mkdir(parents=True)
    reason = wheels.download(ROOT / image.lock, image.python, image.glibc, folder)
    if reason is None:
        found = list(folder.iterdir())
        progress.line(f"    {len(found)} wheels, {sum(wheel.stat().st_size for wheel in found) / 1e6:.0f} MB")
        return True
    progress.line(f"    not possible on this machine ({reason}); pip runs inside the image")
    shutil.rmtree(folder)
    return False


def prepare_base(image: Image, runtime: str, work: Path, progress: Progress) -> tuple[str, str]:
    """(Bootstrap, From) of the definition: the registry's image, or a root file system made here."""
    progress.step(f"base: looking for {image.base}")
    if base_image.registry_answers(runtime, image.base, work):
        progress.line("    from its container registry")
        return "docker", image.base
    if image.debootstrap is None:
        raise UserError(
            f"No container registry is reached, but {image.base} comes from one; build where one is reached."
        )
    progress.line(f"    no container registry is reached; making Debian {image.debootstrap} with mmdebstrap")
    base_image.make_debian(image.debootstrap, image.packages, work / "root")
    return "localimage", str(work / "root")


def run_build(command: Sequence[str], environment: dict[str, str], log: Path, progress: Progress) -> None:
    """Run `apptainer build` with its output in `log` and a sign of life every HEARTBEAT_SECONDS.

    Raises:
        UserError: the build failed; names the first error in the log.
    """
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(HEARTBEAT_SECONDS)
                    break
                packing = "Creating SIF file" in log.read_text(errors="replace")
                progress.line(f"    {'compressing' if packing else 'installing'}")
        finally:
            process.terminate()
            process.wait()
    if status:
        raise UserError(f"{failure(log.read_text(errors='replace').splitlines())} (log: {log})")


def failure(lines: Sequence[str]) -> str:
    """What went wrong, from the output of a failed build."""
    if any("no space left on device" in line.lower() for line in lines):
        return (
            "The disk is full and the build of the image stopped; free some space, or name another place with TMPDIR."
        )
    errors = [line for line in lines if line.startswith(("ERROR", "FATAL", "E: "))] or [*lines[-1:], "no output"]
    return f"`apptainer build` failed: {errors[0]}; mend that and start again."


def build_environment(work: Path, has_wheels: bool) -> dict[str, str]:
    """The environment of `apptainer build`, which hands it on to the script: without the host's Python."""
    foreign = ("PYTHON", "VIRTUAL_ENV", *(("PIP_",) if has_wheels else ()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "APPTAINER_TMPDIR": str(work), "SINGULARITY_TMPDIR": str(work)}


def build(image: Image, out: Path, runtime: str, progress: Progress) -> None:
    """Build `image` and publish it as `out`; the log of a failed build stays beside it."""
    log, identity = out.with_suffix(".log"), image_id(image.name)
    with tempfile.TemporaryDirectory(prefix="posttrain-image-") as folder:
        work = Path(folder)
        check_space(work.parent, image.disk_gb, "the build of the image")
        check_space(out.parent, image.disk_gb * COMPRESSED_SHARE, "the image")
        has_wheels = fetch_wheels(image, work, progress)
        bootstrap, source = prepare_base(image, runtime, work, progress)
        progress.step("build: installing the packages in the image")
        arguments = {"BASE_IMAGE": image.base, "PACKAGES": image.packages, "LOCK": image.lock}
        arguments |= {"IMAGE_NAME": image.name, "IMAGE_ID": identity}
        recipe = dockerfile.Translator(arguments).translate((ROOT / "docker/Dockerfile").read_text())
        for name in recipe.copied:
            target = work / "mnt/context" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        (work / "image.def").write_text(recipe.definition(bootstrap, source))
        partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
        command = [runtime, "build", "--fakeroot", "--force", "--bind", f"{work / 'mnt'}:/mnt:ro"]
        command += ["--mksquashfs-args", COMPRESSION, str(partial), str(work / "image.def")]
        try:
            run_build(command, build_environment(work, has_wheels), log, progress)
            progress.step("check: reading the image's identity inside it")
            check_identity(partial, {"name": image.name, "id": identity}, runtime)
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    log.unlink()


def check_identity(path: Path, expected: dict[str, str], runtime: str) -> None:
    """Start the image and compare what it says it is with what it should be; raises UserError if they differ."""
    command = [runtime, "exec", "--cleanenv", "--contain", str(path), "python", "-c"]
    done = subprocess.run(
        [*command, "print(open('/opt/posttrain/image.json').read())"], capture_output=True, text=True, timeout=120
    )
    if done.returncode or json.loads(done.stdout) != expected:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UserError(f"The finished image does not answer as {expected}: {reason}; build it again.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build an image of docker/images.json as a .sif file.")
    parser.add_argument("name", help="the image's name in docker/images.json")
    parser.add_argument("out", type=Path, help="the .sif file to make")
    options = parser.parse_args(arguments)
    out: Path = options.out.absolute()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    progress = Progress(total=4)
    try:
        image, runtime = load_image(options.name), find_runtime()
        out.parent.mkdir(parents=True, exist_ok=True)
        with only_builder(out, progress):
            if out.exists():
                progress.line(f"{out} exists already")
                return 0
            build(image, out, runtime, progress)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or out}: {error.strerror}; the image could not be written.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    progress.line(f"{out} ({out.stat().st_size / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
