"""The built wheel in an environment that has nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import posttrain

ROOT = Path(__file__).resolve().parents[1]


def test_a_wheel_installs_in_a_clean_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "posttrain", source / "posttrain", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("posttrain/")}
    assert packed == {str(path.relative_to(source)) for path in (source / "posttrain").rglob("*") if path.is_file()}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True)
    python = tmp_path / "clean" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "-q", "install", "--no-deps", "--no-index", wheel], check=True)
    words = (
        [python, "-c", "import posttrain; print(posttrain.__version__)"],
        [python.with_name("posttrain"), "--version"],
    )
    for command in words:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == posttrain.__version__
