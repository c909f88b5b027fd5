"""Which systems are complete, degraded or refused."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from posttrain.errors import UserError


@dataclass(frozen=True)
class Facts:
    """What the policy is decided on."""

    system: str  # as platform.system(): "Linux", "Windows", "Darwin"


def facts() -> Facts:
    """The facts of this machine."""
    return Facts(system=platform.system())


def refuse_unsupported(machine: Facts) -> None:
    """Raises `UserError` with the reason where posttrain does not run at all."""
    if machine.system == "Darwin":
        raise UserError("macOS is not supported: no CUDA, no Apptainer, and other bytes on the CPU; use Linux or WSL2")
