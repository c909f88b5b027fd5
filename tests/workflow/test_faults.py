"""Faults that the user can mend end Snakemake with one message, exit status 2 and no traceback."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import site
import stat
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.workflow.conftest import MICRO
from tests.workflow.project import REPOSITORY, SNAKEMAKE, Project, new_project

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy in which nothing has run; tests give it the config they need."""
    return new_project(tmp_path_factory.mktemp("faults") / "fresh", MICRO)


def message_of(project: Project, *arguments: str, **options: Any) -> str:
    """What Snakemake says when it stops at once, checked to be short, ours and without a traceback."""
    done = project.snakemake("-n", *arguments, check=False, **options)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("Using workflow", "Config file"))]
    assert len(lines) <= 5, done.stdout
    return "\n".join(lines)


def with_change(*keys: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(MICRO)
    section = config
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    return config


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("runs", "ppo", "kl_coeff"), 0.1, ["runs.ppo.kl_coeff", "runs.ppo.kl_coef"]),
        (("sft", "step"), 3, ["sft.step", "sft.steps"]),
        (("runs", "ppo", "method"), "pqo", ["runs.ppo.method", "ppo"]),
        (("resources", "image"), "gpu", ["resources.image", "cuda121"]),
        (("runs", "ppo", "policy_loss"), "cliped", ["runs.ppo", "policy_loss is 'cliped'", "'clipped'"]),
        (("experiment",), "a b", ["experiment"]),
    ],
)
def test_a_wrong_key_or_value_is_named(fresh: Project, keys: tuple[str, ...], value: Any, said: list[str]) -> None:
    fresh.write_config(with_change(*keys, value=value))
    message = message_of(fresh)
    assert all(word in message for word in ["config.yaml", *said]), message


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (None, {}, "there is no file mine.py"),
        ("def other(): pass", {}, "mine.py has no function loss; define it there"),
        ("def loss(", {}, "mine.py is no Python"),
        ("def loss(*t, tau): pass", {}, "wants tau; give it as runs.ppo.options.tau"),
        ("def loss(*t, tau=1): pass", {"tua": 2}, "runs.ppo.options.tua is an argument of none"),
        ("import nothing_like_it\ndef loss(*t, clip_low): pass", {}, ""),
    ],
)
def test_a_loss_of_ones_own_is_read_before_anything_runs(
    fresh: Project, source: str | None, options: dict[str, Any], said: str
) -> None:
    """Read and not run: what it imports is there where it runs."""
    (fresh.folder / "mine.py").unlink(missing_ok=True)
    if source is not None:
        (fresh.folder / "mine.py").write_text(source)
    config = with_change("runs", "ppo", "policy_loss", value="mine.py:loss")
    config["runs"]["ppo"]["options"] = options
    fresh.write_config(config)
    if said:
        message = message_of(fresh)
        assert "runs.ppo" in message and said in message
    else:
        assert fresh.snakemake("-n", check=False).returncode == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "config.yaml is empty"),
        (b"- a list\n", "config.yaml"),
        (b"experiment: [\n", "config.yaml, line"),
        (b"experiment: caf\xe9\n", "config.yaml, line 1: not UTF-8"),
        (b"experiment: a\nexperiment: b\n", "twice"),
    ],
)
def test_a_file_that_is_no_experiment_is_named(fresh: Project, content: bytes, said: str) -> None:
    (fresh.folder / "config.yaml").write_bytes(content)
    assert said in message_of(fresh)


def test_a_judge_that_is_not_there_is_named(fresh: Project) -> None:
    fresh.write_config(with_change("evaluation", "judge", value="judges/mine.py:score"))
    assert "evaluation.judge: judges/mine.py:score: there is no file judges/mine.py" in message_of(fresh)


def test_an_override_is_named(fresh: Project) -> None:
    fresh.write_config(MICRO)
    message = message_of(fresh, "--config", "sft={stps: 3}")
    assert "config.yaml with --config: sft.stps" in message and "sft.steps" in message


def test_results_that_cannot_be_written(fresh: Project) -> None:
    fresh.write_config({**MICRO, "experiment": "blocked"})
    results = fresh.folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.write_text("a file where the folder should be")
    try:
        assert "results" in message_of(fresh)
    finally:
        results.unlink()


