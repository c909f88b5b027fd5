"""The base model `built-in: tiny`: a Llama architecture of a few million parameters, random from the seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, PreTrainedModel

from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.tiny import CONTEXT

if TYPE_CHECKING:
    from posttrain.config.schema import Model


def init_builtin(tokenizer_dir: str | Path, seed: int, settings: Model) -> PreTrainedModel:
    """A new float32 model for the tokenizer's vocabulary, on the CPU, in evaluation mode; the seed alone decides it."""
    tokenizer = load_tokenizer(Path(tokenizer_dir))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=settings.attention)
    model.generation_config = GenerationConfig()
    return model.eval()
