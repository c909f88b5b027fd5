"""The decoders and their attention, each against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from posttrain.rollout import decoder as decoders
from posttrain.rollout.attention import decode_attention, folded_attention
from posttrain.rollout.decoder import PREFILL_TOKENS, SlotDecoder, decoder_for, prefill_parts
from posttrain.rollout.plain import PlainDecoder
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model
from tests.rollout.test_transformers_engine import ending_model, greedy_by_transformers, requests, sampling

ALL = ARCHITECTURES + WINDOWED


def recurrent_model() -> PreTrainedModel:
    """Convolutions with a state, and one layer of attention."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        layer_types=["conv", "full_attention"],
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Lfm2ForCausalLM(config).eval()


@pytest.mark.parametrize("arch", ALL)
def test_all_known_architectures_decode_in_slots(arch: str) -> None:
    assert isinstance(decoder_for(tiny_model(arch), 4, 10, 10), SlotDecoder)


@pytest.mark.parametrize("arch", ["gpt2", "llama", "gemma2", "gemma3"])
def test_both_decoders_give_the_same(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = TransformersEngine(ending_model(arch)), [*requests(), *requests()[3:6]]
    slots = engine.generate(asked, sampling(batch=5))
    monkeypatch.setattr(decoders, "attention_windows", lambda model, tokens: None)
    plain = engine.generate(asked, sampling(batch=5))
    assert [c.ids for c in plain] == [c.ids for c in slots]
    for one, two in zip(plain, slots, strict=True):
        assert one.log_probs == pytest.approx(two.log_probs, abs=1e-4)


def test_a_recurrent_model_decodes_over_its_own_cache() -> None:
    model = recurrent_model()
    assert isinstance(decoder_for(model, 4, 10, 10), PlainDecoder)
    asked = requests((5, 1, 9, 3))
    completions = TransformersEngine(model).generate(asked, sampling(greedy=True, batch=3))
    for request, completion in zip(asked, completions, strict=True):
        assert completion.ids == greedy_by_transformers(model, request)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 4, 6])
def test_decode_attention_is_transformers_sdpa(heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups = heads // 2  # type: ignore[assignment]
    query = torch.randn(3, 1, heads, 8, dtype=dtype).transpose(1, 2)
    key, value = torch.randn(2, 3, 2, 20, 8, dtype=dtype)[..., 5:, :]
    mask = torch.zeros(3, 1, 1, 20, dtype=dtype)
    mask[1, ..., :9] = -torch.inf
    ours, _ = decode_attention(module, query, key, value, mask, scaling=0.3, use_cache=True)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask[..., 5:], scaling=0.3)
    torch.testing.assert_close(ours, theirs)


def test_the_models_attention_is_put_back() -> None:
    model = tiny_model("llama")

    def fails() -> None:
        with folded_attention(model):
            assert model.config._attn_implementation != "sdpa"
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert model.config._attn_implementation == "sdpa"


def test_prompts_are_read_with_little_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 65, (64,), generator=generator).tolist()
    prompts = [(place, *[0] * (length - 1)) for place, length in enumerate(lengths)]
    parts = list(prefill_parts(prompts))
    assert sorted(prompt for part in parts for prompt in part) == sorted(prompts)
    padded = sum(len(part) * max(map(len, part)) for part in parts)
    assert padded < 1.15 * sum(lengths)
    assert len(parts) < 16
    assert list(prefill_parts([])) == []
    long = [(place, *[0] * PREFILL_TOKENS) for place in range(2)]
    assert list(prefill_parts(long)) == [[long[0]], [long[1]]]


def test_right_padding_of_prompts_changes_nothing() -> None:
    model: Any = tiny_model("gpt2")
    prompts = [tuple(range(3, 3 + length)) for length in (18, 17, 16)]
    with torch.no_grad():
        logits = decoder_for(model, 4, 10, 10).prefill(prompts)
        for row, prompt in zip(logits, prompts, strict=True):
            torch.testing.assert_close(row, model(torch.tensor([prompt])).logits[0, -1], rtol=1e-4, atol=1e-4)
