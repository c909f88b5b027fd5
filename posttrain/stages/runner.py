"""Everything around a stage's body: verify inputs, key, resume state, tracking, manifest, publish.

The folder of an experiment, results/<experiment>, follows from the output's place: `runs/<run>` and `eval/<run>` lie
two levels below it, every other stage's output one. Resume state is in `.state/<stage key>` there, so that another
configuration never continues it, and is deleted once the output is published.
"""

from __future__ import annotations

import datetime
import json
import logging
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.checkpoint.publish import publish, repair, work_folder, write_atomic
from posttrain.config.load import Slice, resolved_yaml, stage_slice
from posttrain.config.registry import entries
from posttrain.config.schema import Config
from posttrain.errors import Interrupted, UserError
from posttrain.platforms.locks import held
from posttrain.provenance import code_slice, images, manifest
from posttrain.provenance.commit import current_commit
from posttrain.provenance.digests import DigestCache, file_digest
from posttrain.provenance.raw_data import verify_data
from posttrain.provenance.stage_key import stage_key
from posttrain.runtime.device import lease, require_cuda
from posttrain.runtime.imports import without_scipy
from posttrain.runtime.seeds import deterministic, seed_all
from posttrain.runtime.threads import apply_threads
from posttrain.stages.arguments import NESTED, RUN_FILE, check_input, check_output, check_run
from posttrain.tracking.destination import destination
from posttrain.tracking.tracker import Sent, Status, Tracker, open_tracker

# Host stages that may run before the store of metrics exists.
UNTRACKED = {"fetch_model"}
STATE_FILE = "stage.json"


@dataclass(frozen=True)
class Job:
    """A stage as the command line names it."""

    stage: str
    config: Config
    inputs: Mapping[str, Path]
    output: Path
    run: str | None = None

    @property
    def experiment(self) -> Path:
        """results/<experiment>"""
        return self.output.parents[1 if self.stage in NESTED else 0]


class Inputs(dict[str, Path]):
    """Verified inputs by name; one that was not given is the caller's mistake."""

    def __missing__(self, name: str) -> Path:
        raise UserError(f"this stage reads an input {name!r}; give --input {name}=FOLDER")


@dataclass
class Stage:
    """What a stage's body sees."""

    name: str
    run_name: str | None
    config: Slice
    inputs: Inputs
    out: Path  # private folder on the target's file system: outputs go here
    state: Path  # resume folder: survives kills, deleted after publishing
    seed: int
    device: str
    log: logging.Logger
    tracker: Tracker
    interrupted: Callable[[], bool]  # true after a signal: write a checkpoint, then raise Interrupted


Body = Callable[[Stage], None]


class _Resumes(logging.Filter):
    """Tells `remember` the steps of the lines "resumed at step k", for run.json; lets every line through."""

    def __init__(self, remember: Callable[[int], None]) -> None:
        super().__init__()
        self.remember = remember

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == "resumed at step %d" and isinstance(record.args, tuple):
            self.remember(int(str(record.args[0])))
        return True


@dataclass(frozen=True)
class _Facts:
    """What identifies one execution: gathered before the body runs, written into its manifest."""

    slice: Slice
    code: code_slice.Slice
    digests: dict[str, str]
    image: str
    key: str
    tokenizer: str | None
    data_hash: str | None


