"""Every stage, killed with SIGKILL in its middle and started again by the same command: the same bytes.

The commands are those that Snakemake would run, the bytes those of the finished micro experiment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.project import Project

pytestmark = pytest.mark.workflow

# The command line in a process that kills itself as soon as the first step or batch is kept.
KILLED = """
import os, signal, sys
from posttrain import cli
from posttrain.checkpoint import shards, store

def then_killed(function):
    def call(self, *arguments):
        result = function(self, *arguments)
        if "reference" in self.folder.name:  # what dpo and kto compute before their first step
            return result
        os.kill(os.getpid(), signal.SIGKILL)
    return call

store.Checkpoints.save = then_killed(store.Checkpoints.save)
shards.Shards._write = then_killed(shards.Shards._write)
sys.exit(cli.main(sys.argv[1:]))
"""
# A stage of one step is killed when its outputs are complete and not yet published.
KILLED_AT_END = """
import os, signal, sys
from posttrain import cli
from posttrain.provenance import manifest
manifest.write = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(cli.main(sys.argv[1:]))
"""
RESUMED = ["prepare", "sft", "reward_model", "sample", "rank", "post_train ppo", "post_train dpo", "post_train kto"]
RESUMED += ["evaluate ppo"]
AT_ONCE = ["fetch_model", "compare"]


@pytest.fixture(scope="module")
def killed(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy whose stages are killed one after the other; each leaves it as it was."""
    return finished.copy_to(tmp_path_factory.mktemp("killed") / "project")


@pytest.fixture(scope="module")
def commands(killed: Project) -> dict[str, list[str]]:
    """The words behind `python -m posttrain` of every stage, by its name and run."""
    shown = killed.snakemake("-n", "-p", "--forceall").stdout
    found = {}
    for line in re.findall(r"exec python -m posttrain (.*?) > \S+ 2>&1", shown):
        words = shlex.split(line)
        run = [words[words.index("--run") + 1]] if "--run" in words else []
        found[" ".join([words[0], *run])] = words
    return found


def digests(folder: Path) -> dict[str, str]:
    own = {"run.json", "metrics.jsonl", "report.html"}  # what may differ between equal runs
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in own]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def start(project: Project, code: list[str], words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project.folder)}
    command = [sys.executable, *code, *words]
    return subprocess.run(
        command,
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("stage", [*RESUMED, *AT_ONCE])
def test_killed_and_started_again(stage: str, killed: Project, commands: dict[str, list[str]]) -> None:
    words = commands[stage]
    output = killed.folder / words[words.index("--output") + 1]
    whole = digests(output)
    shutil.rmtree(output)
    code = KILLED if stage in RESUMED else KILLED_AT_END
    assert start(killed, ["-c", code], words).returncode == -signal.SIGKILL
    assert not output.exists()
    done = start(killed, ["-m", "posttrain"], words)
    assert done.returncode == 0, done.stderr
    assert digests(output) == whole and "manifest.json" in whole
    record = json.loads((output / "run.json").read_text())
    assert record["attempts"] == 2 and record["tracking"] in ("complete", "off")
    assert record["resumed_at"] == ([1] if stage in RESUMED else [])
    assert ("resumed at step 1" in done.stderr) == (stage in RESUMED)
