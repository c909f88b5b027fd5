"""Image ids: the recipe, the lock file and the image's own entry decide, nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.provenance.images import current_image, image_id, image_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docker").mkdir()
    (tmp_path / "envs").mkdir()
    table = {"cpu": {"base": "debian:12", "lock": "envs/cpu.lock"}, "gpu": {"base": "cuda", "lock": "envs/gpu.lock"}}
    (tmp_path / "docker" / "images.json").write_text(json.dumps(table))
    for name in (
        "docker/Dockerfile",
        "docker/build_sif.py",
        "docker/install_apptainer.py",
        "envs/cpu.lock",
        "envs/gpu.lock",
    ):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("docker/Dockerfile", {"cpu", "gpu"}),
        ("docker/build_sif.py", {"cpu", "gpu"}),
        ("docker/install_apptainer.py", set()),
        ("envs/cpu.lock", {"cpu"}),
        ("envs/gpu.lock", {"gpu"}),
    ],
)
def test_what_decides(root: Path, name: str, changes: set[str]) -> None:
    before = {image: image_id(image, root) for image in ("cpu", "gpu")}
    (root / name).write_text("changed")
    assert {image for image in before if image_id(image, root) != before[image]} == changes
    (root / name).write_text(name)
    assert {image: image_id(image, root) for image in before} == before


def test_the_base_decides_for_its_image_only(root: Path) -> None:
    before = {image: image_id(image, root) for image in ("cpu", "gpu")}
    path = root / "docker" / "images.json"
    path.write_text(path.read_text().replace("debian:12", "debian:13"))
    assert image_id("cpu", root) != before["cpu"] and image_id("gpu", root) == before["gpu"]


def test_faults(root: Path) -> None:
    with pytest.raises(UserError, match="no image 'other'"):
        image_id("other", root)
    (root / "envs" / "cpu.lock").unlink()
    with pytest.raises(UserError, match=r"envs/cpu.lock is missing"):
        image_id("cpu", root)


def test_the_cache_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.delenv("POSTTRAIN_CACHE", raising=False)
    assert image_path("cpu", root) == Path(f"/c/posttrain/images/cpu-{image_id('cpu', root)[:12]}.sif")
    monkeypatch.setenv("POSTTRAIN_CACHE", "/p")
    assert image_path("cpu", root).parent == Path("/p/images")


def test_the_id_is_read_inside(tmp_path: Path) -> None:
    assert current_image(tmp_path / "image.json") == "host"
    (tmp_path / "image.json").write_text('{"name": "cpu", "id": "abc"}')
    assert current_image(tmp_path / "image.json") == "abc"
