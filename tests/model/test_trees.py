"""Which models take several rows in a line, found by asking them; also under transformers 4.51."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, MambaConfig, MistralConfig, PreTrainedModel

from posttrain.model import trees as module
from posttrain.model.batch import collate, token_log_probs
from posttrain.model.heads import RewardModule
from posttrain.model.packing import Packing, Row
from posttrain.model.trees import packing_of
from tests.model.conftest import FREE
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def random_model(config: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


@pytest.mark.parametrize("arch", ARCHITECTURES + WINDOWED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_these_take_them(arch: str, dtype: torch.dtype) -> None:
    model = tiny_model(arch).to(dtype)
    packing = packing_of(model)
    assert packing is not None
    assert packing.widest is None
    assert packing.masked >= packing.causal > 0
    assert packing_of(RewardModule.from_causal_lm(model, 0)) is packing, "the answer belongs to the trunk"


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(**SMALL, alibi=True),
        MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2),
    ],
    ids=lambda config: config.model_type,
)
def test_these_do_not_and_get_a_row_a_line(config: object, family: list[Row]) -> None:
    model = random_model(config)
    assert packing_of(model) is None
    batched = token_log_probs(model, collate(family, 0, packing_of(model)))
    for values, (prompt, response) in zip(batched, family, strict=True):
        if response:
            table = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
            want = table[range(len(prompt) - 1, len(prompt) + len(response) - 1), response]
            torch.testing.assert_close(values[: len(response)], want, atol=1e-4, rtol=1e-4)


def test_a_window_of_all_layers(family: list[Row]) -> None:
    sizes = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.2}
    model = random_model(MistralConfig(**sizes, sliding_window=6))
    assert packing_of(model) is not None
    together, alone = (token_log_probs(model, collate(family, 0, packing)) for packing in (FREE, None))
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_a_kernel_without_such_masks() -> None:
    model = tiny_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    assert packing_of(model) is None


def test_a_model_that_mixes_rows_is_found_out() -> None:
    model = tiny_model("llama")

    def shifted(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return output + output.roll(1, dims=1)

    model.base_model.norm.register_forward_hook(shifted)
    assert packing_of(model) is None


def test_the_question_leaves_the_model_as_it_was() -> None:
    model = tiny_model("llama")
    model.base_model.layers[1].train()
    modes = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    assert packing_of(model) is not None
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_weighs_more_in_a_narrow_model_and_without_a_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOWNESS", {"sdpa": (2.0, 1.0), "eager": (4.0, 4.0)})
    fused, plain = packing_of(tiny_model("llama")), packing_of(tiny_model("gemma2"))
    assert isinstance(fused, Packing)
    assert isinstance(plain, Packing)
    assert fused.masked == pytest.approx(2 * fused.causal)
    assert plain.masked == plain.causal > fused.masked


def test_under_transformers_4_51(transformers4: str) -> None:
    command = [transformers4, "-m", "tests.model.trees_check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = {line["arch"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == {*ARCHITECTURES, *WINDOWED}
    assert all(line["transformers"].startswith("4.51") for line in found.values())
    assert all(line["gap"] < 1e-4 for line in found.values())
    packed = {arch for arch, line in found.items() if line["packed"]}
    assert {"llama", "qwen2", "qwen3", "gemma", "gpt_neox"} <= packed
    assert not {"gpt2", "gemma2"} & packed, "one takes no such mask, the window of the other counts columns"
