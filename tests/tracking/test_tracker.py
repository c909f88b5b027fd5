"""Trackers against a real SQLite store, with real child processes; the store is read by SQL, past MLflow."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from posttrain.tracking.destination import Destination
from posttrain.tracking.tracker import Tracker
from tests.tracking.project import query

Opener = Callable[..., Tracker]

POINTS = "SELECT key, step, value FROM metrics WHERE run_uuid = ? AND key NOT LIKE 'system/%' ORDER BY key, step"
STATUS = "SELECT status FROM runs WHERE run_uuid = ?"

STAGE = """
import logging, sys, time
from pathlib import Path
from posttrain.tracking.destination import Destination
from posttrain.tracking.tracker import open_tracker
root, key, steps, end = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
where = Destination("quick", "sqlite:///results/mlflow/mlflow.db", root, False)
state = root / "results/quick/.state" / key
tracker = open_tracker(where, state=state, stage="post_train", run=key, params={}, tags={}, log=logging.getLogger())
for step in range(steps):
    tracker.log(step, {"train/loss": step / 7, "train/kl": float(step)})
if end == "hang":
    print("ready", flush=True)
    time.sleep(60)
print(tracker.flush(60).tracking)
tracker.close("FINISHED")
"""


def start_stage(project: Path, key: str, steps: int, end: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STAGE, str(project), key, str(steps), end]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


def run_id(project: Path, key: str = "k") -> str:
    return str(json.loads((project / "results/quick/.state" / key / "mlflow.json").read_text())["run_id"])


def tags(project: Path, run: str) -> dict[str, str]:
    return dict(query(project, "SELECT key, value FROM tags WHERE run_uuid = ?", run))


def latest(project: Path, run: str) -> dict[str, float]:
    return dict(query(project, "SELECT key, value FROM latest_metrics WHERE run_uuid = ?", run))


def test_one_execution_from_start_to_finish(project: Path, tracker: Opener, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("tracking:\n  uri: http://ann:secret@host/\n")
    facts = {"method": "ppo", "seed": "5", "git_commit": "abc", "image_id": "host", "code_slice": "d1"}
    stage = tracker(params={"run": {"kl_coef": 0.1, "betas": [1, 2]}, "text": "y" * 7000}, tags=facts)
    for step in range(1, 4):
        stage.log(step, {"train/loss": 1 / step})
    stage.summary({"eval/reward": 0.25, "train/total": 9})
    stage.artifact(config)
    stage.artifact(Path(__file__), "code")
    sent = stage.flush()
    assert (sent.tracking, sent.points) == ("complete", 5)
    assert stage._sender
    stage._sender._process.terminate()  # as a cluster does with every process of a job that it stops
    stage.close("FINISHED")

    run = str(sent.run_id)
    expected = [("eval/reward", 0, 0.25), *(("train/loss", k, 1 / k) for k in (1, 2, 3)), ("train/total", 0, 9)]
    assert query(project, POINTS, run) == expected
    assert query(project, STATUS, run) == [("FINISHED",)]
    found = tags(project, run)
    assert facts.items() <= found.items() and found["stage"] == "post_train" and found["run"] == "ppo"
    params = dict(query(project, "SELECT key, value FROM params WHERE run_uuid = ?", run))
    assert params == {
        "run.kl_coef": "0.1",
        "run.betas": "[1, 2]",
        "text": "see the artifact long_params.json",
    }
    folder = project / "results/mlflow/artifacts/quick" / run / "artifacts"
    assert json.loads((folder / "long_params.json").read_text()) == {"text": "y" * 7000}
    assert (folder / "config.yaml").read_text() == "tracking:\n  uri: http://***@host/\n"
    assert (folder / "code" / Path(__file__).name).read_bytes() == Path(__file__).read_bytes()

    parent = found["mlflow.parentRunId"]
    assert latest(project, parent) == {"eval/reward": 0.25}
    assert tags(project, parent)["run"] == "ppo" and tags(project, parent)["headline_from"] == run
    assert query(project, STATUS, parent) == [("FINISHED",)]


def test_one_parent_per_run_and_the_shared_stages_under_sft(project: Path, tracker: Opener) -> None:
    prepare = tracker("prepare", None, "a")
    new = tracker("evaluate", "added", "b")
    compare = tracker("compare", None, "c")
    compare.summary({"eval/win_rate": 0.6}, run="dpo")
    for stage in (prepare, new, compare):
        assert stage.flush().complete
        stage.close("FINISHED")
    rows = query(
        project,
        "SELECT r.run_uuid, n.value FROM tags r JOIN tags n USING (run_uuid)"
        " WHERE r.key = 'role' AND r.value = 'parent' AND n.key = 'run'",
    )
    parents = {name: identity for identity, name in rows}
    assert len(rows) == 4 and parents.keys() == {"sft", "ppo", "dpo", "added"}
    for key, name in (("a", "sft"), ("b", "added"), ("c", "sft")):
        assert tags(project, run_id(project, key))["mlflow.parentRunId"] == parents[name]
    assert latest(project, parents["dpo"]) == {"eval/win_rate": 0.6}
    assert latest(project, run_id(project, "c")) == {"dpo/eval/win_rate": 0.6}
    assert {row[0] for row in query(project, "SELECT DISTINCT status FROM runs")} == {"SCHEDULED", "FINISHED"}


def test_tags_of_runs_stand_on_their_rows(project: Path, tracker: Opener) -> None:
    compare = tracker("compare", None, "c")
    compare.tag({"flags": "kl, repetition"}, run="ppo")
    compare.tag({"flags": "kl"}, run="dpo")
    compare.tag({"flags": "none"}, run="dpo")
    assert compare.flush().complete
    compare.close("FINISHED")
    rows = query(
        project,
        "SELECT n.value, f.value FROM tags n JOIN tags f USING (run_uuid) WHERE n.key = 'run' AND f.key = 'flags'",
    )
    assert sorted(rows) == [("dpo", "none"), ("ppo", "kl, repetition")]


def test_a_resumed_stage_goes_on_with_its_run_and_makes_no_double_points(project: Path, tracker: Opener) -> None:
    first = tracker()
    for step in range(1, 6):
        first.log(step, {"loss": step})
    assert first.flush().complete
    first.close("KILLED")
    run = run_id(project)
    assert query(project, STATUS, run) == [("KILLED",)]

    # The worst that a kill can do to the record of what was sent: all is sent again.
    record = project / "results/quick/.state/k/mlflow.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "offset": 0}))
    second = tracker()
    for step in range(4, 9):
        second.log(step, {"loss": step})
    sent = second.flush()
    second.close("FINISHED")
    assert (sent.run_id, sent.points) == (run, 8)
    assert query(project, POINTS, run) == [("loss", step, step) for step in range(1, 9)]
    assert query(project, STATUS, run) == [("FINISHED",)]


def test_points_that_the_store_lost_are_sent_again(project: Path, tracker: Opener) -> None:
    stage = tracker()
    for step in range(5):
        stage.log(step, {"loss": step})
    assert stage.flush().complete
    query_write(project, "DELETE FROM metrics WHERE step IN (1, 3)")
    sent = stage.flush()
    assert sent.complete and sent.points == 5
    assert len(query(project, POINTS, sent.run_id)) == 5


def query_write(project: Path, sql: str) -> None:
    import sqlite3

    with sqlite3.connect(project / "results/mlflow/mlflow.db", timeout=20) as connection:
        connection.execute(sql)
    connection.close()


def test_a_replaced_execution_is_superseded_and_its_headline_replaced(project: Path, tracker: Opener) -> None:
    for key, reward in (("old", 2.0), ("new", 1.0)):
        stage = tracker("evaluate", "ppo", key)
        stage.summary({"eval/reward": reward})
        assert stage.flush().complete
        if key == "new":
            assert "superseded" not in tags(project, run_id(project, "old"))  # its output is still the valid one
        stage.close("FINISHED")
    assert tags(project, run_id(project, "old"))["superseded"] == "true"
    assert "superseded" not in tags(project, run_id(project, "new"))
    parent = tags(project, run_id(project, "new"))["mlflow.parentRunId"]
    assert latest(project, parent) == {"eval/reward": 1.0}


def test_new_settings_make_a_new_row_and_former_settings_bring_theirs_back(project: Path, tracker: Opener) -> None:
    parents = {}
    for key, kl_coef in (("a", 0.1), ("b", 0.2), ("c", 0.1)):
        stage = tracker("post_train", "ppo", key, params={"run": {"kl_coef": kl_coef}})
        assert stage.flush().complete
        stage.close("FINISHED")
        evaluated = tracker("evaluate", "ppo", f"e{key}")
        evaluated.summary({"eval/reward": kl_coef})
        assert evaluated.flush().complete
        evaluated.close("FINISHED")
        parents[key] = tags(project, run_id(project, key))["mlflow.parentRunId"]
        assert tags(project, run_id(project, f"e{key}"))["mlflow.parentRunId"] == parents[key]
        assert tags(project, parents[key])["role"] == "parent"
    assert parents["a"] == parents["c"] != parents["b"]
    assert tags(project, parents["b"])["role"] == "former"
    for key in ("a", "b"):
        assert query(project, "SELECT key, value FROM params WHERE run_uuid = ?", parents[key]) == [
            ("run.kl_coef", {"a": "0.1", "b": "0.2"}[key])
        ]
        assert latest(project, parents[key]) == {"eval/reward": {"a": 0.1, "b": 0.2}[key]}
    place = "SELECT start_time, name FROM runs WHERE run_uuid = ?"
    assert query(project, place, parents["a"]) == query(project, place, parents["b"])
    colour = tags(project, parents["a"])["mlflow.runColor"]
    assert colour == tags(project, parents["b"])["mlflow.runColor"]


def test_a_rows_values_are_short(project: Path, tracker: Opener) -> None:
    stage = tracker("evaluate", "ppo")
    values = {"eval/reward": 0.901645111414837, "eval/kl": -2.15368345379829e-08, "eval/perplexity": 12345.678}
    stage.summary({**values, "eval/bad": float("nan")})
    assert stage.flush().complete
    stage.close("FINISHED")
    parent = tags(project, run_id(project))["mlflow.parentRunId"]
    found = latest(project, parent)
    assert {**found, "eval/bad": 0} == {"eval/reward": 0.9016, "eval/kl": 0, "eval/perplexity": 12350, "eval/bad": 0}
    assert values.items() <= latest(project, run_id(project)).items()


def test_the_reward_models_loss_is_no_headline_of_the_sft_model(project: Path, tracker: Opener) -> None:
    for stage, loss in (("sft", 1.0), ("reward_model", 0.5)):
        child = tracker(stage, None, stage)
        child.summary({"eval/loss": loss})
        assert child.flush().complete
        child.close("FINISHED")
    assert latest(project, run_id(project, "reward_model"))["eval/loss"] == 0.5
    parent = tags(project, run_id(project, "sft"))["mlflow.parentRunId"]
    assert latest(project, parent) == {"eval/loss": 1.0}


def test_a_failed_stage_is_failed(project: Path, tracker: Opener) -> None:
    stage = tracker()
    stage.log(1, {"loss": 1})
    stage.close("FAILED")
    run = run_id(project)
    assert query(project, STATUS, run) == [("FAILED",)]
    assert len(query(project, POINTS, run)) == 1


def test_kill_9_leaves_killed_and_loses_nothing(project: Path) -> None:
    stage = start_stage(project, "ppo", 50, "hang")
    assert stage.stdout and stage.stdout.readline() == "ready\n"
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    stage.stdout.close()
    deadline = time.monotonic() + 40
    status: list[Any] = []
    while status != [("KILLED",)] and time.monotonic() < deadline:
        time.sleep(0.2)
        record = project / "results/quick/.state/ppo/mlflow.json"
        status = query(project, STATUS, run_id(project, "ppo")) if record.exists() else []
    assert status == [("KILLED",)]
    assert len(query(project, POINTS, run_id(project, "ppo"))) == 100


def test_a_run_that_died_with_the_machine_is_killed_by_the_next_stage(project: Path, tracker: Opener) -> None:
    process = start_stage(project, "lost", 3, "hang")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    file = project / "results/quick/.state/lost/mlflow.json"
    while not file.exists() or not json.loads(file.read_text())["offset"]:
        time.sleep(0.1)
    [sender] = psutil.Process(process.pid).children()
    process.kill()
    sender.kill()
    process.wait()
    assert query(project, STATUS, run_id(project, "lost")) == [("RUNNING",)]
    alive = tracker("sft", None, "alive")
    assert alive.flush().complete
    other = tracker("evaluate", "dpo", "other")
    assert other.flush().complete
    assert query(project, STATUS, run_id(project, "lost")) == [("KILLED",)]
    assert query(project, STATUS, run_id(project, "alive")) == [("RUNNING",)]


def test_eight_processes_at_once_lose_nothing(project: Path) -> None:
    keys = [f"run{number}" for number in range(8)]
    stages = [start_stage(project, key, 300, "finish") for key in keys]
    outputs = [stage.communicate(timeout=120)[0].strip() for stage in stages]
    assert outputs == ["complete"] * 8
    expected = sorted([("train/kl", k, float(k)) for k in range(300)] + [("train/loss", k, k / 7) for k in range(300)])
    for key in keys:
        assert query(project, POINTS, run_id(project, key)) == expected
    assert len(query(project, "SELECT * FROM runs")) == 3 + 2 * 8


def test_an_unreachable_store_kills_nothing_and_is_said_once(
    project: Path, tracker: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    where = Destination("quick", "http://ann:secret@127.0.0.1:9", project, False)
    with caplog.at_level(logging.WARNING):
        stage = tracker(where=where)
        for step in range(3):
            stage.log(step, {"loss": step})
        sent = stage.flush(3)
        stage.close("FINISHED")
    assert sent.tracking == "incomplete" and sent.reason
    texts = [record.getMessage() for record in caplog.records]
    assert sum("does not answer" in text for text in texts) == 1
    assert sum("tracking is incomplete" in text for text in texts) == 1
    assert len(stage.path.read_text().splitlines()) == 3
    written = (project / "results/quick/.state/k/tracking.log").read_text()
    assert written and "secret" not in written + "".join(texts) + sent.reason


def test_a_sending_process_that_dies_is_no_fault_of_the_stage(tracker: Opener) -> None:
    stage = tracker()
    assert stage._sender
    stage._sender._process.kill()
    stage._sender._process.wait()
    stage.log(1, {"loss": 1})
    before = time.monotonic()
    assert not stage.flush().complete
    stage.close("FINISHED")
    assert time.monotonic() - before < 5


def test_a_tracker_without_a_sender_only_writes(tmp_path: Path) -> None:
    stage = Tracker(tmp_path)
    stage.log(1, {"loss": 1})
    stage.artifact(Path(__file__))
    sent = stage.flush()
    assert (sent.tracking, sent.run_id) == ("off", None)
    stage.close("FINISHED")
    assert len(stage.path.read_text().splitlines()) == 1


def test_system_metrics_come_from_mlflow(project: Path, tracker: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    stage = tracker(where=Destination("quick", "sqlite:///results/mlflow/mlflow.db", project, True))
    stage.log(1, {"loss": 1})
    assert stage.flush().complete
    time.sleep(1)
    stage.close("FINISHED")
    names = {row[0] for row in query(project, "SELECT DISTINCT key FROM metrics WHERE key LIKE 'system/%'")}
    assert "system/cpu_utilization_percentage" in names


def test_artifacts_survive_a_move_of_the_project(project: Path, tracker: Opener, tmp_path: Path) -> None:
    stage = tracker()
    stage.artifact(Path(__file__), "code")
    sent = stage.flush()
    stage.close("FINISHED")
    moved = Path(shutil.move(project, tmp_path / "elsewhere"))
    script = (
        "import sys; from mlflow import MlflowClient; c = MlflowClient('sqlite:///results/mlflow/mlflow.db');"
        "print([a.path for a in c.list_artifacts(sys.argv[1], 'code')]);"
        "print(open(c.download_artifacts(sys.argv[1], sys.argv[2])).read(), end='')"
    )
    name = f"code/{Path(__file__).name}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(sent.run_id), name], cwd=moved, capture_output=True, text=True, check=True
    )
    listed, _, text = done.stdout.partition("\n")
    assert listed == f"['{name}']" and text == Path(__file__).read_text()
    assert not list(moved.glob("mlruns"))


def test_the_stage_itself_never_imports_mlflow(project: Path) -> None:
    script = "import sys; import posttrain.tracking.tracker; print([m for m in sys.modules if m.startswith('mlflow')])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
