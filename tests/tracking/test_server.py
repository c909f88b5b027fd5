"""A real `mlflow server` on this machine: as the destination of everything, and as what `posttrain ui` opens."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.tracking import ui, views
from posttrain.tracking.destination import Destination
from posttrain.tracking.store import init_store
from posttrain.tracking.tracker import Tracker
from tests.tracking.conftest import log
from tests.tracking.project import config
from tests.tracking.test_notes import experiment_tags

REPOSITORY = str(Path(__file__).parents[2])


def fetch(url: str, seconds: float = 240) -> str:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with its own database and artifacts behind its proxy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///runs.db", "--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        fetch(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def test_everything_goes_to_a_server(
    server: str, tmp_path: Path, tracker: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    root = tmp_path / "empty"
    root.mkdir()
    where = init_store(config(system_metrics=False), root, log)
    assert where == Destination("quick", server, root, False)
    stage = tracker(where=where)
    for step in range(20):
        stage.log(step, {"train/loss": step})
    stage.summary({"eval/reward": 0.5})
    stage.artifact(Path(__file__), "code")
    sent = stage.flush()
    assert sent.complete and sent.points == 21
    stage.close("FINISHED")

    api = f"{server}/api/2.0/mlflow"
    run = json.loads(fetch(f"{api}/runs/get?run_id={sent.run_id}"))["run"]
    assert run["info"]["status"] == "FINISHED" and run["info"]["artifact_uri"].startswith("mlflow-artifacts:")
    history = json.loads(fetch(f"{api}/metrics/get-history?run_id={sent.run_id}&metric_key=train%2Floss"))["metrics"]
    assert sorted((point["step"], point["value"]) for point in history) == [(step, step) for step in range(20)]
    path = urllib.parse.quote(f"code/{Path(__file__).name}")
    assert fetch(f"{server}/get-artifact?run_uuid={sent.run_id}&path={path}") == Path(__file__).read_text()
    assert not list(root.glob("**/mlflow*")) and not list(root.glob("**/mlruns"))


def test_the_ui_opens_the_projects_store(project: Path, tracker: Callable[..., Tracker]) -> None:
    stage = tracker()
    stage.artifact(Path(__file__))
    sent = stage.flush()
    stage.close("FINISHED")
    with sqlite3.connect(project / "results/mlflow/mlflow.db", timeout=20) as connection:
        connection.execute("DELETE FROM experiment_tags")
    connection.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        script = "import sys; from posttrain.tracking.ui import main; sys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", script, "--port", str(taken.getsockname()[1])],
            cwd=project,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout
        try:
            said = next(line for line in process.stdout if line.startswith("MLflow is at"))
            found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
            assert found and int(found[1]) != taken.getsockname()[1]
            assert "<title>MLflow" in fetch(found[0])
            shown = next(process.stdout).split()
            assert shown == ["runs", "of", "quick:", views.link(found[0], "1")]
            assert experiment_tags(project).keys() >= views.view_tags(0).keys()  # deleted above: a store from before
            name = Path(__file__).name
            assert fetch(f"{found[0]}/get-artifact?run_uuid={sent.run_id}&path={name}") == Path(__file__).read_text()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            process.stdout.close()
    with pytest.raises(OSError, match=r"refused"):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=1)


def test_the_ui_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no run has been recorded"):
        ui.main([])


def test_the_ui_of_a_server_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.main(["--uri", "http://ann:secret@host:1"]) == 0
    assert capsys.readouterr().out == "The runs are on a server: open http://***@host:1\n"
