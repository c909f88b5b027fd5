"""The command line as a user meets it: real processes, one clear message, the right exit status."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.cli import explain

ROOT = Path(__file__).parents[1]
CONFIG = """
experiment: x
data: {sources: [{file: a.txt, form: ratings}]}
model: {base: "built-in: tiny"}
runs: {ppo: {method: ppo}}
"""
# The command line with the stage `compare` replaced (it needs no torch), and no MLflow.
STUB = """
import sys
import posttrain.cli as cli
from posttrain.stages import runner
runner.UNTRACKED.add("compare")
cli.STAGES["compare"] = "stub"
sys.exit(cli.main(sys.argv[1:]))
"""
COMPARE = ["compare", "--config", "c.yaml", "--output", "results/x/compare"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "posttrain", *words], capture_output=True, text=True, env=ENVIRONMENT)


def start(body: str) -> subprocess.Popen[str]:
    Path("stub.py").write_text(body)
    return subprocess.Popen(
        [sys.executable, "-c", STUB, *COMPARE],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5
    return done.stderr


def test_the_package_imports_quickly_and_without_torch() -> None:
    code = "import posttrain, sys; print(posttrain.__version__, 'torch' in sys.modules, 'pydantic' in sys.modules)"
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert time.perf_counter() - begin < 1 or os.getloadavg()[0] > 4
    assert done.stdout.split()[1:] == ["False", "False"]
    assert call("--version").stdout.strip() == done.stdout.split()[0]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["sft"], "--config"),
        (["sfd", "--config", "c.yaml"], "sfd"),
        (["sft", "--config", "c.yaml", "--output", "o", "--rum", "x"], "--rum"),
        (["ui"], "no run has been recorded here"),
        (["sft", "--config", "none.yaml", "--output", "o"], "none.yaml does not exist"),
        (["sft", "--config", "c.yaml", "--output", "o", "--input", "data"], "NAME=PATH"),
        (["sft", "--config", "c.yaml", "--output", "o", "--input", "data=nowhere"], "nowhere does not exist"),
        (["sft", "--config", "c.yaml", "--output", "o", "--input", "a=.", "--input", "a=."], "twice"),
        (["sft", "--config", "c.yaml", "--output", "o", "--input", "a=."], "manifest.json is missing"),
        (
            ["post_train", "--run", "dpo", "--config", "c.yaml", "--output", "results/x/runs/dpo"],
            "give one of ppo",
        ),
        (["pull_data", "--config", "c.yaml", "--output", "o"], "data.dvc is missing"),
        (["verify", "nowhere"], "nowhere/manifest.json is missing"),
    ],
)
def test_refusals(words: list[str], wanted: str) -> None:
    assert wanted in refused(call(*words))


def test_a_wrong_key_by_the_command_line() -> None:
    Path("c.yaml").write_text(CONFIG.replace("{method: ppo}", "{method: ppo, kl_coeff: 1}"))
    assert "runs.ppo.kl_coeff" in refused(call("sft", "--config", "c.yaml", "--output", "results/x/sft"))


def test_verify_says_what_is_wrong_and_where() -> None:
    assert call("fetch_model", "--config", "c.yaml", "--output", "results/x/model").returncode == 0
    done = call("verify", "results/x/model")
    assert done.returncode == 0 and "1 files, no faults" in done.stdout
    assert call("verify", "results/x").stdout == done.stdout
    Path("results/x/model/model/config.json").write_text("{}")
    assert "results/x/model/model/config.json does not match" in refused(call("verify", "results/x/model"))


def test_compare_without_a_config_takes_results_folders() -> None:
    Path("results/empty").mkdir(parents=True)
    assert "results/empty has no finished evaluation" in refused(call("compare", "results/empty"))


def test_the_thread_environment_is_set_before_a_stage_is_imported() -> None:
    names = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS OMP_WAIT_POLICY GOMP_SPINCOUNT TOKENIZERS_PARALLELISM"
    body = f"import os\nprint([os.environ[name] for name in {names.split()}])\ndef run(stage): pass"
    output, errors = start(body).communicate()
    assert output == repr(["1", "1", "1", "PASSIVE", "0", "false"]) + "\n", errors


# --- stopping -------------------------------------------------------------------------------------------------------

WORKING = """
import time
from posttrain.errors import Interrupted
def run(stage):
    for step in range(200):
        if stage.interrupted():
            (stage.state / "checkpoint").write_text(str(step))
            raise Interrupted
        if step == 1:
            open("started", "w").close()
        time.sleep(0.05)
