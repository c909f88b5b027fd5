"""What Snakemake asks of Apptainer, recorded by a stand-in for it: options, folders and variables."""

from __future__ import annotations

import os
import shutil
import site
import sys
from pathlib import Path

import pytest

from tests.workflow.project import Project

pytestmark = pytest.mark.workflow

STAND_IN = """#!/bin/sh
if [ "$1" = --version ]; then echo "apptainer version 1.4.5"; exit 0; fi
printf '%s\\n' "$@" > "{folder}/arguments"
env > "{folder}/environment"
exit 1
"""


def fake_programs(folder: Path) -> Path:
    """A folder for PATH: this interpreter by a link, beside which no real Apptainer stands, and one that records."""
    folder.mkdir()
    (folder / "python").symlink_to(Path(sys.executable).resolve())
    for name, text in (("apptainer", STAND_IN.format(folder=folder)), ("nvidia-smi", "#!/bin/sh\necho 'GPU 0: one'\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def asked(project: Project, programs: Path, *arguments: str, **variables: str) -> list[str]:
    """Start `prepare` in a container that does not exist; returns what Apptainer was called with."""
    images = project.folder / "images"
    images.mkdir(exist_ok=True)
    variables = {"POSTTRAIN_CACHE": str(project.folder), **variables}
    command = [str(programs / "python"), "-m", "snakemake", "--cores", "1", "--use-singularity", "--until", "prepare"]
    search = os.pathsep.join([str(programs), "/usr/bin", "/bin"])
    paths = os.pathsep.join(site.getsitepackages())
    from posttrain.provenance.images import image_id

    for name in ("cpu", "cuda121"):
        (images / f"{name}-{image_id(name, project.folder)[:12]}.sif").touch()
    done = project.call([*command, *arguments], PATH=search, PYTHONPATH=paths, **variables)
    assert done.returncode == 1 and (programs / "arguments").exists(), done.stdout[-4000:]
    return (programs / "arguments").read_text().splitlines()


def test_nothing_of_the_host_gets_in_but_what_is_named(project: Project, tmp_path: Path) -> None:
    programs = fake_programs(tmp_path / "bin")
    cache = tmp_path / "dvc-cache"
    cache.mkdir()
    rows = project.folder / "data/rows.tsv"
    shutil.move(rows, cache / "rows")
    rows.symlink_to(cache / "rows")
    link = tmp_path / "link"
    link.symlink_to(project.folder)
    words = asked(
        project,
        programs,
        "--singularity-args=--no-mount=hostfs",
        MLFLOW_TRACKING_PASSWORD="secret",
        LD_PRELOAD_FOR_NOBODY="1",
        PWD=str(link),  # as a shell says that came here by a link
    )
    assert words[0] == "exec" and words.count("--cleanenv") == 1
    assert "--no-mount=hostfs" in words  # the user's own
    assert "--nv" not in words
    assert words[words.index("--home") + 1] == str(project.folder)
    binds = [words[place + 1] for place, word in enumerate(words) if word == "--bind"]
    assert [bind for bind in binds if "snakemake/source-cache" not in bind] == [f"{cache}:{cache}:ro"]
    assert not any("secret" in word for word in words)

    lines = (programs / "environment").read_text().splitlines()
    assert f"PWD={project.folder}" in lines
    inside = dict(
        line.removeprefix("APPTAINERENV_").split("=", 1) for line in lines if line.startswith("APPTAINERENV_")
    )
    assert inside.pop("PYTHONPATH") == str(project.folder)
    ours = {"POSTTRAIN_DIE_WITH_PARENT", "PYTHONNOUSERSITE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}
    assert inside.keys() == {"MLFLOW_TRACKING_PASSWORD", *ours}


def test_a_judge_outside_is_brought_in_by_itself(project: Project, tmp_path: Path) -> None:
    programs = fake_programs(tmp_path / "bin")
    for folder in (tmp_path / "judges", project.folder / "judges"):
        folder.mkdir()
        (folder / "mine.py").write_text("def score(prompts, completions): ...")
    bound = f"{tmp_path}/judges/mine.py:{tmp_path}/judges/mine.py:ro"
    words = asked(project, programs, "--config", f"evaluation={{judge: '{tmp_path}/judges/mine.py:score'}}")
    assert bound in words
    words = asked(project, programs, "--config", "evaluation={judge: 'judges/mine.py:score'}")
    assert not any("mine.py" in word for word in words), "what is below the working directory is there already"


def test_cuda_brings_the_driver_in(project: Project, tmp_path: Path) -> None:
    programs = fake_programs(tmp_path / "bin")
    words = asked(project, programs, "--config", "resources={device: cuda, image: cuda121}")
    assert words.count("--nv") == 1
    assert any(word.endswith(".sif") and "cuda121-" in word for word in words)
