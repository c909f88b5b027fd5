"""`posttrain ui`: MLflow's own page for the project's store, on this machine only."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path
from types import FrameType

from posttrain.errors import UserError
from posttrain.tracking.destination import DEFAULT_URI, Destination, mask
from posttrain.tracking.notes import describe
from posttrain.tracking.store import quiet_logging
from posttrain.tracking.views import link

HOST = "127.0.0.1"
_SHOWN = 10  # experiments whose addresses are printed


def main(argv: list[str]) -> int:
    """Serve the store until Ctrl-C. Raises UserError where no run has been recorded yet."""
    parser = argparse.ArgumentParser(prog="posttrain ui", description="Open the runs in MLflow's own page.")
    parser.add_argument("--port", type=int, default=5000, help="a free one is taken where it is in use (0: any)")
    parser.add_argument("--open", action="store_true", help="show the newest experiment in the browser")
    parser.add_argument("--uri", help="the store; by default MLFLOW_TRACKING_URI, else SQLite under results/")
    options = parser.parse_args(argv)
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    if uri.startswith(("http://", "https://")):
        print(f"The runs are on a server: open {mask(uri)}", flush=True)
        return 0
    where = Destination("", uri, Path.cwd())
    if where.database and not where.database.exists():
        raise UserError(
            f"{where.database}: no run has been recorded here; run an experiment first, or name the store with --uri"
        )
    return _serve(where, _free_port(options.port), options.open)


def _serve(where: Destination, port: int, browse: bool) -> int:
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", where.client_uri, "--uvicorn-opts", "--log-level warning"]
    if where.artifacts:
        command += ["--default-artifact-root", where.artifacts]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # The store's relative artifact locations are resolved in the server's working folder: the project.
    process = subprocess.Popen(command, cwd=where.root, env=environment)
    stopped = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    threading.Thread(target=_announce, args=(process, port, browse), daemon=True).start()
    status = process.wait()
    return 0 if stopped else status


def _announce(process: subprocess.Popen[bytes], port: int, browse: bool) -> None:
    """As soon as the server answers, say the address, and the one of each experiment's table of runs."""
    base = f"http://{HOST}:{port}"
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            print(f"MLflow is at {base} (Ctrl-C ends it)", flush=True)
            break
        threading.Event().wait(0.2)
    else:
        return
    found = _experiments(base)
    for name, identity in found[:_SHOWN]:
        print(f"  runs of {name}: {link(base, identity)}", flush=True)
    if len(found) > _SHOWN:
        print(f"  {len(found) - _SHOWN} more: {base}/#/experiments", flush=True)
    if browse and found:
        webbrowser.open(link(base, found[0][1]))


def _experiments(base: str) -> list[tuple[str, str]]:
    """Names and ids of our experiments, newest first; those of an older version get their views and descriptions."""
    from mlflow.tracking import MlflowClient

    with quiet_logging():
        client = MlflowClient(base)
        found = client.search_experiments(order_by=["creation_time DESC"])
        ours = [
            each for each in found if client.search_runs([each.experiment_id], "tags.role = 'parent'", max_results=1)
        ]
        for each in ours:
            describe(client, each.experiment_id)
    return [(each.name, each.experiment_id) for each in ours]


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise UserError(f"no free port on {HOST}; end another server or name one with --port")
