"""One finished micro experiment for all rerun tests: each works on its own copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.project import REPOSITORY, Project, new_project

ONLINE = {"prompts_per_step": 2, "minibatch": 2, "max_new_tokens": 4, "steps": 2, "checkpoint_every": 1}
OFFLINE = {"minibatch": 2, "steps": 2, "checkpoint_every": 1}

MICRO = {
    "experiment": "micro",
    "data": {
        "sources": [{"file": "rows.tsv", "form": "ratings", "format": "tsv", "header": ["id", "rating", "text"]}],
        "split": {"validation": 0.1, "test": 0.2},
        "vocabulary": 300,
        "max_prompt_tokens": 32,
        "max_completion_tokens": 32,
        "too_long_prompt": "truncate_left",
    },
    "model": {"base": "built-in: tiny"},
    "sft": OFFLINE,
    "reward_model": OFFLINE,
    "sample": {"prompts": 8, "samples_per_prompt": 2, "max_new_tokens": 4},
    "runs": {
        "ppo": {"method": "ppo", **ONLINE},
        "kto": {"method": "kto", **OFFLINE},
        "dpo": {"method": "dpo", **OFFLINE},
    },
    "evaluation": {"prompts": 4, "max_new_tokens": 4, "bootstrap": 50},
    "tracking": {"system_metrics": False},
    "resources": {"mem_mb": 500},
}

ROWS = 120


def shrink_data(project: Project) -> None:
    """Replace the data by a few rows of it, tracked by DVC in the copy."""
    source = REPOSITORY / "data" / MOVIES
    lines = source.read_bytes().splitlines(keepends=True)[:ROWS]
    folder = project.folder / "data"
    for path in folder.iterdir():
        path.unlink()
    (folder / "rows.tsv").write_bytes(b"".join(lines))
    project.dvc_add()


MOVIES = "movieReviewSnippets_GroundTruth.txt"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The micro experiment, run to its end on the host. Never write to it: copy it."""
    project = new_project(tmp_path_factory.mktemp("workflow") / "finished", MICRO)
    shrink_data(project)
    project.run()
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished experiment for one test to change."""
    return finished.copy_to(tmp_path / "project")
