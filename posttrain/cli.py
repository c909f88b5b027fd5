"""The command line: a flat table of stages and commands, and the one place that turns exceptions into messages.

Exit status: 0, 2 for what the user can mend (one message, no traceback), 130 or 143 after Ctrl-C or SIGTERM, 1 with a
traceback for a fault of ours.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from posttrain import __version__
from posttrain.errors import Interrupted, UserError
from posttrain.runtime.signals import Interruption, Stopped, die_with_parent

# Run by the runner: resumable, with a manifest.
STAGES = {
    "fetch_model": "posttrain.stages.fetch_model",
    "prepare": "posttrain.stages.prepare",
    "sft": "posttrain.stages.sft",
    "reward_model": "posttrain.stages.reward_model",
    "sample": "posttrain.stages.sample",
    "rank": "posttrain.stages.rank",
    "post_train": "posttrain.stages.post_train",
    "evaluate": "posttrain.stages.evaluate",
    "compare": "posttrain.stages.compare",
}
# Host steps with the same arguments that write one JSON file: `main(config, inputs, output)`.
STEPS = {
    "pull_data": "posttrain.stages.pull_data",
    "init_tracking": "posttrain.stages.init_tracking",
}
# Commands that read their own arguments: `main(arguments) -> exit status`.
COMPARE_RESULTS = "compare-results"
COMMANDS = {
    "ui": "posttrain.tracking.ui",
    COMPARE_RESULTS: "posttrain.evaluation.compare_command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    interruption = Interruption().install()
    words = argparse.Namespace(output=None)
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        if given[:1] == ["compare"] and "--config" not in given:  # results folders of a user's choice, not the stage
            given[0] = COMPARE_RESULTS
        parser = _parser()
        words, rest = parser.parse_known_args(given)
        if rest and words.command not in COMMANDS:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        _open_log()
        return _dispatch(words, rest, interruption)
    except UserError as error:
        return _fail(str(error), 2)
    except (Interrupted, Stopped):
        return _stopped(interruption)
    except BrokenPipeError:
        return 1
    except Exception as error:
        message = explain(error, getattr(words, "output", None))
        if message is not None:
            return _fail(message, 2)
        if interruption.signum and not interruption.asked:  # a library, in its imports, made its own error of `Stopped`
            return _stopped(interruption)
        raise


def _dispatch(words: argparse.Namespace, rest: list[str], interruption: Interruption) -> int:
    from posttrain.platforms.policy import facts, refuse_unsupported

    refuse_unsupported(facts())
    if words.command in COMMANDS:
        return int(importlib.import_module(COMMANDS[words.command]).main(rest))
    if words.command == "schema":
        _schema(words.output)
    elif words.command == "verify":
        _verify(words.folders)
    else:
        _run(words, interruption)
    return 0


def _run(words: argparse.Namespace, interruption: Interruption) -> None:
    """A stage or a host step."""
    die_with_parent()
    from posttrain.config.load import SECTIONS, load_config
    from posttrain.platforms.precision import with_precision

    config = with_precision(load_config(words.config))
    if words.command in STEPS:
        importlib.import_module(STEPS[words.command]).main(config, _inputs(words.input), words.output)
        return
    from posttrain.runtime.threads import set_thread_environment

    set_thread_environment(config.resources.threads_of(words.command) if "threads" in SECTIONS[words.command] else 1)
    from posttrain.stages.runner import Job, run_stage

    job = Job(words.command, config, _inputs(words.input), words.output, words.run)
    # The stage's module, and torch with it, is imported once the inputs are known to be good.
    run_stage(job, lambda stage: importlib.import_module(STAGES[stage.name]).run(stage), interruption)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="posttrain", description="One stage of an experiment; Snakemake calls these.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (*STAGES, *STEPS):
        stage = commands.add_parser(name, help=f"the stage {name}" if name in STAGES else f"the host step {name}")
        stage.add_argument("--config", required=True, metavar="FILE", help="the experiment's YAML file")
        stage.add_argument("--run", metavar="NAME", help="entry of runs: (post_train), or sft too (evaluate)")
        stage.add_argument("--input", action="append", default=[], metavar="NAME=PATH", help="what the stage reads")
        stage.add_argument("--output", required=True, type=Path, metavar="PATH", help="what the stage makes")
    verify = commands.add_parser("verify", help="check finished folders against their manifests")
    verify.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    commands.add_parser("ui", help="open the runs in MLflow's own page", add_help=False)
    commands.add_parser(
        COMPARE_RESULTS, help="compare any results folders; `compare` without --config means this", add_help=False
    )
    schema = commands.add_parser("schema", help="write the JSON schema of an experiment's file")
    schema.add_argument("--output", type=Path, metavar="FILE", help="without it, to the screen")
    return parser


class _Parser(argparse.ArgumentParser):
    """Usage errors in the form of every other error."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _inputs(pairs: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not (separator and name and path):
            raise UserError(f"--input {pair}: write it as NAME=PATH")
        if name in found:
            raise UserError(f"--input {name} is given twice")
        if not Path(path).exists():
            raise UserError(f"--input {pair}: {path} does not exist; run the stage that makes it first")
        found[name] = Path(path)
    return found


def _schema(output: Path | None) -> None:
    import json

    from posttrain.config.load import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")


def _verify(folders: Sequence[Path]) -> None:
    """Hash every file of every finished stage in the folders again, whatever is remembered of it."""
    import tempfile

    from posttrain.provenance import manifest
    from posttrain.provenance.digests import DigestCache

    found = []
    with tempfile.TemporaryDirectory() as nowhere:
        for folder in [stage for given in folders for stage in manifest.finished(given)]:
            content = manifest.read(folder)
            faults = manifest.faults(folder, content, DigestCache(Path(nowhere) / "cache.json"))
            found += faults
            print(f"{folder}: {len(content['outputs'])} files, {len(faults) or 'no'} faults")
    if found:
        more = [f"... and {len(found) - 3} more"] if len(found) > 3 else []
        raise UserError("\n".join([*found[:3], *more]))


def explain(error: BaseException, output: Path | None) -> str | None:
    """One sentence for a fault of the machine that the user can mend, None for anything else.

    Libraries wrap the system's error (safetensors and SQLite keep only its text), so the chain of causes is searched.
    """
    for cause in _chain(error):
        code = _error_number(cause)
        path = getattr(cause, "filename", None) or output
        if code in (errno.ENOSPC, errno.EDQUOT):
            return f"no space left on the device of {path}; free some and run it again: it goes on from its checkpoint"
        if code == errno.EROFS:
            return f"{path} is on a read-only file system; make it writable, or run from another folder"
        if code in (errno.EACCES, errno.EPERM):
            return f"{path}: permission denied; give this user the right to it (chmod, chown)"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _error_number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = str(error)
    number = re.search(r"\bos error (\d+)\b|\[Errno (\d+)\]", text)
    if number:
        return int(number[1] or number[2])
    if "No space left on device" in text or "database or disk is full" in text:
        return errno.ENOSPC
    return None


def _open_log() -> None:
    """Plain lines on stderr for our own loggers only: no library can take the handler away or add to it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("posttrain")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _stopped(interruption: Interruption) -> int:
    signum = interruption.signum or signal.SIGINT
    return _fail(f"stopped by {signal.Signals(signum).name}; run it again to go on", 128 + signum, prefix="")


def _fail(message: str, status: int, prefix: str = "error: ") -> int:
    try:
        print(prefix + message, file=sys.stderr, flush=True)
    except OSError:  # the log itself lies on the full disk
        os.close(2)
    return status
