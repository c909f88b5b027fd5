"""What runs again after which change: the exact set of jobs in a dry run, the run itself, and an empty dry run."""

from __future__ import annotations

import hashlib
import json
import os
import time

import pytest

from tests.workflow.conftest import ONLINE
from tests.workflow.project import Project

pytestmark = pytest.mark.workflow

AFTER_DATA = {"prepare", "sft", "reward_model", "sample", "rank", "evaluate sft", "compare"} | {
    f"{job} {run}" for job in ("post_train", "evaluate") for run in ("ppo", "kto", "dpo")
}
NOTHING: set[str] = set()


def changed_run(name: str) -> set[str]:
    return {f"post_train {name}", f"evaluate {name}", "compare"}


def test_nothing_to_do_the_second_time_and_the_answer_is_quick(finished: Project) -> None:
    start = time.monotonic()
    assert finished.planned() == NOTHING
    assert time.monotonic() - start < 5


def test_a_comment_and_time_stamps_change_nothing(project: Project) -> None:
    config = project.folder / "config.yaml"
    config.write_text("# a comment\n" + config.read_text())
    assert (project.folder / "results/micro/sft/model/model.safetensors").exists()
    for path in project.folder.rglob("*"):
        if path.is_file() and not {".snakemake", ".git"} & set(path.relative_to(project.folder).parts):
            os.utime(path)
    assert project.planned() == NOTHING


def test_a_coefficient_reruns_its_run_alone(project: Project) -> None:
    config = project.config()
    config["runs"]["ppo"]["kl_coef"] = 0.07
    project.write_config(config)
    before = project.manifest("runs/ppo")
    said = project.snakemake("-n").stdout
    assert "before: 'run.kl_coef: 0.05' now: 'run.kl_coef: 0.07'" in said
    assert project.planned() == changed_run("ppo")
    project.run()
    assert project.manifest("runs/ppo")["key"] != before["key"]
    assert project.planned() == NOTHING


def test_the_source_of_a_loss_reruns_its_method_alone(project: Project) -> None:
    with (project.folder / "posttrain/algorithms/preference/kto.py").open("a") as file:
        file.write("\n# edited\n")
    assert project.planned() == changed_run("kto")
    project.run()
    assert project.planned() == NOTHING


def test_an_edited_row_stops_until_it_is_added(project: Project) -> None:
    rows = project.folder / "data/rows.tsv"
    content = rows.read_bytes()
    rows.unlink()  # it may be DVC's link
    rows.write_bytes(content.rstrip() + b" indeed\r\n")
    assert project.planned() == {"pull_data", *AFTER_DATA}
    stopped = project.snakemake("--cores", "2", check=False)
    assert stopped.returncode != 0
    assert "rows.tsv" in stopped.stdout and "dvc add" in stopped.stdout
    assert "Traceback" not in stopped.stdout
    project.dvc_add()
    assert project.planned() == {"pull_data", *AFTER_DATA}
    project.run()
    assert project.planned() == NOTHING


def test_a_lock_file_reruns_all_that_runs_in_its_environment(project: Project) -> None:
    with (project.folder / "envs/cpu.lock").open("a") as file:
        file.write("# edited\n")
    assert project.planned() == AFTER_DATA
    project.run()
    assert project.planned() == NOTHING


def test_a_new_run_is_the_only_one_to_train(project: Project) -> None:
    config = project.config()
    config["runs"]["grpo"] = {"method": "grpo", **ONLINE, "samples_per_prompt": 2}
    project.write_config(config)
    assert project.planned() == changed_run("grpo")
    project.run()
    assert project.planned() == NOTHING


LOSS = """
import torch

def soft(log_probs, old, advantages, mask, *, clip_low, sharpness):
    losses = -advantages * torch.where(mask, log_probs - old, 0.0).exp().clamp(min=1 - clip_low) * sharpness
    return torch.where(mask, losses, 0.0), {}
"""


def test_a_loss_of_ones_own_reruns_its_run_alone(project: Project) -> None:
    file = project.folder.parent / "losses" / "mine.py"  # outside the working directory
    file.parent.mkdir()
    file.write_text(LOSS)
    config = project.config()
    mine = {"policy_loss": "../losses/mine.py:soft", "options": {"sharpness": 2.0}}
    config["runs"]["mine"] = {"method": "grpo", **ONLINE, "samples_per_prompt": 2, **mine}
    project.write_config(config)
    assert project.planned() == changed_run("mine")
    project.run()
    held = project.manifest("runs/mine")["inputs"]["policy_loss"]
    assert held == hashlib.sha256(file.read_bytes()).hexdigest()
    os.utime(file)
    assert project.planned() == NOTHING
    file.write_text(LOSS.replace("* sharpness", "/ sharpness"))
    os.utime(file, (0, 0))
    assert project.planned() == changed_run("mine")


JUDGE = "def score(prompts, completions):\n    return [float(len(text)) for text in completions]\n"


def test_a_judge_and_its_file_rerun_the_evaluations_alone(project: Project) -> None:
    others = {"evaluate sft", "evaluate kto", "evaluate dpo", "compare"}
    file = project.folder.parent / "judges" / "mine.py"
    file.parent.mkdir()
    file.write_text(JUDGE)
    config = project.config()
    config["evaluation"]["judge"] = "../judges/mine.py:score"
    project.write_config(config)
    assert project.planned() == {"evaluate ppo", *others}
    folder = project.folder / "results/micro/eval/ppo"

    def judged() -> float:
        project.run(str((folder / "manifest.json").relative_to(project.folder)))
        manifest = project.manifest("eval/ppo")
        assert manifest["inputs"]["judge"] == hashlib.sha256(file.read_bytes()).hexdigest()
        keys.add(manifest["key"])
        return float(json.loads((folder / "metrics.json").read_text())["eval/judge"]["value"])

    keys = {project.manifest("eval/ppo")["key"]}
    assert judged() > 0.25
    os.utime(file)
    assert project.planned() == others
    file.write_text(JUDGE.replace("float(len(text))", "0.25"))
    os.utime(file, (0, 0))  # older than what was made of it
    assert project.planned() == {"evaluate ppo", *others}
    assert judged() == 0.25
    assert project.planned() == others and len(keys) == 3


def test_params_hold_no_paths_of_this_machine(finished: Project) -> None:
    folder = finished.folder / ".snakemake/metadata"
    records = [json.loads(path.read_text()) for path in folder.rglob("*") if path.is_file()]
    assert records
    for record in records:
        assert str(finished.folder) not in json.dumps(record["params"])
