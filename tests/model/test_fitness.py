"""Bases that could not go through all stages are refused before the first one trains."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, CTRLConfig, MambaConfig, PretrainedConfig

from posttrain.errors import UserError
from posttrain.model import fitness
from posttrain.model.fitness import check_base
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.parametrize("arch", ARCHITECTURES + WINDOWED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoders_pass(arch: str, dtype: torch.dtype) -> None:
    check_base(tiny_model(arch).to(dtype))


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(**SMALL),
        MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1),
        CTRLConfig(vocab_size=50, n_embd=32, n_layer=1, n_head=2, dff=32),
    ],
    ids=["bert", "mamba", "ctrl"],
)
def test_a_reward_model_that_could_not_be_saved_is_refused(config: PretrainedConfig) -> None:
    with pytest.raises(UserError, match=f"no classifier with one 'score' for {config.model_type}"):
        check_base(AutoModelForCausalLM.from_config(config).eval())


def test_a_model_that_sees_what_it_is_to_predict_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "classifier_of", lambda trunk: trunk)
    with pytest.raises(UserError, match="sees the tokens that it is to predict"):
        check_base(AutoModelForCausalLM.from_config(BertConfig(**SMALL, initializer_range=0.5)).eval())
