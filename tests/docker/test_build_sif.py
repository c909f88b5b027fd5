"""The image builder around its recipe: registry or not, wheels or not, one builder at a time, clear refusals."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import base_image
import build_sif
import pytest
import wheels

from posttrain.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
IMAGE = build_sif.Image("small", "base:1", "envs/cpu.lock", "3.11", "2.36", "python3", 0.001, debootstrap="bookworm")


@pytest.fixture
def progress() -> build_sif.Progress:
    return build_sif.Progress(total=4)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class EmptyRegistry(BaseHTTPRequestHandler):
    """A registry without images: it speaks the protocol and has no such tag."""

    def do_GET(self) -> None:
        there = self.path == "/v2/"
        self.send_response(200 if there else 404)
        self.end_headers()
        fault = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
        self.wfile.write(b"" if there else json.dumps(fault).encode())

    def log_message(self, *parts: object) -> None:
        """Stay silent."""


@pytest.fixture
def registry() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), EmptyRegistry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.containers
def test_a_registry_that_answers_is_seen_and_a_closed_port_is_not(registry: int, runtime: str, tmp_path: Path) -> None:
    assert base_image.registry_answers(runtime, f"localhost:{registry}/debian:12", tmp_path)
    assert not base_image.registry_answers(runtime, "localhost:9/debian:12", tmp_path)


@pytest.mark.parametrize("reference", ["debian:12", "host:5000/debian:12", "host:5000/debian@sha256:12", "debian"])
def test_the_probe_asks_for_a_tag_of_the_same_image(reference: str, tmp_path: Path) -> None:
    program = script(tmp_path / "apptainer", f'echo "$3" > {tmp_path}/asked; echo "NAME_UNKNOWN: no" >&2; exit 255')
    assert base_image.registry_answers(program, reference, tmp_path)
    name = "host:5000/debian" if "host" in reference else "debian"
    assert (tmp_path / "asked").read_text() == f"docker://{name}:no-such-tag-registry-probe\n"


def test_a_silent_network_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_image, "PROBE_SECONDS", 0.3)
    start = time.monotonic()
    assert not base_image.registry_answers(script(tmp_path / "apptainer", "exec sleep 30"), "debian:12", tmp_path)
    assert time.monotonic() - start < 5


def test_without_registry_and_without_a_way_to_make_the_base_the_message_says_so(
    tmp_path: Path, progress: build_sif.Progress
) -> None:
    program = script(tmp_path / "apptainer", "echo 'FATAL: dial tcp: no such host' >&2; exit 255")
    image = build_sif.load_image("cuda121")
    with pytest.raises(UserError, match="but nvidia/cuda"):
        build_sif.prepare_base(image, program, tmp_path, progress)


def test_base_is_made_only_by_root_on_the_same_debian(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only root on Debian 12"):
        base_image.make_debian("another-suite", "python3", tmp_path / "root")


def test_platforms_are_what_the_c_library_loads() -> None:
    tags = wheels.platforms("2.18", "x86_64")
    assert tags == ["manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64"]


def test_wheels_that_cannot_be_had_are_left_to_pip_in_the_image(
    tmp_path: Path, progress: build_sif.Progress, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.lock").write_text("no-such-package-of-ours==1\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(build_sif, "ROOT", tmp_path)
    image = build_sif.Image(**{**vars(IMAGE), "lock": "a.lock"})
    assert not build_sif.fetch_wheels(image, tmp_path, progress)
    assert not (tmp_path / "mnt/wheels").exists()
    assert "No matching distribution found" in capsys.readouterr().err


def test_nothing_of_the_hosts_python_reaches_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PIP_FIND_LINKS", "KEPT"):
        monkeypatch.setenv(name, "host")
    environment = build_sif.build_environment(tmp_path, has_wheels=True)
    assert not [name for name in environment if name.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))]
    assert environment["KEPT"] == "host" and environment["APPTAINER_TMPDIR"] == str(tmp_path)
    assert build_sif.build_environment(tmp_path, has_wheels=False)["PIP_FIND_LINKS"] == "host"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("+ pip\nERROR: No matching distribution found for x\nFATAL: post", "No matching distribution found for x"),
        ("tar: write: No space left on device\nFATAL: post", "disk is full"),
        ("something odd", "something odd"),
        ("", "no output"),
    ],
)
def test_a_failed_build_is_said_in_one_line(
    output: str, said: str, tmp_path: Path, progress: build_sif.Progress
) -> None:
    program = script(tmp_path / "apptainer", f"printf '%s' '{output}'; exit 255")
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        build_sif.run_build([program], {}, tmp_path / "log", progress)
    assert said in str(error.value) and str(tmp_path / "log") in str(error.value)


def test_a_long_build_shows_signs_of_life(
    tmp_path: Path,
    progress: build_sif.Progress,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build_sif, "HEARTBEAT_SECONDS", 0.4)
    program = script(tmp_path / "apptainer", "sleep 0.6; echo 'INFO: Creating SIF file...'; sleep 0.6")
    build_sif.run_build([program], {"PATH": "/usr/bin:/bin"}, tmp_path / "log", progress)
    lines = capsys.readouterr().err.splitlines()
    assert "installing" in lines[0] and "compressing" in lines[-1]


def test_too_little_space_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GB free and the image needs 1000000"):
        build_sif.check_space(tmp_path, 1e6, "the image")


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docker/build_sif.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment or None, timeout=60)


def test_an_unknown_image_is_named_with_the_known_ones(tmp_path: Path) -> None:
    done = call("cpuu", str(tmp_path / "x.sif"))
    assert (done.returncode, done.stderr) == (2, "docker/images.json has no image `cpuu`; it has cpu, cuda121.\n")


def test_no_apptainer_names_the_command_that_installs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_sif.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match="make apptainer"):
        build_sif.find_runtime()


def test_a_second_build_waits_and_uses_the_first_ones_result(tmp_path: Path) -> None:
    out = tmp_path / "x.sif"
    program = script(tmp_path / "apptainer", "exit 1")
    command = [sys.executable, str(ROOT / "docker/build_sif.py"), "cpu", str(out)]
    with (tmp_path / ".x.sif.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={"PATH": str(Path(program).parent)})
        assert second.stderr is not None
        assert "waiting for another process that builds x.sif" in second.stderr.readline()
        out.write_text("made by the first")
        fcntl.flock(handle, fcntl.LOCK_UN)
    _, rest = second.communicate(timeout=30)
    assert second.returncode == 0 and "exists already" in rest and out.read_text() == "made by the first"


def test_a_failed_build_leaves_no_image(
    tmp_path: Path, progress: build_sif.Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_sif.wheels, "download", lambda *parts: "none here")
    monkeypatch.setattr(build_sif.base_image, "registry_answers", lambda *parts: True)
    program = script(tmp_path / "apptainer", 'for last; do before="$out"; out="$last"; done; : > "$before"; exit 255')
    image = build_sif.Image(**{**vars(IMAGE), "name": "cpu"})
    with pytest.raises(UserError, match="apptainer build"):
        build_sif.build(image, tmp_path / "x.sif", program, progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apptainer", "x.log"]
