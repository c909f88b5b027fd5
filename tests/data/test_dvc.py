"""The raw data as committed: a fresh clone gets every byte from the remote inside the repository, without a network."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHA256 = {
    "LICENSE.txt": "74cfe41cdbf7f6925aeb4c18c148ec8db042540edb6739fd81069aa4e3c8b118",
    "_README_.txt": "583d6381c04a4b342ac6e7268066128467785f1f4801c4f7d44afb1ccbaad939",
    "amazonReviewSnippets_GroundTruth.txt": "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
    "movieReviewSnippets_GroundTruth.txt": "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
}

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a git checkout"
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "repository"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def test_pull_on_a_fresh_clone_needs_no_network(clone: Path) -> None:
    dead = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(clone.parent),
        "DVC_SITE_CACHE_DIR": str(clone.parent / "site"),
        **dead,
    }
    command = [sys.executable, "-m", "dvc", "pull", "-q"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (clone / "data").iterdir()}
    assert found == SHA256
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""


def test_every_object_of_the_remote_has_its_own_digest(clone: Path) -> None:
    """What git checked out is what DVC stored: no line end was converted."""
    listing = yaml.safe_load((clone / "data.dvc").read_text())["outs"][0]["md5"]
    objects = {path.parent.name + path.name: path for path in (clone / ".dvc/remote/files/md5").glob("*/*")}
    for name, path in objects.items():
        assert hashlib.md5(path.read_bytes()).hexdigest() == name.removesuffix(".dir")
    entries = json.loads(objects[listing].read_text())
    assert {entry["relpath"] for entry in entries} == set(SHA256)
    assert set(objects) == {listing} | {entry["md5"] for entry in entries}


def test_git_never_converts_line_ends_of_objects(clone: Path) -> None:
    objects = [str(path.relative_to(clone)) for path in (clone / ".dvc/remote/files/md5").glob("*/*")]
    command = ["git", "check-attr", "text", "--", *objects]
    lines = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(objects) == 5 and all(line.endswith("text: unset") for line in lines)


def test_no_analytics_and_a_remote_inside_the_repository() -> None:
    config = (ROOT / ".dvc/config").read_text()
    assert "analytics = false" in config and "url = remote" in config
