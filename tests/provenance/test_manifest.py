"""Manifests: equal content, equal bytes; every difference is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.provenance import manifest
from posttrain.provenance.digests import DigestCache
from posttrain.provenance.stage_key import stage_key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sft"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "card.json").write_text("{}")
    (folder / "run.json").write_text("{}")
    manifest.write(folder, {"outputs": manifest.outputs(folder), "stage": "sft"})
    return folder


def check(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        manifest.verify(folder, DigestCache(folder.parent / "cache.json"))
    return str(caught.value)


def test_whole(folder: Path) -> None:
    content = manifest.verify(folder, DigestCache(folder.parent / "cache.json"))
    assert set(content["outputs"]) == {"card.json", "model/model.safetensors"}


def test_what_may_differ_between_equal_runs_is_no_output(folder: Path) -> None:
    before = (folder / "manifest.json").read_bytes()
    (folder / "run.json").write_text('{"host": "other"}')
    (folder / "metrics.jsonl").write_text("x")
    manifest.write(folder, {"stage": "sft", "outputs": manifest.outputs(folder)})
    assert (folder / "manifest.json").read_bytes() == before


def test_a_flipped_byte_is_named(folder: Path) -> None:
    (folder / "model" / "model.safetensors").write_bytes(b"weightz")
    assert f"{folder}/model/model.safetensors does not match its manifest" in check(folder)


def test_missing_added_and_several(folder: Path) -> None:
    (folder / "card.json").unlink()
    assert "card.json is missing" in check(folder)
    (folder / "extra.bin").touch()
    found = check(folder)
    assert "and 1 more" in found and "snakemake" in found
    (folder / "card.json").write_text("{}")
    assert "extra.bin is not in its manifest" in check(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outputs": 3}', '{"outputs": {"a": 1}}'])
def test_a_damaged_manifest(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    assert "manifest.json is" in check(folder)


def test_no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    assert "manifest.json is missing" in check(folder)


def test_the_key_changes_with_each_part() -> None:
    base = {"stage": "sft", "run": None, "config": {"a": 1}, "inputs": {"d": "1"}, "code": "c", "image": "host"}
    changes = [
        {"stage": "rank"},
        {"run": "x"},
        {"config": {"a": 2}},
        {"inputs": {"d": "2"}},
        {"code": "d"},
        {"image": "i"},
    ]
    keys = [stage_key(**{**base, **change}) for change in [{}, *changes]]  # type: ignore[arg-type]
    assert len(set(keys)) == 7
    assert stage_key(**dict(reversed(base.items()))) == keys[0]  # type: ignore[arg-type]
