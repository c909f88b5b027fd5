"""A Snakemake that is killed: what the user is told, and what the next run does with the checkpoints it left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.workflow.project import SNAKEMAKE, Project

pytestmark = pytest.mark.workflow


def wait_for(condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"Snakemake ended before {what}"
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def kill_in_training(project: Project, config: dict[str, Any], *arguments: str) -> None:
    """Start a long training, kill Snakemake without a chance to tidy up at the first checkpoint; its job ends too."""
    project.write_config(config)
    state = project.folder / "results/micro/.state"
    process = subprocess.Popen(
        [str(SNAKEMAKE), "--cores", "2", *arguments],
        cwd=project.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: any(state.glob("*/checkpoints/step-*")), "a checkpoint", process)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while left := [other.cmdline() for other in psutil.process_iter() if works_in(other, project.folder)]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


def works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def long_ppo(project: Project) -> dict[str, Any]:
    config = project.config()
    config["runs"]["ppo"]["steps"] = 100_000
    return config


@pytest.mark.containers
@pytest.mark.usefixtures("runtime")
def test_a_killed_snakemake_takes_its_container_along(project: Project) -> None:
    config = project.config()
    config["sft"]["steps"] = 100_000
    kill_in_training(project, config, "--use-singularity")
    assert "stopped by SIGTERM" in (project.folder / "results/micro/logs/sft.log").read_text()


def test_after_a_kill_the_lock_is_explained_and_another_configuration_starts_anew(project: Project) -> None:
    kill_in_training(project, long_ppo(project))

    locked = project.snakemake("--cores", "2", check=False)
    assert locked.returncode != 0
    assert "type: snakemake --unlock" in locked.stdout and "Traceback" not in locked.stdout
    project.snakemake("--unlock")

    config = project.config()
    config["runs"]["ppo"].update(steps=2, kl_coef=0.07)
    project.write_config(config)
    project.run()
    log = (project.folder / "results/micro/logs/post_train/ppo.log").read_text()
    assert "resumed" not in log
    assert project.planned() == set()


def test_after_a_kill_the_same_configuration_goes_on(project: Project) -> None:
    kill_in_training(project, long_ppo(project))
    project.snakemake("--unlock")
    log = project.folder / "results/micro/logs/post_train/ppo.log"
    process = subprocess.Popen(
        [str(SNAKEMAKE), "--cores", "2", "--quiet", "all"],
        cwd=project.folder,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: "resumed at step" in log.read_text(), "the resumed run", process)
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        assert process.wait(60) != 0
    assert not any((project.folder / ".snakemake").glob("locks/*"))