@pytest.mark.parametrize("exists", [False, True])
def test_a_working_directory_that_cannot_be_written(fresh: Project, tmp_path: Path, exists: bool) -> None:
    """As root everything is writable: the system's answer is replaced, by a module that Python loads at its start."""
    fresh.write_config(MICRO)
    records = fresh.folder / ".snakemake"
    shutil.rmtree(records, ignore_errors=True)
    if exists:
        records.mkdir()
    (tmp_path / "sitecustomize.py").write_text("import os\nos.access = lambda *given, **more: False\n")
    done = fresh.call([str(SNAKEMAKE), "-n"], PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stdout, done.stdout
    place = records if exists else fresh.folder
    assert f"{place}: cannot be written by this user" in done.stdout


def test_cuda_without_a_gpu(fresh: Project, tmp_path: Path) -> None:
    fresh.write_config({**MICRO, "resources": {"device": "cuda", "gpus": 2}})
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: a GPU (UUID: GPU-0)'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert fresh.snakemake("-n", path=[tmp_path]).returncode == 0, "a plan needs no GPU"
    done = fresh.snakemake("--cores", "2", check=False, path=[tmp_path])
    assert done.returncode == 2 and "Traceback" not in done.stdout, done.stdout
    assert "resources.gpus: 2 wanted, 1 found" in done.stdout
    fresh.write_config({**MICRO, "resources": {"device": "cuda"}})
    said = fresh.snakemake("--cores", "2", "results/micro/data_verified.json", path=[tmp_path]).stdout
    assert re.search(r"Provided resources: .*gpu.*\b1\b", said), said


def test_no_container_runtime(fresh: Project, tmp_path: Path) -> None:
    """The interpreter is reached by a link, in whose folder no runtime has been linked."""
    fresh.write_config(MICRO)
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).resolve())
    done = fresh.call(
        [str(python), "-m", "snakemake", "-n", "--use-singularity"],
        PATH=str(tmp_path),
        PYTHONPATH=":".join(site.getsitepackages()),
    )
    assert done.returncode == 2, done.stdout
    assert "make apptainer" in done.stdout and "Traceback" not in done.stdout


def test_an_image_cache_with_a_space_in_its_path(fresh: Project, tmp_path: Path) -> None:
    fresh.write_config(MICRO)
    runtime = tmp_path / "apptainer"
    runtime.write_text("#!/bin/sh\necho 'apptainer version 1.4.5'\n")
    runtime.chmod(0o755)
    search = f"{tmp_path}:{os.environ['PATH']}"
    command = [str(SNAKEMAKE), "-n", "--use-singularity"]
    done = fresh.call(command, PATH=search, POSTTRAIN_CACHE=str(tmp_path / "a cache"))
    assert done.returncode == 2 and "POSTTRAIN_CACHE" in done.stdout and "Traceback" not in done.stdout, done.stdout


def test_a_config_file_takes_the_place_of_config_yaml(fresh: Project) -> None:
    fresh.write_config({**MICRO, "seed": 7})
    other = {**MICRO, "experiment": "other", "runs": {"only": {"method": "dpo", "preferences": "data"}}}
    shutil.copy(fresh.folder / "config.yaml", fresh.folder / "saved.yaml")
    fresh.write_config(other)
    (fresh.folder / "config.yaml").rename(fresh.folder / "other.yaml")
    (fresh.folder / "saved.yaml").rename(fresh.folder / "config.yaml")
    jobs = fresh.planned("--configfile", "other.yaml")
    assert {job for job in jobs if " " in job} == {"post_train only", "evaluate only", "evaluate sft"}
    assert "rank" not in jobs and "sample" not in jobs  # nobody needs ranked preferences
    assert "results/other/.state/config" in fresh.snakemake("-n", "-p", "--configfile", "other.yaml").stdout
    [resolved] = (fresh.folder / "results/other/.state/config").iterdir()
    assert "seed: 0\n" in resolved.read_text()
    fresh.snakemake("-n", "--configfile", "other.yaml", "--config", "seed=3")
    assert len(list((fresh.folder / "results/other/.state/config").iterdir())) == 2


@pytest.mark.parametrize(
    "path", ["config.yaml", *sorted(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("configs/*.yaml"))]
)
def test_every_config_of_the_repository_is_valid(fresh: Project, path: str) -> None:
    schema = json.loads((REPOSITORY / "workflow/schemas/config.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((REPOSITORY / path).read_text()), schema)  # what editors check while one types
    shutil.rmtree(fresh.folder / "configs", ignore_errors=True)
    shutil.copytree(REPOSITORY / "configs", fresh.folder / "configs")
    shutil.copy(REPOSITORY / "config.yaml", fresh.folder / "config.yaml")
    assert "compare" in fresh.planned("--configfile", path)
