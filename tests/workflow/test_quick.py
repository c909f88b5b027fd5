"""configs/quick.yaml from nothing to the report, on the host and in containers: what a new user runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.project import REPOSITORY, Project, new_project

pytestmark = pytest.mark.workflow

QUICK = yaml.safe_load((REPOSITORY / "configs/quick.yaml").read_text())
HOST_STAGES = {"fetch_model"}


def records(project: Project) -> dict[str, dict[str, Any]]:
    """run.json of every stage, by its folder."""
    results = project.folder / "results" / QUICK["experiment"]
    return {str(path.parent.relative_to(results)): json.loads(path.read_text()) for path in results.rglob("run.json")}


def stages() -> set[str]:
    once = {"model", "data", "sft", "reward_model", "samples", "preferences", "eval/sft", "compare"}
    return once | {f"{folder}/{run}" for folder in ("runs", "eval") for run in QUICK["runs"]}


def test_on_the_host(tmp_path: Path) -> None:
    project = new_project(tmp_path / "project", QUICK)
    shutil.rmtree(project.folder / "data")  # a fresh clone has none
    project.run()
    found = records(project)
    assert found.keys() == stages()
    assert {record["image"] for record in found.values()} == {"host"}
    assert project.planned() == set()
    report = tmp_path / "report.html"
    project.snakemake("--report", str(report))
    text = report.read_text()
    assert all(name in text for name in ("summary.csv", "win_rate.png", "report.html"))


@pytest.mark.containers
@pytest.mark.usefixtures("runtime")
def test_in_containers(tmp_path: Path) -> None:
    """Every stage tells the image that it read inside its container, and nothing of this machine's Python is there."""
    project = new_project(tmp_path / "project", QUICK)
    project.run("--use-singularity")
    from posttrain.provenance.images import image_id

    found = records(project)
    assert found.keys() == stages()
    inside = {stage: record for stage, record in found.items() if record["image"] != "host"}
    assert found.keys() - inside.keys() == {"model"}
    for stage, record in inside.items():
        assert record["image"] == image_id("cpu", project.folder), stage
        assert record["python"].startswith("/opt/venv/"), stage
        foreign = [
            path
            for path in record["sys_path"]
            if "packages" in path and not path.startswith(("/opt/venv/", "/usr/lib"))
        ]
        assert not foreign, stage
    assert project.planned("--use-singularity") == set()
    everywhere = {"prepare", "sft", "reward_model", "sample", "rank", "evaluate sft", "compare"}
    everywhere |= {f"{job} {run}" for job in ("post_train", "evaluate") for run in QUICK["runs"]}
    assert project.planned() == everywhere
    assert re.search(r"before: .*'image: cpu \w+'.* now: .*'image: host \w+'", project.snakemake("-n").stdout)
    with (project.folder / "envs/cpu.lock").open("a") as file:
        file.write("# edited\n")
    assert project.planned("--use-singularity") == {"image", *everywhere}