"""
LOADING = "import time\nopen('started', 'w').close()\ntime.sleep(30)\ndef run(stage): pass"
# As lazy imports of transformers do, whose own error takes the signal's place.
WRAPPING = LOADING.replace(
    "time.sleep(30)", "\ntry: time.sleep(30)\nexcept BaseException: raise ImportError('no module')"
)
STUBBORN = WORKING.replace("time.sleep(0.05)", "time.sleep(30 if step == 1 else 0)").replace("range(200)", "range(3)")


def wait_until_started(process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if Path("started").exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("the stage did not start")


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("body", [WORKING, LOADING, WRAPPING], ids=["working", "loading", "wrapping"])
def test_a_signal_ends_with_one_line(body: str, signum: signal.Signals, status: int) -> None:
    process = start(body)
    wait_until_started(process)
    process.send_signal(signum)
    code, errors = ended(process)
    assert code == status and "Traceback" not in errors
    assert errors.splitlines()[-1] == f"stopped by {signum.name}; run it again to go on"
    assert len(errors.splitlines()) <= 2
    saved = list(Path("results/x/.state").glob("*/checkpoint"))
    assert len(saved) == (1 if body == WORKING else 0)
    assert not Path("results/x/compare").exists()


def test_a_second_ctrl_c_ends_at_once() -> None:
    process = start(STUBBORN)
    wait_until_started(process)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, errors = ended(process)
    assert code == 130 and time.monotonic() - begin < 5 and "Traceback" not in errors


def test_a_request_that_arrives_twice_is_one() -> None:
    process = start(WORKING.replace("time.sleep(0.05)", "time.sleep(0.5)"))
    wait_until_started(process)
    for signum in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # a terminal, Snakemake, and its end
        process.send_signal(signum)
    code, errors = ended(process)
    assert code == 130 and len(list(Path("results/x/.state").glob("*/checkpoint"))) == 1, errors


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
open("child", "w").write(str(child.pid))
time.sleep(60)
"""


WORKFLOW = """
import sys, time
from pathlib import Path
from posttrain.platforms.locks import life_line
print(life_line(Path("lines")), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
@pytest.mark.parametrize("victim", ["parent", "workflow"])
def test_a_stage_of_the_workflow_ends_with_its_parent_and_with_the_workflow(victim: str) -> None:
    """They are two in a container, whose runtime lives on where Snakemake is killed."""
    Path("stub.py").write_text(WORKING)
    words = [sys.executable, "-c", PARENT, STUB, *COMPARE]
    workflow = subprocess.Popen([sys.executable, "-c", WORKFLOW], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert workflow.stdout is not None
    line = workflow.stdout.readline().strip()
    with Path("log").open("w") as log:
        parent = subprocess.Popen(words, stderr=log, text=True, env={**ENVIRONMENT, "POSTTRAIN_DIE_WITH_PARENT": line})
    processes: dict[str, subprocess.Popen[str]] = {"parent": parent, "workflow": workflow}
    try:
        wait_until_started(parent)
        time.sleep(0.3)
        assert "stopping" not in Path("log").read_text()
        processes[victim].kill()
        for _ in range(100):
            if list(Path("results/x/.state").glob("*/checkpoint")) and "stopped by SIGTERM" in Path("log").read_text():
                return
            time.sleep(0.1)
        os.kill(int(Path("child").read_text()), signal.SIGKILL)
        raise AssertionError(Path("log").read_text())
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6])
def test_ctrl_c_at_any_moment_of_the_start_shows_no_traceback(delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "posttrain", *COMPARE],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    code, errors = ended(process)
    first_lines = ("posttrain/__init__.py", "posttrain/__main__.py")  # where Ctrl-C is still Python's own
    ours = [line for line in errors.splitlines() if "posttrain/" in line and not any(f in line for f in first_lines)]
    assert not ours, errors
    # 2: it had ended by itself. 1: Python was at our first lines at most, and shows a traceback of its own.
    assert code in (130, -signal.SIGINT, 2) or "Traceback" in errors


# --- faults of the machine ------------------------------------------------------------------------------------------


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    code, errors = ended(start("def run(stage): {}['x']"))
    assert code == 1 and "Traceback" in errors and "KeyError" in errors


# As another user where the tests run as root; all is imported first, as that user may not read the environment.
UNPRIVILEGED = """
import encodings.utf_8_sig, os, sys
import posttrain.cli, posttrain.platforms.policy, posttrain.runtime.threads
import posttrain.stages.fetch_model, posttrain.stages.runner
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
sys.exit(posttrain.cli.main(sys.argv[1:]))
"""


def test_a_read_only_results_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    Path("results").mkdir(mode=0o555)
    words = [sys.executable, "-c", UNPRIVILEGED, "fetch_model", "--config", "c.yaml", "--output", "results/x/model"]
    found = refused(subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT))
    assert found == "error: results/x: permission denied; give this user the right to it (chmod, chown)\n"


def test_a_full_disk(tmp_path: Path) -> None:
    """On a real full file system: a tmpfs of 1 MB."""
    (tmp_path / "results").mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "results")], capture_output=True
    )
    if mount.returncode:
        pytest.skip("only root can mount a file system")
    try:
        code, errors = ended(start("def run(stage): (stage.out / 'big').write_bytes(bytes(2 << 20))"))
    finally:
        subprocess.run(["umount", str(tmp_path / "results")], check=True)
    assert code == 2 and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("error: no space left on the device of results/x")


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "no space left on the device of /a/b"),
        (OSError(errno.ENOSPC, "No space left on device"), "of results/x/sft"),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "no space left"),
        (Exception("(sqlite3.OperationalError) database or disk is full"), "no space left"),
        (OSError("[Errno 28] Error writing bytes to file"), "no space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b: permission denied"),
        (OSError(errno.EROFS, "Read-only file system", "/a/b"), "/a/b is on a read-only file system"),
    ],
)
def test_faults_that_the_user_can_mend(error: Exception, wanted: str) -> None:
    assert wanted in (explain(error, Path("results/x/sft")) or "")
    wrapped = RuntimeError("something else")
    wrapped.__cause__ = error
    assert wanted in (explain(wrapped, Path("results/x/sft")) or "")


def test_other_faults_are_not_explained_away() -> None:
    for error in (FileNotFoundError(errno.ENOENT, "No such file", "/a"), KeyError("x"), RuntimeError("a [b] c")):
        assert explain(error, None) is None
