"""Exported folders give the same logits, scores and ids when transformers reads them back, 5 and 4.51 alike."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig, PreTrainedModel

from posttrain.config.schema import Model
from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.batch import Row, collate
from posttrain.model.export import export_model, export_reward_module, readable_config
from posttrain.model.heads import RewardModule
from posttrain.model.load import load_reward_module
from tests.model.read_back import IDS, TEXT, read
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_config, tiny_model, tiny_tokenizer_dir

ALL = ARCHITECTURES + WINDOWED


def own_logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].float()


def own_score(module: RewardModule) -> torch.Tensor:
    with torch.no_grad():
        return module(collate([(IDS[:3], IDS[3:])], 0))


def scaled_rope() -> PreTrainedModel:
    """Llama 3's stretched rotary positions, on a model whose base is not transformers' default."""
    config = LlamaConfig.from_dict(tiny_config("llama").to_dict())
    parameters = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": 700.0,
        "original_max_position_embeddings": 32,
        **parameters,
    }
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def windowed_by_layer_types() -> PreTrainedModel:
    """A Gemma 3 whose configuration says which layer has a window in the way of transformers 5 alone."""
    config = tiny_config("gemma3")
    delattr(config, "sliding_window_pattern")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("arch", ALL)
def test_a_model_reads_back_the_same(arch: str, tmp_path: Path) -> None:
    model, tokenizer = tiny_model(arch), tiny_tokenizer_dir(tmp_path)
    export_model(model, tokenizer, tmp_path / "out")
    attention = {"attn_implementation": "eager"} if arch == "gemma2" else {}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", **attention)
    torch.testing.assert_close(own_logits(again), own_logits(model), atol=1e-5, rtol=1e-5)
    assert read(str(tmp_path / "out"))["ids"] == load_tokenizer(tokenizer).fast.encode(TEXT).ids


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_reward_model_reads_back_the_same(arch: str, tmp_path: Path, settings: Model, rows: list[Row]) -> None:
    module = RewardModule.from_causal_lm(tiny_model(arch), seed=1)
    export_reward_module(module, tiny_tokenizer_dir(tmp_path), tmp_path / "out")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (theirs.config.num_labels, theirs.score.bias) == (1, None)
    ours = load_reward_module(tmp_path / "out", settings, "cpu")
    batch = collate(rows, 0)
    torch.testing.assert_close(ours(batch), module(batch))
    for row, score in zip(rows[:2], module(batch), strict=False):
        alone = theirs(torch.tensor([[*row[0], *row[1]]])).logits[0, 0]
        torch.testing.assert_close(alone, score, atol=1e-6, rtol=1e-5)


def test_padding_equal_to_eos_is_left_out_of_a_reward_model(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer_dir(tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = tokenizer / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "<|eos|>"}))
    module = RewardModule.from_causal_lm(tiny_model("llama"), seed=1)
    export_reward_module(module, tokenizer, tmp_path / "out")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert theirs.config.pad_token_id is None
    torch.testing.assert_close(theirs(torch.tensor([IDS])).logits[0], own_score(module), atol=1e-6, rtol=1e-5)


def test_equal_weights_give_equal_bytes_without_paths(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer_dir(tmp_path)
    digests = []
    for name in ("one", "two"):
        model = tiny_model("qwen2")
        model.config._name_or_path = str(tmp_path / name)
        export_model(model, tokenizer, tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
        assert all(str(tmp_path).encode() not in path.read_bytes() for path in files)
    assert digests[0] == digests[1]
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= digests[0].keys()


def test_generation_settings_are_token_ids_alone(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.generation_config.temperature = 0.3
    model.generation_config.do_sample = True
    export_model(model, tiny_tokenizer_dir(tmp_path), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written.keys() == {"bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"}


@pytest.mark.parametrize("base", [7, [7, 8], None, -1])
def test_generation_ends_with_the_tokenizers_eos_whatever_the_base_said(base: Any, tmp_path: Path) -> None:
    model = tiny_model("llama")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, base if name == "eos_token_id" or not isinstance(base, list) else 7)
    export_model(model, tiny_tokenizer_dir(tmp_path), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found = again.generation_config
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (1, 2, 0)
    assert (again.config.bos_token_id, again.config.eos_token_id) == (1, 2)


def test_dtype_is_kept_and_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = tiny_model("llama").bfloat16()
    export_model(model, tiny_tokenizer_dir(tmp_path), tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert again.dtype == torch.bfloat16
    # Other readers than transformers know the older name alone.
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 2 * model.num_parameters() + 4096


def test_rope_under_both_names() -> None:
    flat = readable_config({"model_type": "llama", "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}})
    assert flat["rope_theta"] == 1e5
    assert "rope_scaling" not in flat
    layers = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    nested = readable_config(
        {
            "model_type": "gemma3_text",
            "rope_parameters": layers,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        }
    )
    assert (nested["rope_theta"], nested["rope_local_base_freq"], nested["sliding_window_pattern"]) == (1e6, 1e4, 3)


def test_a_tokenizer_class_of_transformers_5_gets_its_older_name(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer_dir(tmp_path)
    path = tokenizer / "tokenizer_config.json"
    newer = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "extra_special_tokens": ["<|x|>"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | newer))
    export_model(tiny_model("llama"), tokenizer, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert written["additional_special_tokens"] == ["<|x|>"]
    assert not {"extra_special_tokens", "backend"} & written.keys()


def test_transformers_4_51_reads_the_same(tmp_path: Path, transformers4: str) -> None:
    tokenizer = tiny_tokenizer_dir(tmp_path)
    models = {arch: tiny_model(arch) for arch in ALL if arch != "gemma2"}
    models |= {"scaled": scaled_rope(), "layers": windowed_by_layer_types(), "half": tiny_model("gpt_neox").bfloat16()}
    want = {}
    for name, model in models.items():
        export_model(model, tokenizer, tmp_path / name)
        want[name] = own_logits(model)
    for arch in ARCHITECTURES:
        module = RewardModule.from_causal_lm(models[arch], seed=1)
        export_reward_module(module, tokenizer, tmp_path / f"{arch}-reward")
        want[f"{arch}-reward"] = own_score(module)
    script = Path(__file__).parent / "read_back.py"
    command = [transformers4, str(script), *(str(tmp_path / name) for name in want)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"transformers"')]
    assert len(lines) == len(want)
    for found, (name, logits) in zip(lines, want.items(), strict=True):
        assert found["transformers"].startswith("4.51.")
        half = name == "half"
        assert found["dtype"] == ("torch.bfloat16" if half else "torch.float32")
        assert found["ids"] == load_tokenizer(tokenizer).fast.encode(TEXT).ids
        tolerance = 0.05 if half else 1e-5  # kernels round half precision in another order
        torch.testing.assert_close(torch.tensor(found["logits"]), logits, atol=tolerance, rtol=tolerance)
