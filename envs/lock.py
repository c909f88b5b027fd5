"""Write envs/*.lock from envs/*.in (`make lock`): every package, exactly pinned, for the Python that will run it.

The host sets (cpu, driver, dev) are resolved together first, so that all three install into one virtual environment;
each lock then takes its own part of that solution. Needs `uv` (`pip install uv`), which reads no pip settings: name a
folder of wheels with UV_FIND_LINKS where pip has one. CUDA libraries are left out, because the PyTorch build that pip
finds decides them (the default build, +cpu, +cu121): pip adds the right ones beside the pinned PyTorch.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ENVS = Path(__file__).resolve().parent
HOST_SETS = ("cpu", "driver", "dev")
HOST_PYTHON, HOST_PLATFORM = "3.11", "x86_64-manylinux_2_36"
# Sets that stand alone: name -> (Python, platform) that they are for.
OTHER_SETS = {
    "cuda121": ("3.10", "x86_64-manylinux_2_35"),
    "transformers4": (HOST_PYTHON, HOST_PLATFORM),
}
CUDA_LIBRARIES = re.compile(r"(nvidia|cuda|triton)\b")


def compile_pins(sources: list[Path], python: str, platform: str, constraint: Path | None = None) -> list[str]:
    """Resolve requirement files to sorted `name==version` lines without local version parts (`+cpu`)."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--python-version", python]
    command += ["--python-platform", platform, *map(str, sources)]
    command += ["-c", str(constraint)] if constraint else []
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [re.sub(r"\+[a-z0-9.]+$", "", line) for line in output.splitlines() if "==" in line]


def write_lock(name: str, pins: list[str], python: str) -> None:
    pins = [pin for pin in pins if not CUDA_LIBRARIES.match(pin)]
    head = f"# Python {python}. Written from {name}.in by `make lock`: do not edit.\n"
    (ENVS / f"{name}.lock").write_text(head + "".join(f"{pin}\n" for pin in pins))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder) / "together.txt"
        sources = [ENVS / f"{name}.in" for name in HOST_SETS]
        together.write_text("\n".join(compile_pins(sources, HOST_PYTHON, HOST_PLATFORM)))
        for name in HOST_SETS:
            write_lock(name, compile_pins([ENVS / f"{name}.in"], HOST_PYTHON, HOST_PLATFORM, together), HOST_PYTHON)
    for name, (python, platform) in OTHER_SETS.items():
        write_lock(name, compile_pins([ENVS / f"{name}.in"], python, platform), python)


if __name__ == "__main__":
    main()
