"""Devices: what the config asks for or an error, and a lease of GPUs that no other job has."""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import UserError
from posttrain.platforms.locks import try_lock

log = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.5


@dataclass
class Lease:
    """GPUs of this process, until `release` or until the process ends."""

    devices: list[str]
    locks: list[int]

    def release(self) -> None:
        """Give the devices back."""
        for descriptor in self.locks:
            os.close(descriptor)
        self.locks.clear()


def require_cuda() -> None:
    """Raises `UserError` where torch finds no CUDA device: a run that asked for CUDA never falls back to the CPU."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = (
            f"torch is built for CUDA {built} but finds no usable GPU" if built else "this torch is built without CUDA"
        )
        raise UserError(f"resources.device is cuda, but {reason}; see nvidia-smi, or set resources.device: cpu")


def visible_devices() -> list[str]:
    """Ids for CUDA_VISIBLE_DEVICES: what a scheduler has given this job, else every GPU or MIG slice of the machine.

    CUDA is not asked: its first answer would fix the devices of this process.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [item.strip() for item in given.split(",") if item.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return parse_listing(done.stdout)


def parse_listing(listing: str) -> list[str]:
    """Ids from `nvidia-smi -L`. The slices of a GPU that is cut by MIG stand for it: it cannot be used as a whole."""
    found: list[str] = []
    for line in listing.splitlines():
        gpu = re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line)
        slice_of = re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line)
        if gpu:
            found.append(gpu[1])
        elif slice_of:
            found = [item for item in found if not item.startswith("GPU-") or item != found[-1]]
            found.append(slice_of[1])
    return found


def lease(folder: Path, wanted: int, devices: Sequence[str] | None = None, wait_seconds: float = WAIT_SECONDS) -> Lease:
    """Lock `wanted` of the devices by files in `folder` and set CUDA_VISIBLE_DEVICES; call it before torch is imported.

    Raises `UserError` where the machine has too few, or where too few are free for `wait_seconds`.
    """
    pool = visible_devices() if devices is None else list(devices)
    if len(pool) < wanted:
        raise UserError(
            f"resources.gpus is {wanted}, but this job sees {len(pool)}; see nvidia-smi -L, or ask for fewer"
        )
    deadline = time.monotonic() + wait_seconds
    while True:
        taken = _take(folder, wanted, pool)
        if taken is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken.devices)
            return taken
        if time.monotonic() > deadline:
            raise UserError(
                f"waited {wait_seconds:.0f} s for {wanted} of the GPUs {', '.join(pool)}, which other jobs hold "
                f"(locks in {folder}); run fewer jobs at once: --resources gpu={len(pool)}"
            )
        time.sleep(POLL_SECONDS)


def _take(folder: Path, wanted: int, pool: Sequence[str]) -> Lease | None:
    """All or nothing, so that two jobs that each want two never hold one each for good."""
    taken = Lease([], [])
    for device in pool:
        descriptor = try_lock(folder / f"{platform.node()}-{device.replace('/', '_')}.lock")
        if descriptor is not None:
            taken.devices.append(device)
            taken.locks.append(descriptor)
        if len(taken.devices) == wanted:
            return taken
    taken.release()
    return None
