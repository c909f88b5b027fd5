"""The runner: verified inputs, resume under the stage key, manifest and run.json, atomic publishing, cleaning up."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import parse_config
from posttrain.errors import Interrupted, UserError
from posttrain.platforms.locks import held
from posttrain.provenance import manifest
from posttrain.stages import runner
from posttrain.stages.arguments import MAKERS
from posttrain.stages.runner import Job, Stage, run_stage

CONFIG = """
experiment: x
data: {sources: [{file: a.txt, form: ratings}]}
model: {base: "built-in: tiny"}
sft: {steps: 6}
runs: {ppo: {method: ppo, kl_coef: 0.1}}
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No MLflow and no torch here; paths as the workflow gives them."""
    monkeypatch.setattr(runner, "UNTRACKED", {"fetch_model", "sft", "post_train"})
    monkeypatch.setattr(runner, "_open_device", lambda job, config: "cpu")
    monkeypatch.chdir(tmp_path)


def make_input(name: str, tokenizer: str | None = None, data: str | None = None) -> Path:
    folder = Path("results/x") / name
    folder.mkdir(parents=True)
    (folder / "file.bin").write_text(name)
    facts = {"stage": MAKERS[name], "run": None, "tokenizer": tokenizer, "data": data}
    manifest.write(folder, {**facts, "outputs": manifest.outputs(folder)})
    return folder


def job(change: str = "", new: str = "", **inputs: Path) -> Job:
    config = parse_config(yaml.safe_load(CONFIG.replace(change, new)), "test")
    return Job("sft", config, inputs, Path("results/x/sft"))


def body(stage: Stage) -> None:
    (stage.out / "result.txt").write_text("made")
    stage.tracker.log(1, {"train/loss": 0.5})


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def state() -> Path:
    (found,) = [path for path in Path("results/x/.state").iterdir() if (path / "stage.json").exists()]
    return found


def test_what_a_finished_stage_leaves() -> None:
    run_stage(job(data=make_input("data", "t1", "d1")), body, strict=False)
    out = Path("results/x/sft")
    assert {path.name for path in out.iterdir()} == {"result.txt", "metrics.jsonl", "run.json", "manifest.json"}
    found = content(out)
    assert set(found["outputs"]) == {"result.txt"}
    assert found["tokenizer"] == "t1" and found["data"] == "d1" and found["image"] == "host"
    assert found["config"]["sft"]["steps"] == 6 and "data" not in found["config"]
    run = json.loads((out / "run.json").read_text())
    assert run["attempts"] == 1 and run["resumed_at"] == [] and run["image"] == "host" and run["sys_path"]
    assert '"train/loss": 0.5' in (out / "metrics.jsonl").read_text()
    left = {path.name for path in Path("results/x/.state").iterdir()}
    assert left <= {"sft.lock", "digests.json"}
    assert not [path for path in Path("results/x").iterdir() if path.name.startswith(".sft")]


def test_equal_runs_have_equal_manifests_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        run_stage(job(data=make_input("data")), body, strict=False)
        found.append(Path("results/x/sft/manifest.json").read_bytes())
    assert found[0] == found[1]
    assert str(tmp_path).encode() not in found[0] and os.uname().nodename.encode() not in found[0]


def die(stage: Stage) -> None:
    (stage.state / "checkpoint").write_text("3")
    stage.tracker.log(3, {"a": 1.0})
    raise RuntimeError("died")


def resume(stage: Stage) -> None:
    step = int((stage.state / "checkpoint").read_text())
    stage.log.info("resumed at step %d", step)
    stage.tracker.log(3, {"a": 2.0})
    stage.tracker.log(4, {"a": 4.0})


def test_a_second_attempt_continues_and_says_so() -> None:
    inputs = {"data": make_input("data")}
    with pytest.raises(RuntimeError, match="died"):
        run_stage(job(**inputs), die, strict=False)
    assert not Path("results/x/sft").exists()

    def resume_and_die(stage: Stage) -> None:
        resume(stage)
        raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        run_stage(job(**inputs), resume_and_die, strict=False)
    run_stage(job(**inputs), resume, strict=False)
    run = json.loads(Path("results/x/sft/run.json").read_text())
    assert run["attempts"] == 3 and run["resumed_at"] == [3, 3]
    lines = [json.loads(line) for line in Path("results/x/sft/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["metrics"]) for line in lines] == [(3, {"a": 1.0}), (4, {"a": 4.0})]


@pytest.mark.parametrize("what", ["config", "input"])
def test_another_key_never_continues_a_foreign_checkpoint(what: str) -> None:
    data = make_input("data")
    with pytest.raises(RuntimeError):
        run_stage(job(data=data), die, strict=False)
    if what == "input":
        (data / "file.bin").write_text("other")
        manifest.write(data, {**content(data), "outputs": manifest.outputs(data)})
    second = job("steps: 6", "steps: 7", data=data) if what == "config" else job(data=data)

    def fresh(stage: Stage) -> None:
        assert not (stage.state / "checkpoint").exists()

    run_stage(second, fresh, strict=False)
    assert not [path for path in Path("results/x/.state").iterdir() if path.is_dir()], "the old state is pruned"


def test_a_line_of_a_later_stage_is_not_the_history_of_this_one() -> None:
    run_stage(job(), body, strict=False)
    logging.getLogger("posttrain.sft").info("resumed at step %d", 3)  # the state folder of the first is gone
    assert not list(Path("results/x/.state").glob("*/stage.json"))


def test_state_of_other_stages_and_runs_stays() -> None:
    sft = make_input("sft")
    config = parse_config(yaml.safe_load(CONFIG.replace("runs: {", "runs: {other: {method: ppo}, ")), "test")
    other = Job("post_train", config, {"sft": sft}, Path("results/x/runs/other"), "other")
    with pytest.raises(RuntimeError):
        run_stage(other, die, strict=False)
    kept = state()
    run_stage(Job("post_train", config, {"sft": sft}, Path("results/x/runs/ppo"), "ppo"), body, strict=False)
    assert (kept / "checkpoint").exists()


def fault(*arguments: Any) -> str:
    def never(stage: Stage) -> None:
        raise AssertionError("the body ran")

    with pytest.raises(UserError) as caught:
        run_stage(*arguments, never, strict=False)
    return str(caught.value)


def test_an_altered_input_is_named() -> None:
    data = make_input("data")
    (data / "file.bin").write_text("altered")
    assert "results/x/data/file.bin does not match its manifest" in fault(job(data=data))


def test_tokenizers_must_agree() -> None:
    found = fault(job(data=make_input("data", "aaa"), model=make_input("model", "bbb")))
    assert "different tokenizers" in found and "results/x/data (aaa)" in found and "results/x/model (bbb)" in found


def test_an_input_that_was_not_given() -> None:
    with pytest.raises(UserError, match="give --input model=FOLDER"):
        run_stage(job(), lambda stage: print(stage.inputs["model"]), strict=False)


def test_two_processes_on_one_output() -> None:
    with held(Path("results/x/.state/sft.lock")):
        assert "another process" in fault(job())


def test_an_interrupted_stage_keeps_its_state_and_publishes_nothing() -> None:
    def stopping(stage: Stage) -> None:
        assert stage.interrupted()
        (stage.state / "checkpoint").write_text("1")
        raise Interrupted

    with pytest.raises(Interrupted):
        run_stage(job(), stopping, lambda: True, strict=False)
    assert (state() / "checkpoint").exists() and not Path("results/x/sft").exists()


def test_leftovers_of_a_kill_are_no_output() -> None:
    work = Path("results/x/.sft.work")
    work.mkdir(parents=True)
    (work / "rest.bin").touch()
    run_stage(job(), body, strict=False)
    assert set(content(Path("results/x/sft"))["outputs"]) == {"result.txt"}


def test_the_folder_that_snakemake_makes_is_replaced() -> None:
    out = Path("results/x/sft")
    out.mkdir(parents=True)
    run_stage(job(), body, strict=False)  # made and published once
    (out / "manifest.json").unlink()  # what Snakemake deletes of it
    (out / "old.bin").touch()
    run_stage(job(), body, strict=False)
    assert not (out / "old.bin").exists() and (out / "manifest.json").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (RuntimeError, "FAILED"), (Interrupted, "KILLED"), (KeyboardInterrupt, "KILLED")],
)
def test_the_tracker_is_always_closed(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None, status: str
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(runner.Tracker, "close", lambda self, status: closed.append(status))

    def ending(stage: Stage) -> None:
        if error:
            raise error

    def go() -> None:
        run_stage(job(), ending, strict=False)

    if error:
        with pytest.raises(error):
            go()
    else:
        go()
    assert closed == [status]


def test_a_module_outside_the_slice_fails_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.code_slice, "strangers", lambda found: ["posttrain.secret"])
    with pytest.raises(RuntimeError, match=r"posttrain.secret: imported by sft, but outside its code slice"):
        run_stage(job(), body)
    assert not Path("results/x/sft").exists()


def test_results_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    Path("results").symlink_to(tmp_path / "disk")
    run_stage(job(), body, strict=False)
    assert (tmp_path / "disk" / "x" / "sft" / "manifest.json").exists()


def test_a_full_disk_keeps_the_old_output(monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage(job(), body, strict=False)
    before = Path("results/x/sft/manifest.json").read_bytes()

    def full(stage: Stage) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        run_stage(job(), full, strict=False)
    assert Path("results/x/sft/manifest.json").read_bytes() == before