def run_stage(job: Job, body: Body, interrupted: Callable[[], bool] = lambda: False, strict: bool = True) -> None:
    """Run one stage from verified inputs to its published folder.

    `strict` fails the stage where it has imported a module of ours outside its code slice; a process that has done
    other things before cannot tell and passes False.
    Raises `UserError` for what the user can mend, `Interrupted` after a signal.
    """
    check_run(job.stage, job.run, job.config, job.inputs)
    check_output(job.stage, job.run, job.output)
    lock = job.experiment / ".state" / f"{'-'.join(filter(None, [job.stage, job.run]))}.lock"
    with held(lock) as free:
        if not free:
            raise UserError(f"{job.output} is being made by another process; wait for it or end it")
        repair(job.output)
        facts = _gather(job)
        attempt = _Attempt(job, facts)
        stage = attempt.open(interrupted)
        status: Status = "FAILED"
        try:
            body(stage)
            if strict:
                _refuse_strangers(job, facts)
            attempt.publish(stage)
            status = "FINISHED"
        except (Interrupted, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            stage.tracker.close(status)
            stage.log.filters.clear()  # the next stage of this process has a history of its own
            shutil.rmtree(stage.out, ignore_errors=True)  # half an output, where it was not published
        attempt.clean()


def _gather(job: Job) -> _Facts:
    """Verify every input, and compute the stage key."""
    config = stage_slice(job.config, job.stage, job.run)
    cache = DigestCache(job.experiment / ".state" / "digests.json")
    manifests, digests = {}, {}
    for name, path in sorted(job.inputs.items()):
        manifests[name], digests[name] = _verified(path, cache)
        check_input(name, path, manifests[name], job.run)
    if "raw" in job.inputs:
        verify_data(job.inputs["raw"], Path(config.data.path), cache)
    cache.save()
    code = code_slice.code_slice(job.stage, entries(config.run) if job.stage == "post_train" else None)
    image = images.current_image()
    return _Facts(
        slice=config,
        code=code,
        digests=digests,
        image=image,
        key=stage_key(job.stage, job.run, config.as_dict(), digests, code.digest, image),
        tokenizer=_common_tokenizer(job, manifests),
        data_hash=digests.get("raw") or next(filter(None, (each.get("data") for each in manifests.values())), None),
    )


def _verified(path: Path, cache: DigestCache) -> tuple[manifest.Manifest, str]:
    """A folder's manifest once its files match it, or nothing for a plain file; and the digest that stands for it."""
    if path.is_file():
        return {}, file_digest(path)
    return manifest.verify(path, cache), file_digest(path / manifest.MANIFEST)


def _common_tokenizer(job: Job, manifests: Mapping[str, manifest.Manifest]) -> str | None:
    """The fingerprint that all inputs share. Token ids of one tokenizer mean nothing to a model of another."""
    known = {name: each["tokenizer"] for name, each in manifests.items() if each.get("tokenizer")}
    if len(set(known.values())) > 1:
        names = ", ".join(f"{job.inputs[name]} ({fingerprint[:8]})" for name, fingerprint in known.items())
        raise UserError(f"the inputs were made with different tokenizers: {names}; remake them from one model")
    return next(iter(known.values()), None)


def _refuse_strangers(job: Job, facts: _Facts) -> None:
    """A module outside the slice would change results without making the stage run again: our own mistake."""
    found = code_slice.strangers(facts.code)
    if found:
        raise RuntimeError(f"{', '.join(found)}: imported by {job.stage}, but outside its code slice")


class _Attempt:
    """One execution of a job, from its resume folder to its published output."""

    def __init__(self, job: Job, facts: _Facts) -> None:
        self.job, self.facts = job, facts
        self.state = job.experiment / ".state" / facts.key
        self.out = work_folder(job.output)
        self.started = time.time()
        self.history: dict[str, Any] = {}
        self.commit, self.dirty = current_commit(images.REPOSITORY)

    def open(self, interrupted: Callable[[], bool]) -> Stage:
        """The stage as its body sees it, with devices, threads and seeds set."""
        job, facts = self.job, self.facts
        self.state.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        self._count()
        device = _open_device(job, facts.slice)
        log = logging.getLogger(f"posttrain.{job.stage}")
        log.setLevel(logging.INFO)
        log.filters[:] = [_Resumes(self._resumed)]
        return Stage(
            name=job.stage,
            run_name=job.run,
            config=facts.slice,
            inputs=Inputs(job.inputs),
            out=self.out,
            state=self.state,
            seed=facts.slice.__dict__.get("seed", 0),
            device=device,
            log=log,
            tracker=self._tracker(log),
            interrupted=interrupted,
        )

    def publish(self, stage: Stage) -> None:
        """Write manifest and run.json, send what is left to MLflow, replace the old output."""
        content = self._manifest(stage)
        manifest.write(self.state, content)
        write_atomic(self.state / "config.yaml", resolved_yaml(self.job.config).encode())
        stage.tracker.artifact(self.state / manifest.MANIFEST)
        stage.tracker.artifact(self.state / "config.yaml")
        sent = stage.tracker.flush()
        shutil.copyfile(stage.tracker.path, self.out / "metrics.jsonl")
        write_atomic(self.out / RUN_FILE, (json.dumps(self._run_facts(sent), indent=1) + "\n").encode())
        manifest.write(self.out, content)
        publish(self.out, self.job.output)

    def clean(self) -> None:
        """Delete the resume state of this stage and run, this key's and those of earlier configurations."""
        for path in self.state.parent.iterdir():
            known = _read_json(path / STATE_FILE)
            if known and (known["stage"], known["run"]) == (self.job.stage, self.job.run):
                shutil.rmtree(path)

    def _count(self) -> None:
        """What earlier attempts under this key left, with this attempt counted."""
        known = _read_json(self.state / STATE_FILE) or {"attempts": 0, "resumed_at": []}
        self.history = {**known, "stage": self.job.stage, "run": self.job.run, "attempts": known["attempts"] + 1}
        write_atomic(self.state / STATE_FILE, json.dumps(self.history).encode())

    def _resumed(self, step: int) -> None:
        self.history["resumed_at"].append(step)
        write_atomic(self.state / STATE_FILE, json.dumps(self.history).encode())

    def _tracker(self, log: logging.Logger) -> Tracker:
        job, facts = self.job, self.facts
        if job.stage in UNTRACKED:
            return Tracker(self.state, log)
        tags = {
            "method": job.config.runs[job.run].method if job.run in job.config.runs else "",
            "seed": str(facts.slice.__dict__.get("seed", "")),
            "git_commit": self.commit or "",
            "git_dirty": str(self.dirty).lower() if self.dirty is not None else "",
            "image_id": facts.image,
            "data_hash": facts.data_hash or "",
            "code_slice": facts.code.digest,
            "stage_key": facts.key,
        }
        where = destination(job.config, Path.cwd())
        return open_tracker(
            where, state=self.state, stage=job.stage, run=job.run, params=facts.slice.as_dict(), tags=tags, log=log
        )

    def _manifest(self, stage: Stage) -> manifest.Manifest:
        facts, known = self.facts, self.facts.slice.__dict__
        return {
            "stage": self.job.stage,
            "run": self.job.run,
            "key": facts.key,
            "config": facts.slice.as_dict(),
            "inputs": facts.digests,
            "outputs": manifest.outputs(self.out),
            "code": facts.code.digest,
            "image": facts.image,
            "seed": known.get("seed"),
            "dtype": known["model"].dtype if "model" in known else None,
            "threads": known.get("threads"),
            "device": known.get("device"),
            "packages": manifest.package_versions(),
            "tokenizer": _own_tokenizer(self.out) or facts.tokenizer,
            "data": facts.data_hash,
        }

    def _run_facts(self, sent: Sent) -> dict[str, Any]:
        ended = time.time()
        return {
            "started": _stamp(self.started),
            "ended": _stamp(ended),
            "seconds": round(ended - self.started, 3),
            "attempts": self.history["attempts"],
            "resumed_at": self.history["resumed_at"],
            "host": platform.node(),
            "commit": self.commit,
            "dirty": self.dirty,
            "image": self.facts.image,
            "python": sys.executable,
            "sys_path": sys.path,
            "mlflow_run_id": sent.run_id,
            "tracking": sent.tracking,
        }


def _open_device(job: Job, config: Slice) -> str:
    """Lease GPUs, then import torch with its threads, seeds and determinism; stages without a device need no torch."""
    if "device" not in config.__dict__:
        return "cpu"
    if config.device == "cuda":
        lease(job.experiment.parent / ".leases", job.config.resources.gpus)
        require_cuda()
    apply_threads(config.threads)
    without_scipy()
    deterministic(config.device)
    seed_all(config.seed)
    return config.device


def _own_tokenizer(out: Path) -> str | None:
    """Fingerprint of the tokenizer that the stage puts out, if it does."""
    for folder in (out / "tokenizer", out / "model", out):
        if (folder / "tokenizer.json").exists():
            from posttrain.data.tokenizer import fingerprint

            return fingerprint(folder)
    return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
