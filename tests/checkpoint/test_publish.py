"""Publishing: whatever moment the process is killed at, the target is the whole old folder or the whole new one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from posttrain.checkpoint.publish import publish, repair, work_folder, write_atomic
from tests.checkpoint.killing import killed_everywhere

OLD = {"manifest.json": "old", "a/b.txt": "old b", "c.txt": "old c"}
NEW = {"manifest.json": "new", "a/b.txt": "new b", "d/e/f.txt": "new f"}


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def scene(folder: Path, target: dict[str, str] | None) -> Path:
    """A parent with a target (None: absent, {}: an empty folder as Snakemake makes it) and complete new content."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "x").mkdir(parents=True)
    if target is not None:
        (folder / "x" / "sft").mkdir()
        fill(folder / "x" / "sft", target)
    fill(work_folder(folder / "x" / "sft"), NEW)
    return folder / "x" / "sft"


@pytest.mark.parametrize("before", [None, {}, OLD], ids=["absent", "empty", "old"])
def test_publish_replaces_all(tmp_path: Path, before: dict[str, str] | None) -> None:
    target = scene(tmp_path / "s", before)
    publish(work_folder(target), target)
    assert content(target) == NEW
    assert [path.name for path in target.parent.iterdir()] == ["sft"]


@pytest.mark.parametrize("before", [None, OLD], ids=["absent", "old"])
def test_killed_at_any_point(tmp_path: Path, before: dict[str, str] | None) -> None:
    folder = tmp_path / "s"
    target = scene(folder, before)
    seen = []
    for _ in killed_everywhere(lambda: publish(work_folder(target), target)):
        repair(target)
        found = content(target) if target.exists() else None
        assert found in ([before, NEW] if before is not None else [None, NEW])
        seen.append(found)
        scene(folder, before)
    assert before in seen and NEW in seen


def test_killed_at_any_point_under_snakemake(tmp_path: Path) -> None:
    """Snakemake deletes the declared manifest of a job that did not end and creates the output folder again."""
    without = {name: text for name, text in OLD.items() if name != "manifest.json"}
    folder = tmp_path / "s"
    target = scene(folder, without)
    for _ in killed_everywhere(lambda: publish(work_folder(target), target)):
        (target / "manifest.json").unlink(missing_ok=True)
        target.mkdir(exist_ok=True)
        repair(target)
        new = {name: text for name, text in NEW.items() if name != "manifest.json"}
        assert content(target) in (without, new)
        shutil.rmtree(work_folder(target), ignore_errors=True)
        fill(work_folder(target), NEW)
        publish(work_folder(target), target)
        assert content(target) == NEW
        assert [path.name for path in target.parent.iterdir()] == ["sft"]
        scene(folder, without)


def test_files_are_as_readable_as_new_ones(tmp_path: Path) -> None:
    """safetensors creates files of mode 0600, which a colleague on the same disk could not read."""
    work = work_folder(tmp_path / "out")
    work.mkdir()
    (work / "model.safetensors").touch(mode=0o600)
    before = os.umask(0o027)
    try:
        publish(work, tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_linked_target_stays_a_link(tmp_path: Path) -> None:
    """Results may lie on another disk, behind a link: the rename happens there."""
    disk = tmp_path / "disk"
    fill(disk / "sft", OLD)
    link = tmp_path / "sft"
    link.symlink_to(disk / "sft")
    fill(work_folder(link.resolve()), NEW)
    publish(work_folder(link.resolve()), link)
    assert link.is_symlink() and content(disk / "sft") == NEW


def test_write_atomic_killed_at_any_point(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b"old")
    seen = set()
    for _ in killed_everywhere(lambda: write_atomic(path, b"new")):
        seen.add(path.read_bytes())
        path.write_bytes(b"old")
    assert seen == {b"old", b"new"}


def test_write_atomic_leaves_no_rest_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "f", b"x")
    assert list(tmp_path.iterdir()) == []
