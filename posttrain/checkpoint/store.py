"""Exact resume state: tensors as safetensors, counters as JSON, the manifest last, the newest few kept."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.checkpoint.publish import MANIFEST, publish, repair, work_folder

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

TENSORS = "tensors.safetensors"
COUNTERS = "counters.json"


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was saved; tensors are on the CPU."""

    step: int
    tensors: dict[str, Tensor]
    counters: dict[str, Any]


class Checkpoints:
    """The checkpoints of one training, by step, in `folder`; the newest `keep` are kept, also over restarts."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.old"):
            repair(folder / left.name[1:].removesuffix(".old"))
        for left in folder.glob(".step-*.work"):
            shutil.rmtree(left)

    def save(self, step: int, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Write the state after `step` steps, then drop what is older than the newest `keep`.

        Counters must be JSON (floats keep every bit). Raises OSError where the disk is full; the checkpoint before
        stays whole.
        """
        target = self.folder / f"step-{step:08d}"
        work = work_folder(target)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _save_tensors(tensors, work / TENSORS)
        (work / COUNTERS).write_text(json.dumps(dict(counters), sort_keys=True), encoding="utf-8")
        files = {name: _sha256(work / name) for name in (COUNTERS, TENSORS)}
        (work / MANIFEST).write_text(json.dumps({"step": step, "files": files}), encoding="utf-8")
        publish(work, target)
        self._prune(step)

    def latest(self) -> Saved | None:
        """The newest whole checkpoint, or None. A truncated or altered one is skipped with a warning."""
        for step in sorted(self.steps(), reverse=True):
            folder = self.folder / f"step-{step:08d}"
            fault = _fault(folder)
            if fault is None:
                return _load(folder, step)
            log.warning("checkpoint of step %d is skipped: %s", step, fault)
        return None

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or not, oldest first."""
        found = (re.fullmatch(r"step-(\d{8,})", path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _prune(self, newest: int) -> None:
        """Later steps than the one just saved are faulty ones that a resume went back behind."""
        steps = self.steps()
        kept = [step for step in steps if step <= newest][-self.keep :]
        for step in steps:
            if step not in kept:
                shutil.rmtree(self.folder / f"step-{step:08d}")


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Safetensors refuses tensors that share memory (tied weights): each is written as a tensor of its own."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != value.nbytes:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value
    save_file(plain, str(path))


def _fault(folder: Path) -> str | None:
    """Why this checkpoint cannot be used, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, digest in manifest["files"].items():
            if _sha256(folder / name) != digest:
                return f"{name} does not match its manifest"
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _load(folder: Path, step: int) -> Saved:
    from safetensors.torch import load_file

    counters = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
    return Saved(step, load_file(str(folder / TENSORS)), counters)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
