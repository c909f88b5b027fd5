"""Writes a Llama model of transformers as a GGUF file, by the `gguf` package and index formulas of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from tests.data.bpe import BYTES

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "1 2", "12 3", "' s", "i l", "f il", "Ġ fil", "Ġfil m")
TOKENS = (*SPECIAL, "<user>", *BYTES.values(), *("".join(merge.split(" ")) for merge in MERGES))
TYPES = (3, 3, 3, 4, *(1 for _ in TOKENS[4:]))
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Change = Callable[[gguf.GGUFWriter], None]


def tiny_llama(tied: bool = True, kv_heads: int = 2, **settings: Any) -> PreTrainedModel:
    """Random weights, wide enough that positions and heads matter; rows of whole blocks of 32 values."""
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=128,
        rope_theta=700.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def ours(name: str) -> str:
    """transformers' weight name for GGUF's tensor name."""
    if not name.startswith("blk."):
        return {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[name] + ".weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{BLOCK[part]}.weight"


def names(layers: int, tied: bool) -> list[str]:
    """GGUF's tensor names, less `.weight`."""
    return [
        *("token_embd", "output_norm", *(() if tied else ("output",))),
        *(f"blk.{layer}.{part}" for layer in range(layers) for part in BLOCK),
    ]


def pair_order(heads: int, width: int) -> list[int]:
    """Which of transformers' rows stands at each row of GGUF's q or k: of a head's rows, row j, then j + width/2."""
    half = width // 2
    return [head * width + part * half + pair for head in range(heads) for pair in range(half) for part in (0, 1)]


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    kinds: dict[str, Kind] | None = None,
    paired: bool = True,
    pre: str = "smollm",
    kind: str = "gpt2",
    arch: str = "llama",
    without: tuple[str, ...] = (),
    change: Change | None = None,
) -> None:
    """Write the file, and give the model the values that are left of its weights after quantisation.

    Args:
        kinds: the type of tensors by the last part of their name; else F32.
        paired: put the rows of q and k in GGUF's order.
        without: tensors that are left out.
        change: what else to write.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    if change is not None:
        change(writer)
    weights = dict(model.named_parameters())
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in names(config.num_hidden_layers, config.tie_word_embeddings):
        part = name.split(".")[-1]
        if name in without:
            continue
        quantised = (kinds or {}).get(part, Kind.F32)
        weight = weights[ours(name)].data
        stored = gguf.quantize(weight.numpy(), quantised)
        weight.copy_(torch.from_numpy(gguf.dequantize(stored, quantised)))
        if paired and part in heads:
            stored = stored[pair_order(heads[part], config.head_dim)]
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(stored), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
