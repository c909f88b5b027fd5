"""Tiny random models of the architectures that must work, built from their configuration classes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from posttrain.data.tokenizer import train_tokenizer

ARCHITECTURES = ("gpt2", "llama", "qwen2", "gemma", "gpt_neox")
WINDOWED = ("gemma2", "gemma3", "qwen3")
VOCABULARY = 300
CONTEXT = 128

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Wide enough that the random model's distributions are far from flat.
    "initializer_range": 0.2,
}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}


def tiny_config(arch: str, vocab: int = VOCABULARY) -> PretrainedConfig:
    """The configuration of a two-layer, 32-wide model of the architecture; Gemma 2 and 3 have a window of 8 tokens."""
    return {
        "gpt2": lambda: GPT2Config(
            vocab_size=vocab,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.2,
        ),
        "llama": lambda: LlamaConfig(vocab_size=vocab, tie_word_embeddings=True, rope_theta=500.0, **_GROUPED),
        "qwen2": lambda: Qwen2Config(vocab_size=vocab, **{k: v for k, v in _GROUPED.items() if k != "head_dim"}),
        "qwen3": lambda: Qwen3Config(vocab_size=vocab, **_GROUPED),
        "gemma": lambda: GemmaConfig(vocab_size=vocab, **_GROUPED),
        "gemma2": lambda: Gemma2Config(vocab_size=vocab, sliding_window=8, query_pre_attn_scalar=8, **_GROUPED),
        "gemma3": lambda: Gemma3TextConfig(
            vocab_size=vocab,
            sliding_window=8,
            sliding_window_pattern=2,
            query_pre_attn_scalar=8,
            rope_local_base_freq=300.0,
            **_GROUPED,
        ),
        "gpt_neox": lambda: GPTNeoXConfig(vocab_size=vocab, rotary_pct=0.5, **_COMMON),
    }[arch]()


def tiny_model(arch: str, seed: int = 0, vocab: int = VOCABULARY) -> PreTrainedModel:
    """A random causal language model, float32, in evaluation mode; the seed alone decides it."""
    config = tiny_config(arch, vocab)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # sdpa leaves out Gemma 2's cap on attention logits.
        attention = "eager" if arch == "gemma2" else "sdpa"
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.eval()


def tiny_tokenizer_dir(tmp_path: Path) -> Path:
    """A folder with a byte-level tokenizer of VOCABULARY tokens at most, in `tmp_path`/tokenizer."""
    folder = tmp_path / "tokenizer"
    words = ("the", "film", "was", "good", "and", "bad", "but", "not", "so", "long", "that", "viewer", "love", "it")
    train_tokenizer([f"{a} {b}" for a in words for b in words], VOCABULARY, folder)
    return folder
