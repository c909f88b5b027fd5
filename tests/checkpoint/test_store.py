"""Checkpoints: exact, whole or skipped, kept over restarts, never lost by a kill."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch

from posttrain.checkpoint.store import Checkpoints
from tests.checkpoint.killing import killed_everywhere


def tensors(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    base = torch.randn(3, 4, generator=generator)
    return {
        "w": base,
        "tied": base,
        "slice": torch.randn(8, generator=generator)[2:5],
        "transposed": torch.randn(2, 3, generator=generator).T,
        "half": torch.randn(5, generator=generator).bfloat16(),
        "scalar": torch.tensor(step),
        "rng": generator.get_state(),
        "grad": torch.nn.Parameter(torch.ones(2)),
    }


def test_round_trip_is_exact(tmp_path: Path) -> None:
    counters = {"step": 3, "best": 0.1 + 0.2, "nothing": None, "order": [3, 1, 2]}
    Checkpoints(tmp_path).save(3, tensors(3), counters)
    saved = Checkpoints(tmp_path).latest()
    assert saved is not None and saved.step == 3 and saved.counters == counters
    assert set(saved.tensors) == set(tensors(3))
    for name, tensor in tensors(3).items():
        assert torch.equal(saved.tensors[name], tensor.detach())
        assert saved.tensors[name].dtype == tensor.dtype


def test_nothing_saved(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new").latest() is None


def test_retention_survives_a_restart(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        store = Checkpoints(tmp_path, keep=2)
        store.save(step, tensors(step), {})
    assert store.steps() == [15, 20]


@pytest.mark.parametrize("name", ["tensors.safetensors", "counters.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "delete"])
def test_a_harmed_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    store.save(5, tensors(5), {"k": 5})
    store.save(10, tensors(10), {"k": 10})
    path = tmp_path / "step-00000010" / name
    content = path.read_bytes()
    if harm == "truncate":
        path.write_bytes(content[:-1])
    elif harm == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        path.unlink()
    logging.getLogger("posttrain").propagate = True
    with caplog.at_level(logging.WARNING):
        saved = Checkpoints(tmp_path).latest()
    assert saved is not None and saved.step == 5 and saved.counters == {"k": 5}
    assert "checkpoint of step 10 is skipped" in caplog.text


def test_after_a_skip_the_harmed_one_does_not_count(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    for step in (5, 10, 20):
        store.save(step, tensors(step), {})
    (tmp_path / "step-00000020" / "counters.json").write_text("")
    store.save(15, tensors(15), {})
    assert store.steps() == [10, 15]
    store.save(20, tensors(20), {})
    saved = store.latest()
    assert saved is not None and saved.step == 20


def test_killed_at_any_point_of_three_saves(tmp_path: Path) -> None:
    """There is always a whole newest checkpoint, at most one step behind, and the next start cleans up."""

    def work() -> None:
        store = Checkpoints(tmp_path / "c", keep=2)
        for step in (5, 10, 15):
            store.save(step, {"w": torch.full((3,), float(step))}, {"step": step})

    last = 0
    steps = set()
    for _ in killed_everywhere(work):
        store = Checkpoints(tmp_path / "c", keep=2)
        saved = store.latest()
        step = saved.step if saved else 0
        assert step >= last and len(store.steps()) <= 3
        if saved:
            assert saved.counters == {"step": step}
            assert torch.equal(saved.tensors["w"], torch.full((3,), float(step)))
        assert not [path for path in (tmp_path / "c").iterdir() if path.name.startswith(".")]
        last = step
        steps.add(step)
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
    assert steps == {0, 5, 10, 15}
