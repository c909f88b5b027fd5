"""The pinned sets: complete, exact, without hosts and without CUDA libraries, and the host sets fit together."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

ENVS = Path(__file__).resolve().parents[2] / "envs"
NAMES = sorted(path.stem for path in ENVS.glob("*.in"))
HOST_SETS = ("cpu", "driver", "dev")
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[a-z,]+\])?==([0-9][A-Za-z0-9.]*)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def pins(name: str) -> dict[str, str]:
    found = {}
    for line in lines(ENVS / f"{name}.lock"):
        match = PIN.fullmatch(line)
        assert match, f"{name}.lock: `{line}` is no exact pin"
        found[normal(match[1])] = match[2]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_lock_pins_exactly_what_its_source_asks_for(name: str) -> None:
    locked = pins(name)
    for line in lines(ENVS / f"{name}.in"):
        wanted = re.match(r"([A-Za-z0-9._-]+)(?:==(\S+))?", line)
        assert wanted and normal(wanted[1]) in locked, f"{name}.lock lacks {line}"
        assert wanted[2] in (None, locked[normal(wanted[1])])


@pytest.mark.parametrize("name", NAMES)
def test_lock_leaves_cuda_libraries_to_the_pytorch_build(name: str) -> None:
    assert not [package for package in pins(name) if re.match(r"(nvidia|cuda|triton)(-|$)", package)]


def test_host_sets_agree_so_that_they_install_into_one_environment() -> None:
    seen: dict[str, str] = {}
    for name in HOST_SETS:
        for package, version in pins(name).items():
            assert seen.setdefault(package, version) == version, f"{name}.lock disagrees about {package}"


@pytest.mark.parametrize("name", HOST_SETS)
def test_this_environment_is_what_the_locks_say(name: str) -> None:
    installed = {normal(one.metadata["Name"]): one.version.partition("+")[0] for one in metadata.distributions()}
    differing = {
        package: installed.get(package) for package, version in pins(name).items() if installed.get(package) != version
    }
    assert not differing, f"not as in {name}.lock: {differing}; install it again with `make test`"


def test_cuda_set_keeps_the_pins_that_belong_together() -> None:
    locked = pins("cuda121")
    wanted = {"torch": "2.5.1", "transformers": "4.51.3", "vllm": "0.7.3", "ray": "2.40.0", "xformers": "0.0.28.post3"}
    assert {package: locked[package] for package in wanted} == wanted
    assert locked["numpy"].startswith("1.")
