import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from posttrain.config.load import load_config
from posttrain.errors import UserError

# Stages are started as `python`, and Apptainer may stand in the virtual environment: both are found even where
# Snakemake was called by its full path. The code is the working tree's, whatever PYTHONPATH said.
# Apptainer believes PWD, which may name this folder by a link that is not there in the container.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    PYTHONPATH=str(workflow.basedir),
    PYTHONNOUSERSITE="1",
    PWD=os.getcwd(),
)

STARTED = time.time()

# Inputs that a rule waits for and no stage reads.
NOT_READ = {"tracking", "image"}


def stop(message):
    """End Snakemake with one message and exit status 2."""
    print(f"posttrain: {message}", file=sys.stderr)
    raise SystemExit(2)


def say(message):
    """Tell the user something once: not again in the processes that Snakemake starts for single jobs."""
    if workflow.is_main_process:
        print(f"posttrain: {message}", file=sys.stderr)


def or_stop(function, *values):
    """Return what the function returns; a fault that the user can mend ends Snakemake with its message."""
    try:
        return function(*values)
    except UserError as error:
        stop(error)


def read_config(path):
    """Do what `configfile:` does, but name the faults of the file in our words."""
    or_stop(load_config, Path(path))
    workflow.configfile(path)


def folder(path):
    """What a stage is given for a declared file: the folder that a manifest stands for, or the file itself."""
    path = Path(path)
    return path.parent if path.name == "manifest.json" else path


def read_by_stage(files):
    """Yield the name and the path of each folder or file that a stage reads.

    Lists are the inputs of `compare`: `eval-<run>` and `run-<run>`, so that a run may have any name.
    """
    prefixes = {"evaluations": "eval", "runs": "run"}
    for name, path in files.items():
        if name in prefixes:
            yield from ((f"{prefixes[name]}-{folder(item).name}", folder(item)) for item in path)
        elif name not in NOT_READ and path:
            yield name, folder(path)


def arguments(wildcards, input, output):
    """Return the stage's command line. Being made from input and output, it makes nothing run again."""
    words = ["--config", RESOLVED]
    for name, path in read_by_stage(input):
        words += ["--input", f"{name}={path}"]
    return shlex.join([*map(str, words), "--output", str(folder(output[0]))])


def repeat_errors():
    """End a failed run with the messages that its stages ended with, which stand far above or in log files."""
    for path in sorted(LOGS.rglob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        if starts and path.stat().st_mtime >= STARTED:
            say("\n".join([f"{path}: {lines[starts[-1]]}", *lines[starts[-1] + 1 :]]))


def explain_lock():
    """Say what to type after a killed run. Snakemake's own message comes later and names only the option."""
    locks = Path(".snakemake") / "locks"
    if locks.is_dir() and any(locks.iterdir()) and "--unlock" not in sys.argv:
        say(
            "this folder is locked, by a Snakemake at work or by one that was killed; if none works, type: snakemake --unlock"
        )


def refuse_unwritable():
    """Snakemake keeps its records in the working directory; what it says where it cannot is a traceback."""
    place = next(path for path in (Path(".snakemake"), Path(".")) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        stop(f"{place.absolute()}: cannot be written by this user; run from a copy of your own, or chmod/chown it")


explain_lock()
refuse_unwritable()
