"""Finding or installing a container runtime: the machine's own first, else the right command for its distribution."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import install_apptainer
import pytest

SCRIPT = install_apptainer.__file__


def program(folder: Path, name: str, text: str = "echo 'apptainer version 1.3.0'") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"ubuntu", "debian"}, "ppa:apptainer/ppa"),
        ({"rocky", "rhel", "centos", "fedora"}, "epel-release"),
        ({"fedora"}, "sudo dnf install -y apptainer"),
        ({"debian"}, "sudo make apptainer"),
        ({"opensuse-leap", "suse"}, "zypper"),
        ({"gentoo"}, "your distribution"),
    ],
)
def test_each_distribution_is_told_its_own_command(words: set[str], said: str) -> None:
    assert said in install_apptainer.advice(words)


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_the_machines_own_runtime_is_linked_under_both_names(name: str, tmp_path: Path) -> None:
    own = program(tmp_path / "usr", name)
    command = [sys.executable, SCRIPT, "--prefix", str(tmp_path / "private"), "--bin", str(tmp_path / "bin")]
    for _ in range(2):
        environment = {"PATH": f"{tmp_path / 'bin'}:{tmp_path / 'usr'}:/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "apptainer version 1.3.0" in done.stderr
    assert {link.name: link.readlink() for link in (tmp_path / "bin").iterdir()} == {
        "apptainer": own,
        "singularity": own,
    }
    assert not (tmp_path / "private").exists()


def test_a_runtime_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "broken", "apptainer", "exit 1")
    own = program(tmp_path / "good", "apptainer")
    monkeypatch.setenv("PATH", f"{tmp_path / 'broken'}:{tmp_path / 'good'}")
    assert install_apptainer.machine_runtime([]) == own
    assert install_apptainer.machine_runtime([tmp_path / "good"]) is None


def test_a_private_copy_that_works_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(install_apptainer, "install_private", lambda prefix: pytest.fail("installed again"))
    private = program(tmp_path / "private/bin", "apptainer")
    arguments = ["--prefix", str(tmp_path / "private"), "--bin", str(tmp_path / "bin")]
    assert install_apptainer.main(arguments) == 0
    assert (tmp_path / "bin/singularity").readlink() == private


def test_elsewhere_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(install_apptainer, "distribution", lambda: ({"rocky", "rhel"}, "8.9"))
    assert install_apptainer.main(["--prefix", str(tmp_path / "private"), "--bin", str(tmp_path / "bin")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "epel-release" in said
    assert not (tmp_path / "bin").exists()
