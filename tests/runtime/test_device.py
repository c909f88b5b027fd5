"""Devices: no silent CPU run, and leases of GPUs that need no GPU to be tested: the ids are injected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from posttrain.errors import UserError
from posttrain.runtime.device import lease, parse_listing, require_cuda, visible_devices

PLAIN = """GPU 0: NVIDIA H200 (UUID: GPU-aaa)
GPU 1: NVIDIA H200 (UUID: GPU-bbb)
"""
SLICED = """GPU 0: NVIDIA H200 (UUID: GPU-aaa)
  MIG 1g.18gb     Device  0: (UUID: MIG-1)
  MIG 1g.18gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA H200 (UUID: GPU-bbb)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_listing() -> None:
    assert parse_listing(PLAIN) == ["GPU-aaa", "GPU-bbb"]
    assert parse_listing(SLICED) == ["MIG-1", "MIG-2", "GPU-bbb"]
    assert parse_listing("No devices were found") == []


def test_a_schedulers_choice_is_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-x")
    assert visible_devices() == ["2", "GPU-x"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible_devices() == []


def test_no_two_jobs_have_the_same_device(tmp_path: Path) -> None:
    first = lease(tmp_path, 2, ["0", "1", "2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    second = lease(tmp_path, 1, ["0", "1", "2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(UserError, match=r"waited 0 s for 1 of the GPUs 0, 1, 2"):
        lease(tmp_path, 1, ["0", "1", "2"], wait_seconds=0)
    first.release()
    third = lease(tmp_path, 2, ["0", "1", "2"], wait_seconds=0)
    assert third.devices == ["0", "1"]
    third.release()
    second.release()


def test_all_or_nothing(tmp_path: Path) -> None:
    """A job that cannot have all takes none, so that two of them do not wait for each other for ever."""
    first = lease(tmp_path, 1, ["0", "1"])
    with pytest.raises(UserError):
        lease(tmp_path, 2, ["0", "1"], wait_seconds=0)
    assert lease(tmp_path, 1, ["0", "1"], wait_seconds=0).devices == ["1"]
    first.release()


def test_too_few(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resources.gpus is 2, but this job sees 1"):
        lease(tmp_path, 2, ["0"])


HOLD = """
import sys, time
from pathlib import Path
from posttrain.runtime.device import lease
held = lease(Path(sys.argv[1]), 1, ["0"], wait_seconds=30)
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_job_frees_its_devices_and_waiting_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    waiter = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    with pytest.raises(UserError):
        lease(tmp_path, 1, ["0"], wait_seconds=0)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert waiter.stdout is not None and waiter.stdout.readline() == "held\n"
    waiter.kill()
    waiter.wait()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_cuda_is_an_error() -> None:
    with pytest.raises(UserError, match=r"resources.device is cuda, but .*set resources.device: cpu"):
        require_cuda()
