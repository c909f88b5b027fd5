"""pull_data: DVC's word is not taken. Real DVC repositories with a folder as remote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.provenance.digests import DigestCache
from posttrain.provenance.raw_data import data_state, read_tracked, verify_data
from posttrain.stages.pull_data import DVC, pull_data

pytest.importorskip("dvc")

FILES = {"a.txt": b"one\r\n", "b/c.txt": "zwei ü\n".encode(), "d.txt": b""}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC repository whose data is tracked and pushed to a folder inside it."""
    folder = tmp_path_factory.mktemp("template")
    for name, content in FILES.items():
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_bytes(content)
    for words in (
        "init --no-scm -q",
        "remote add -d store remote",
        "config core.analytics false",
        "add -q data",
        "push -q",
    ):
        subprocess.run([*DVC, *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def clone(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a fresh clone has: data.dvc and the remote, no data and no cache."""
    shutil.copytree(template, tmp_path / "c", ignore=shutil.ignore_patterns("data", "cache", "tmp"))
    monkeypatch.chdir(tmp_path / "c")
    return tmp_path / "c"


@pytest.fixture
def pulled(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data and cache are there."""
    shutil.copytree(template, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    return tmp_path / "p"


def stub(folder: Path, code: str) -> list[str]:
    """A dvc that does what `code` says and then claims success."""
    path = folder / "stub.py"
    path.write_text(f"import pathlib, sys\n{code}\n")
    return [sys.executable, str(path)]


def fault(dvc: list[str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        pull_data(Path("data"), Path("out.json"), dvc or stub(Path(), "raise SystemExit('not to be called')"))
    assert not Path("out.json").exists()
    return str(caught.value)


def test_a_fresh_clone_is_pulled_and_verified(clone: Path) -> None:
    pull_data(Path("data"), Path("results/x/out.json"))
    content = json.loads(Path("results/x/out.json").read_text())
    assert [(entry["path"], entry["size"]) for entry in content["files"]] == [
        ("a.txt", 5),
        ("b/c.txt", 8),
        ("d.txt", 0),
    ]
    assert (clone / "data" / "b" / "c.txt").read_bytes() == FILES["b/c.txt"]
    first = Path("results/x/out.json").read_bytes()
    pull_data(Path("data"), Path("results/x/out.json"))
    assert Path("results/x/out.json").read_bytes() == first
    assert str(clone) not in first.decode()


def test_whole_data_needs_no_dvc(pulled: Path) -> None:
    pull_data(Path("data"), Path("out.json"), stub(pulled, "raise SystemExit('not to be called')"))
    assert Path("out.json").exists()


def test_a_dvc_that_does_nothing_and_claims_success(clone: Path) -> None:
    found = fault(stub(clone, ""))
    assert "claims success" in found and "data was not brought" in found


def test_a_missing_file_is_named_though_dvc_claims_success(pulled: Path) -> None:
    Path("data/b/c.txt").unlink()
    found = fault(stub(pulled, ""))
    assert "data/b/c.txt is missing" in found and "claims success" in found


def test_a_missing_file_is_pulled(pulled: Path) -> None:
    Path("data/b/c.txt").unlink()
    pull_data(Path("data"), Path("out.json"))
    assert Path("data/b/c.txt").read_bytes() == FILES["b/c.txt"]


def test_a_flipped_byte_that_dvc_brings_is_named(pulled: Path) -> None:
    shutil.rmtree("data")
    files = {**FILES, "a.txt": b"onf\r\n"}
    writes = "\n".join(
        f"p = pathlib.Path('data/{name}'); p.parent.mkdir(parents=True, exist_ok=True); p.write_bytes({content!r})"
        for name, content in files.items()
    )
    found = fault(stub(pulled, writes))
    assert "data/a.txt is not what data.dvc tracks" in found


@pytest.mark.parametrize("keep_stat", [False, True])
def test_an_edited_row_stops_with_its_file_and_the_mend(pulled: Path, keep_stat: bool) -> None:
    path = Path("data/a.txt")
    stat = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"onf\r\n")
    if keep_stat:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = fault()
    assert "data/a.txt" in found and "dvc add data" in found and "dvc checkout --force data" in found
    assert data_state("data") == ["data/a.txt"]


def test_an_added_file_is_altered_data(pulled: Path) -> None:
    Path("data/new.csv").write_text("x")
    assert "data/new.csv" in fault()
    assert data_state("data") == ["data/new.csv"]


def test_both_mends_work(pulled: Path) -> None:
    Path("data/a.txt").chmod(0o644)
    Path("data/a.txt").write_bytes(b"other")
    subprocess.run([*DVC, "checkout", "--force", "data"], check=True, capture_output=True)
    assert Path("data/a.txt").read_bytes() == FILES["a.txt"] and data_state("data") == []
    Path("data/a.txt").chmod(0o644)
    Path("data/a.txt").write_bytes(b"other")
    before = read_tracked(Path("data")).md5
    subprocess.run([*DVC, "add", "-q", "data"], check=True, capture_output=True)
    pull_data(Path("data"), Path("out.json"))
    assert read_tracked(Path("data")).md5 != before and data_state("data") == []


def test_read_only_links_are_read_and_not_written(pulled: Path) -> None:
    """DVC may link into its cache instead of copying."""
    for name in FILES:
        path = Path("data") / name
        elsewhere = pulled / f"link-{path.name}"
        shutil.move(path, elsewhere)
        elsewhere.chmod(0o444)
        path.symlink_to(elsewhere)
    before = {name: (Path("data") / name).stat().st_mtime_ns for name in FILES}
    pull_data(Path("data"), Path("out.json"))
    assert {name: (Path("data") / name).stat().st_mtime_ns for name in FILES} == before


def test_a_damaged_listing(pulled: Path) -> None:
    listing = read_tracked(Path("data")).listing_file
    listing.chmod(0o644)
    listing.write_text(listing.read_text().replace("a.txt", "z.txt"))
    assert str(listing) in fault()


@pytest.mark.parametrize(
    ("config", "words"),
    [("[core]\n    no_scm = True\n    remote = nope\n", "'nope'"), ("[[[\n", ".dvc/config is not DVC's configuration")],
)
def test_a_wrong_configuration_of_dvc(clone: Path, config: str, words: str) -> None:
    (clone / ".dvc/config").write_text(config)
    found = fault(list(DVC))
    assert words in found and "mend" in found and len(found.splitlines()) == 1


def test_dvc_fails(clone: Path) -> None:
    shutil.rmtree("remote")
    found = fault(list(DVC))
    assert "dvc pull data.dvc failed" in found and len(found.splitlines()) == 1
    assert "neither locally nor on remote" in found and "dvc remote list" in found


def test_no_dvc_file_or_a_broken_one(clone: Path) -> None:
    dvc_file = Path("data.dvc")
    text = dvc_file.read_text()
    for content in ("", "outs: []", "a: [", text.replace(".dir", "")):
        dvc_file.write_text(content)
        assert "data.dvc" in fault()
    dvc_file.unlink()
    assert "dvc add data" in fault()


def test_the_cache_may_lie_elsewhere(pulled: Path, tmp_path: Path) -> None:
    shutil.move(".dvc/cache", tmp_path / "other")
    with Path(".dvc/config.local").open("w") as file:
        file.write(f"[cache]\n    dir = {tmp_path / 'other'}\n")
    pull_data(Path("data"), Path("out.json"), stub(pulled, "raise SystemExit('not to be called')"))


def test_data_state_without_data_or_listing(clone: Path) -> None:
    assert data_state("data") == []
    Path("data").mkdir()
    assert data_state("data") == []


def test_data_state_names_missing_files_and_hashes_once(pulled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.provenance.digests.SETTLED_NS", -1)
    assert data_state("data") == []
    monkeypatch.setattr("posttrain.provenance.digests.file_digest", lambda *_: pytest.fail("hashed again"))
    assert data_state("data") == []
    Path("data/a.txt").unlink()
    assert data_state("data") == ["data/a.txt"]


def test_a_stage_checks_what_was_verified(pulled: Path) -> None:
    pull_data(Path("data"), Path("out.json"))
    cache = DigestCache(Path("cache.json"))
    verify_data(Path("out.json"), Path("data"), cache)
    Path("data/a.txt").chmod(0o644)
    Path("data/a.txt").write_bytes(b"onf\r\n")
    with pytest.raises(UserError, match=r"data/a.txt has changed since out.json was made"):
        verify_data(Path("out.json"), Path("data"), cache)
    Path("data/a.txt").unlink()
    with pytest.raises(UserError, match=r"data/a.txt is missing"):
        verify_data(Path("out.json"), Path("data"), cache)
