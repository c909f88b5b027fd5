"""A GGUF file becomes the model that it was written from: the same logits, whatever its types, heads and head."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, PreTrainedModel

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model import gguf
from posttrain.model.gguf import convert
from tests.model.gguf_file import TOKENS, Change, tiny_llama, write_gguf

IDS = [1, 5, 9, 200, 7, 33, 8, 120, 4, 77, 61, 2]
MIXED = {
    "token_embd": Kind.Q8_0,
    "output": Kind.Q8_0,
    "attn_q": Kind.Q4_1,
    "attn_k": Kind.Q4_1,
    "attn_v": Kind.Q5_0,
    "attn_output": Kind.F16,
    "ffn_down": Kind.Q4_1,
    "ffn_up": Kind.BF16,
}


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


def converted(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """The folder made from the model's GGUF file."""
    write_gguf(model, folder / "a.gguf", **options)
    target = folder / "model"
    target.mkdir()
    convert(folder / "a.gguf", target)
    return target


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kinds", [{}, MIXED], ids=["float32", "mixed"])
def test_logits_are_the_models(tied: bool, kv_heads: int, kinds: dict[str, Kind], tmp_path: Path) -> None:
    model = tiny_llama(tied, kv_heads)
    again = AutoModelForCausalLM.from_pretrained(converted(model, tmp_path, kinds=kinds))
    assert again.dtype == torch.float32
    torch.testing.assert_close(logits(again), logits(model), atol=1e-5, rtol=1e-5)
    assert (again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()) == tied


def test_heads_may_be_wider_than_their_share(tmp_path: Path) -> None:
    model = tiny_llama(head_dim=32)
    again = AutoModelForCausalLM.from_pretrained(converted(model, tmp_path))
    torch.testing.assert_close(logits(again), logits(model), atol=1e-5, rtol=1e-5)


def test_the_order_of_rotary_rows_matters(tmp_path: Path) -> None:
    """The tests above could not pass with rows left in the file's order."""
    model = tiny_llama()
    again = AutoModelForCausalLM.from_pretrained(converted(model, tmp_path, paired=False))
    assert (logits(again) - logits(model)).abs().max() > 0.1


def test_config_says_what_the_file_says(tmp_path: Path) -> None:
    folder = converted(tiny_llama(), tmp_path)
    found = json.loads((folder / "config.json").read_text())
    wanted = {"rope_theta": 700.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "vocab_size": len(TOKENS)}
    wanted |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "torch_dtype": "float32"}
    assert found | wanted == found
    assert len(load_tokenizer(folder)) == len(TOKENS)
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names  # no generation settings


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    digests = []
    for name in "ab":
        (tmp_path / name).mkdir()
        folder = converted(tiny_llama(), tmp_path / name, kinds=MIXED)
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()})
    assert digests[0] == digests[1]


def test_many_weights_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "SHARD", 100_000)
    model = tiny_llama(tied=False)
    folder = converted(model, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    parts = {path.name for path in folder.glob("*.safetensors")}
    assert parts == set(index["weight_map"].values()) and len(parts) > 2
    assert all((folder / part).stat().st_size < 110_000 for part in parts)
    assert index["metadata"]["total_size"] == 4 * model.num_parameters()
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(model))


def wide(writer: Any) -> None:
    writer.add_tensor("blk.0.attn_q.bias", np.zeros(64, dtype=np.float32))


def double(writer: Any) -> None:
    writer.add_tensor("output_norm.weight", np.zeros(64, dtype=np.float64))


def narrow(writer: Any) -> None:
    writer.add_tensor("output_norm.weight", np.zeros(32, dtype=np.float32))


NO_NORM = ("output_norm",)


@pytest.mark.parametrize(
    ("options", "change", "wanted"),
    [
        ({"arch": "qwen2"}, None, "holds a qwen2 model"),
        ({}, lambda writer: writer.add_expert_count(8), "sets llama.expert_count"),
        ({}, lambda writer: writer.add_rope_scaling_factor(4.0), "sets llama.rope.scaling.factor"),
        ({}, lambda writer: writer.add_rope_dimension_count(8), "8 of a head's 16 dimensions"),
        ({}, wide, "has a tensor blk.0.attn_q.bias"),
        ({"without": NO_NORM}, None, "lacks the tensor output_norm.weight"),
        ({"without": NO_NORM}, double, "output_norm.weight is F64"),
        ({"without": NO_NORM}, narrow, "output_norm.weight has the shape (32,), by its own settings (64,)"),
        ({"pre": "qwen2"}, None, "splitter 'qwen2'"),
    ],
)
def test_what_is_not_known_is_refused_in_one_sentence(
    options: dict[str, Any], change: Change | None, wanted: str, tmp_path: Path
) -> None:
    assert wanted in refusal(tmp_path, tiny_llama(), change=change, **options)


def test_heads_that_differ_between_layers_are_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.config.__dict__["num_key_value_heads"] = [2, 4]
    assert "llama.attention.head_count_kv is [2, 4]" in refusal(tmp_path, model, paired=False)


def refusal(folder: Path, model: PreTrainedModel, **options: Any) -> str:
    write_gguf(model, folder / "a.gguf", **options)
    with pytest.raises(UserError) as caught:
        convert(folder / "a.gguf", folder)
    assert str(folder / "a.gguf") in str(caught.value) and len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.3, 0.99])
def test_a_file_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(tiny_llama(), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(UserError, match=r"a\.gguf is not a whole GGUF file"):
        convert(path, tmp_path)


@pytest.mark.parametrize("part", [b"GGUF", "Ġthe".encode()])
def test_a_damaged_file_is_refused(part: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(tiny_llama(), path)
    path.write_bytes(path.read_bytes().replace(part, b"\xff" * len(part)))
    with pytest.raises(UserError, match=r"a\.gguf is not a whole GGUF file"):
        convert(path, tmp_path)


def test_the_conversion_needs_no_torch(tmp_path: Path) -> None:
    """It runs on the host, where torch is slow to import and may be missing."""
    write_gguf(tiny_llama(), tmp_path / "a.gguf")
    code = (
        "import sys; from pathlib import Path; from posttrain.stages import fetch_model; "
        "fetch_model.gguf.convert(Path('a.gguf'), Path()); print({'torch', 'transformers'} & sys.modules.keys())"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr[-2000:]
