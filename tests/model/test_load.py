"""Loading: offline folders, refusals that say what to do, and the built-in model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.config.schema import Model
from posttrain.errors import UserError
from posttrain.model.batch import collate, token_log_probs
from posttrain.model.builtin import init_builtin
from posttrain.model.export import export_model
from posttrain.model.load import check_attention, load_causal_lm, load_reward_module
from tests.model.tiny import tiny_model, tiny_tokenizer_dir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_model(tiny_model("llama"), tiny_tokenizer_dir(tmp_path), tmp_path / "model")
    return tmp_path / "model"


def test_dtype_attention_and_mode(folder: Path) -> None:
    model = load_causal_lm(folder, Model(base="x", dtype="bfloat16", attention="eager"), "cpu")
    assert (model.dtype, model.config._attn_implementation, model.training) == (torch.bfloat16, "eager", False)


def test_the_folders_sampling_settings_are_dropped(folder: Path, settings: Model) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.1, "top_k": 3, "max_length": 5}))
    generation = load_causal_lm(folder, settings, "cpu").generation_config
    assert not {"do_sample", "temperature", "top_k", "max_length"} & generation.to_diff_dict().keys()


def test_a_folder_without_a_model_is_refused(tmp_path: Path, folder: Path, settings: Model) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        load_causal_lm(tmp_path, settings, "cpu")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        load_causal_lm(folder, settings, "cpu")


def test_missing_and_broken_weights_are_refused(folder: Path, settings: Model) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.norm\.weight"):
        load_causal_lm(folder, settings, "cpu")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        load_causal_lm(folder, settings, "cpu")


def test_a_language_model_is_no_reward_model(folder: Path, settings: Model) -> None:
    with pytest.raises(UserError, match="score"):
        load_reward_module(folder, settings, "cpu")


def test_code_in_a_folder_runs_only_if_allowed(folder: Path, settings: Model) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="ours", auto_map={"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "m.py").write_text("raise SystemExit('this code ran')")
    with pytest.raises(UserError, match="trust_remote_code"):
        load_causal_lm(folder, settings, "cpu")


def test_flash_attention_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    flash = Model(base="x", attention="flash_attention_2", dtype="bfloat16")
    with pytest.raises(UserError, match="CUDA"):
        check_attention(flash, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="flash-attn is not installed"):
        check_attention(flash, "cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_attention(flash, "cuda")
    with pytest.raises(UserError, match="float32"):
        check_attention(Model(base="x", attention="flash_attention_2"), "cuda")


def test_sdpa_is_refused_where_it_would_leave_out_the_cap(tmp_path: Path, settings: Model) -> None:
    export_model(tiny_model("gemma2"), tiny_tokenizer_dir(tmp_path), tmp_path / "model")
    with pytest.raises(UserError, match="eager"):
        load_causal_lm(tmp_path / "model", settings, "cpu")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 299}, "other shapes than config.json says"),
        ({"hidden_size": 64}, "other shapes than config.json says"),
        ({"num_hidden_layers": 3}, "the weights lack model.layers.2"),
        ({"pad_token_id": 9999}, "choose another base"),
        ({"model_type": "no-such"}, "choose another base"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "choose another base"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(
    folder: Path, settings: Model, changes: dict[str, Any], said: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=said) as caught:
        load_causal_lm(folder, settings, "cpu")
    assert str(folder) in str(caught.value) and len(str(caught.value)) < len(str(folder)) + 350


def test_a_token_of_the_text_with_the_id_of_padding_is_trained(folder: Path, settings: Model) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": 2, "tie_word_embeddings": False}))
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = load_causal_lm(folder, settings, "cpu")
    token_log_probs(model, collate([([1, 2, 7], [8, 9])], pad_id=2)).sum().backward()
    assert model.get_input_embeddings().weight.grad[2].abs().max() > 1e-6


def test_builtin_comes_from_the_seed_and_fits_the_tokenizer(tmp_path: Path, settings: Model) -> None:
    tokenizer = tiny_tokenizer_dir(tmp_path)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = init_builtin(tokenizer, 1, settings)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, other = init_builtin(tokenizer, 1, settings), init_builtin(tokenizer, 2, settings)
    for name, parameter in first.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name])
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.dtype == torch.float32
    assert first.config.eos_token_id == 2
    assert 2e6 < first.num_parameters() < 6e6
    assert first.config.vocab_size <= 300
