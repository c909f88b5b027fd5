"""A copy of the repository in which Snakemake runs for real, and what its dry run says it would do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]

# What a fresh clone has, and the data that `dvc pull` brings.
PARTS = ("Snakefile", "profiles", "workflow", "posttrain", "envs", "docker", "data", "data.dvc", ".dvc", ".dvcignore")
IGNORED = {"posttrain": ("__pycache__",), "docker": ("__pycache__",), ".dvc": ("cache", "tmp", "config.local")}

SNAKEMAKE, DVC = (Path(sys.executable).with_name(name) for name in ("snakemake", "dvc"))


@dataclass(frozen=True)
class Project:
    """A folder that is a complete, self-contained copy of the repository."""

    folder: Path

    def copy_to(self, folder: Path) -> Project:
        """A second one with the same results, modification times included, so that nothing in it has to run."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def call(self, command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; output and messages are read together."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTEST_"))}
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**kept, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )

    def snakemake(
        self, *arguments: str, check: bool = True, path: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake by its full path, as without an activated environment; `path` comes first in PATH."""
        search = os.pathsep.join([*map(str, path), os.environ["PATH"]])
        done = self.call([str(SNAKEMAKE), *arguments], PATH=search)
        assert not check or done.returncode == 0, done.stdout[-6000:]
        return done

    def run(self, *arguments: str) -> None:
        self.snakemake("--cores", "2", *arguments)

    def planned(self, *arguments: str) -> set[str]:
        """The jobs of a dry run, as the part of their message before the colon: `sft`, `post_train ppo`, …"""
        return jobs_of(self.snakemake("-n", *arguments).stdout)

    def dvc_add(self) -> None:
        subprocess.run([str(DVC), "add", "--quiet", "data"], cwd=self.folder, check=True, timeout=120)

    def manifest(self, stage: str) -> dict[str, Any]:
        return json.loads((self.folder / "results/micro" / stage / "manifest.json").read_text())

    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "config.yaml").read_text())

    def write_config(self, config: dict[str, Any]) -> None:
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def jobs_of(output: str) -> set[str]:
    """The jobs that a dry run lists, without `all`; fails where their number is not the one in its statistics."""
    if "Nothing to be done" in output:
        return set()
    jobs = re.findall(r"^(?:Local j|J)ob \d+: ([^:\n]+):", output, flags=re.MULTILINE)
    total = re.search(r"^total +(\d+)$", output, flags=re.MULTILINE)
    assert total and len(jobs) == int(total[1]) - 1, output[-6000:]
    assert len(set(jobs)) == len(jobs), jobs
    return set(jobs)


def new_project(folder: Path, config: dict[str, Any]) -> Project:
    """Copy what git and DVC track into `folder` and write the config; nothing of the repository is referred to."""
    folder.mkdir(parents=True)
    for name in PARTS:
        source = REPOSITORY / name
        if source.is_symlink():
            (folder / name).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(*IGNORED.get(name, ())))
        else:
            shutil.copy2(source, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # DVC wants one
    project = Project(folder)
    project.write_config(config)
    return project
