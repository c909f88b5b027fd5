"""The real CPU image, started the way the workflow starts it: what is inside it, and what of the host is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.provenance.images import image_id, image_path

from .test_locks import normal, pins

pytestmark = pytest.mark.containers
ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, os, site, sys
from importlib import metadata
import posttrain, torch, transformers, datasets, mlflow
from posttrain.provenance.images import current_image
print(json.dumps({
    "path": sys.path, "executable": sys.executable, "home": os.path.expanduser("~"), "user_site": site.ENABLE_USER_SITE,
    "environment": dict(os.environ), "posttrain": posttrain.__file__, "image": current_image(),
    "packages": {one.metadata["Name"]: one.version for one in metadata.distributions()},
    "marker_seen": os.path.exists(sys.argv[1]), "matmul": (torch.ones(2, 3) @ torch.ones(3, 2)).sum().item(),
}))
"""


@pytest.fixture(scope="module")
def image(runtime: str) -> Path:
    """The CPU image of this working tree, built where it is missing (about two to five minutes)."""
    path = image_path("cpu")
    done = subprocess.run(
        [sys.executable, "docker/build_sif.py", "cpu", str(path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the package in it, and a user site of the host that nothing may see."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "posttrain", folder / "posttrain", ignore=shutil.ignore_patterns("__pycache__"))
    user_site = folder / ".local/lib/python3.11/site-packages"
    user_site.mkdir(parents=True)
    (user_site / "leak.py").write_text("")
    (folder / "probe.py").write_text(PROBE)
    return folder


@pytest.fixture(scope="module")
def inside(runtime: str, image: Path, project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Python says of itself in the image, started as Snakemake starts a stage, from a host that tries to leak."""
    host = tmp_path_factory.mktemp("host")
    (host / "hostmodule.py").write_text("")
    leaks = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE"), str(host))
    marker = Path.home() / ".posttrain-image-test-marker"
    marker.write_text("")
    shell = f"python probe.py {marker}"
    command = [runtime, "exec", "--home", str(project), "--cleanenv", str(image), "bash", "-c", shell]
    try:
        done = subprocess.run(command, cwd=project, env=os.environ | leaks, capture_output=True, text=True, timeout=180)
    finally:
        marker.unlink()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_id_read_inside_is_the_one_known_outside(inside: dict[str, Any]) -> None:
    assert inside["image"] == image_id("cpu")


def test_the_code_is_the_working_trees(inside: dict[str, Any], project: Path) -> None:
    assert inside["posttrain"] == str(project / "posttrain/__init__.py")
    assert inside["matmul"] == 12.0


def test_python_and_its_path_are_the_images(inside: dict[str, Any], project: Path) -> None:
    assert inside["executable"] == "/opt/venv/bin/python"
    foreign = [
        one for one in inside["path"] if one != str(project) and not one.startswith(("/usr/lib/python3", "/opt/venv/"))
    ]
    assert not foreign and inside["user_site"] is False


def test_packages_are_exactly_the_lock(inside: dict[str, Any]) -> None:
    packages = {normal(name): version.partition("+")[0] for name, version in inside["packages"].items()}
    wanted = pins("cpu")
    assert {name: packages.get(name) for name in wanted} == wanted
    added = {name for name in packages if name not in wanted and not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert added <= {"pip", "setuptools"}


def test_home_and_environment_of_the_host_stay_outside(inside: dict[str, Any], project: Path) -> None:
    assert inside["home"] == str(project) and not inside["marker_seen"]
    environment = inside["environment"]
    assert environment["PYTHONNOUSERSITE"] == "1"
    assert not environment["PYTHONPATH"] and not environment["PYTHONHOME"]
    assert not {"VIRTUAL_ENV", "SSL_CERT_FILE", "PYENV_ROOT", "CI"} & set(environment)


@pytest.mark.parametrize("module", ["leak", "hostmodule"])
def test_modules_of_the_host_are_not_found_even_without_cleanenv(
    module: str, runtime: str, image: Path, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "hostmodule.py").write_text("")
    command = [runtime, "exec", "--home", str(project), str(image), "python", "-c", f"import {module}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert f"No module named '{module}'" in done.stderr
