"""fetch_model: built in, from a folder, from the hub; every refusal says which part is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from posttrain.config.load import parse_config
from posttrain.config.schema import Model
from posttrain.errors import UserError
from posttrain.provenance.digests import DigestCache
from posttrain.stages import fetch_model
from posttrain.stages.fetch_model import copy_file, local_folder, source_digest
from posttrain.stages.runner import Job, run_stage

FILES = {"config.json": "{}", "model.safetensors": "w" * 1000, "tokenizer_config.json": '{"eos_token": "e"}'}
NOT_WANTED = {
    "pytorch_model.bin": "x",
    "generation_config.json": '{"temperature": 0.1}',
    "README.md": "x",
    "consolidated.safetensors": "x",
    "adapter_model.safetensors": "x",
    "modeling.py": "x",
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local model folder, with what is not wanted beside it."""
    from tokenizers import Tokenizer, models

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name, text in {**FILES, **NOT_WANTED}.items():
        (folder / name).write_text(text)
    Tokenizer(models.WordLevel({"e": 0, "a": 1}, unk_token="e")).save(str(folder / "tokenizer.json"))
    return folder


def fetch(base: str, **settings: object) -> Path:
    content = {
        "experiment": "x",
        "data": {"sources": [{"file": "a", "form": "ratings"}]},
        "model": {"base": base, **settings},
        "runs": {"ppo": {"method": "ppo"}},
    }
    out = Path("results/x/model")
    run_stage(Job("fetch_model", parse_config(content, "test"), {}, out), fetch_model.run, strict=False)
    return out / "model"


def fault(base: str) -> str:
    with pytest.raises(UserError) as caught:
        fetch(base)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = fetch("built-in: tiny")
    assert json.loads((folder / "config.json").read_text()) == {"built_in": "tiny", "max_position_embeddings": 1024}
    assert yaml.safe_load((folder.parent / "manifest.json").read_text())["tokenizer"] is None


@pytest.mark.parametrize("relative", [False, True])
def test_a_local_folder(source: Path, relative: bool) -> None:
    folder = fetch("./my-model" if relative else str(source))
    assert {path.name for path in folder.iterdir()} == {*FILES, "tokenizer.json"}
    assert all((folder / name).read_text() == text for name, text in FILES.items())
    assert len(json.loads((folder.parent / "manifest.json").read_text())["tokenizer"]) == 64


def test_code_only_where_it_is_trusted(source: Path) -> None:
    assert (fetch(str(source), trust_remote_code=True) / "modeling.py").exists()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.safetensors", "no weights as *.safetensors"),
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_an_incomplete_folder_says_what_is_missing(source: Path, name: str, wanted: str) -> None:
    (source / name).unlink()
    assert wanted in fault(str(source))


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", '{"quantization_config": {}}', "quantised"),
        ("config.json", '{"vocab_size": 1}', "'a' as token 1, its model ends at 0"),
        ("tokenizer_config.json", "{}", "no eos_token"),
        ("tokenizer.json", "{}", "cannot be read"),
        ("model.safetensors.index.json", '{"weight_map": {"w": "model-2.safetensors"}}', "lacks model-2.safetensors"),
    ],
)
def test_what_would_end_a_later_stage_is_refused_at_once(source: Path, name: str, text: str, wanted: str) -> None:
    (source / name).write_text(text)
    found = fault(str(source))
    assert wanted in found and str(source) in found


def test_a_folder_has_no_revision(source: Path) -> None:
    with pytest.raises(UserError, match=r"model\.revision"):
        fetch(str(source), revision="main")


def test_a_model_may_know_more_tokens_than_its_tokenizer(source: Path) -> None:
    (source / "config.json").write_text('{"vocab_size": 2}')
    assert (fetch(str(source)) / "config.json").exists()


def test_a_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for base in ("/no/where", "./here", "models/my/own"):
        assert f"the folder {base} does not exist" in fault(base)
    assert local_folder("org/name") is None


@pytest.mark.parametrize("base", ["org/name", "a bad/na me"])
def test_without_a_network_there_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = fault(base)
    assert f"model.base: {base}" in found and "folder" in found


def test_the_hubs_snapshot_is_copied(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def snapshot(base: str, **options: object) -> str:
        asked.update(options, base=base)
        return str(source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    folder = fetch("org/name", revision="v1")
    assert {path.name for path in folder.iterdir()} == {*FILES, "tokenizer.json"}
    assert asked["base"] == "org/name" and asked["revision"] == "v1"
    assert not any("*.bin" in pattern or "generation" in pattern for pattern in asked["allow_patterns"])  # type: ignore[attr-defined]


def test_copies_are_whole_and_independent(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    copy_file(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_bytes(b"")
    assert (tmp_path / "b").read_bytes() == content


def test_what_makes_it_run_again(source: Path, tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "cache.json")
    before = source_digest(str(source), cache)
    (source / "model.safetensors").touch()
    assert source_digest(str(source), cache) == before
    (source / "model.safetensors").write_text("v" * 1000)
    assert source_digest(str(source), cache) != before
    assert source_digest("built-in: tiny", cache) == source_digest("org/name", cache) == ""
    assert Model(base="x").revision is None
