"""A GGUF file of the Llama architecture as a model folder in transformers' form, float32.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It keeps the rows of q and k in another order:
the two rows of each rotary pair side by side, where transformers has all first rows of a head, then the second ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from posttrain.data.gguf_tokenizer import write_tokenizer
from posttrain.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

Array = np.ndarray[Any, np.dtype[np.float32]]

ARCHITECTURE = "llama"
# Keys of the architecture that are read, or that repeat what the tensors' shapes say. Any other one changes the model
# in a way that is not done here.
KNOWN = {
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "vocab_size",
}
OTHER_FORM = "give this model as a folder in transformers' form"
# Bytes of one file of weights: what is held in memory, twice.
SHARD = 1 << 30


class _Facts(dict[str, Any]):
    """The file's metadata by key."""

    def __init__(self, file: Path, reader: GGUFReader) -> None:
        super().__init__((name, field.contents()) for name, field in reader.fields.items())
        self.file = file

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{self.file} has no {key}; choose a GGUF file with a whole language model and its tokenizer")

    def count(self, key: str, default: int | None = None) -> int:
        """A number of the architecture's that holds for all layers."""
        name = f"{ARCHITECTURE}.{key}"
        value = self[name] if default is None else self.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise UserError(f"{self.file}: {name} is {value!r}, and one number for all layers is known; {OTHER_FORM}")
        return value


def convert(file: Path, folder: Path) -> None:
    """Write config.json, the dequantised weights and the tokenizer into `folder`; the same bytes each time.

    No generation settings are written. Memory: about twice the weights in float32, at most twice `SHARD`.

    Raises:
        UserError: no whole GGUF file, another architecture, or a part of it that is not known here.
    """
    facts, tensors = _read(file)
    config = _config(facts, tied="output.weight" not in tensors)
    ids = write_tokenizer(facts, str(file), folder)
    _write_json(folder / "config.json", {**config, **ids})
    _save(_weights(tensors, config, file), folder)


def _read(file: Path) -> tuple[_Facts, dict[str, ReaderTensor]]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        facts = _Facts(file, reader)
    except (ValueError, IndexError):  # what the reader makes of a file that is cut off or damaged
        raise UserError(f"{file} is not a whole GGUF file; fetch it again") from None
    return facts, {tensor.name: tensor for tensor in reader.tensors}


def _config(facts: _Facts, tied: bool) -> dict[str, Any]:
    """config.json's content (less the token ids) under the names of transformers 4, which 5 reads as well."""
    architecture = facts["general.architecture"]
    if architecture != ARCHITECTURE:
        raise UserError(f"{facts.file} holds a {architecture} model, and only {ARCHITECTURE} is known; {OTHER_FORM}")
    known = {f"{ARCHITECTURE}.{name}" for name in KNOWN}
    strange = [key for key in facts if key.startswith(f"{ARCHITECTURE}.") and key not in known]
    if strange:
        raise UserError(f"{facts.file} sets {strange[0]}, which the conversion does not know; {OTHER_FORM}")
    width, heads = facts.count("embedding_length"), facts.count("attention.head_count")
    head = facts.count("attention.key_length", width // heads)
    turned = facts.count("rope.dimension_count", head)
    if turned != head:
        raise UserError(f"{facts.file} gives positions to {turned} of a head's {head} dimensions only; {OTHER_FORM}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": facts.count("feed_forward_length"),
        "num_hidden_layers": facts.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.count("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": facts.count("context_length"),
        "rms_norm_eps": _shortest(facts[f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(facts.get(f"{ARCHITECTURE}.rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    }


def _shortest(value: float) -> float:
    """The number that a person wrote, of which the file keeps the nearest float32."""
    return float(str(np.float32(value)))


def _weights(tensors: dict[str, ReaderTensor], config: dict[str, Any], file: Path) -> Iterator[tuple[str, Array]]:
    """Name and values of each of transformers' weights."""
    wanted = _layout(config)
    strange = sorted(tensors.keys() - wanted.keys())
    lacking = sorted(wanted.keys() - tensors.keys())
    if strange or lacking:
        fault = f"has a tensor {strange[0]}" if strange else f"lacks the tensor {lacking[0]}"
        raise UserError(f"{file} {fault}, unlike the models that the conversion knows; {OTHER_FORM}")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, (target, shape) in wanted.items():
        tensor = tensors[name]
        found = tuple(int(size) for size in reversed(tensor.shape))
        if found != shape:
            raise UserError(f"{file}: {name} has the shape {found}, by its own settings {shape}; fetch it again")
        values = _dequantised(tensor, file)
        part = name.split(".")[-2]
        yield target, _halves(values, heads[part]) if part in heads else values


def _dequantised(tensor: ReaderTensor, file: Path) -> Array:
    from gguf import dequantize

    try:
        values: Array = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        kind = tensor.tensor_type.name
        raise UserError(f"{file}: {tensor.name} is {kind}, which cannot be dequantised; choose another form") from None
    return values


def _halves(rows: Array, heads: int) -> Array:
    """Rows in transformers' order: of each head's d rows, (d/2 pairs, 2) become (2, d/2 pairs)."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _layout(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF's tensor name to transformers' weight name and shape."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    table = (config["vocab_size"], width)
    layout: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", table),
        "output_norm.weight": ("model.norm.weight", (width,)),
    }
    if not config["tie_word_embeddings"]:
        layout["output.weight"] = ("lm_head.weight", table)
    block: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_norm": ("input_layernorm", (width,)),
        "attn_q": ("self_attn.q_proj", (queries, width)),
        "attn_k": ("self_attn.k_proj", (keys, width)),
        "attn_v": ("self_attn.v_proj", (keys, width)),
        "attn_output": ("self_attn.o_proj", (width, queries)),
        "ffn_norm": ("post_attention_layernorm", (width,)),
        "ffn_gate": ("mlp.gate_proj", (inner, width)),
        "ffn_up": ("mlp.up_proj", (inner, width)),
        "ffn_down": ("mlp.down_proj", (width, inner)),
    }
    for number in range(config["num_hidden_layers"]):
        for name, (target, shape) in block.items():
            layout[f"blk.{number}.{name}.weight"] = (f"model.layers.{number}.{target}.weight", shape)
    return layout


def _save(weights: Iterable[tuple[str, Array]], folder: Path) -> None:
    """One model.safetensors; for more than SHARD bytes several, with transformers' index of them."""
    places: dict[str, str] = {}
    shard: dict[str, Array] = {}

    def write() -> None:
        file = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        shard.clear()

    total = 0
    for name, values in weights:
        if shard and sum(each.nbytes for each in shard.values()) + values.nbytes > SHARD:
            write()
        shard[name] = values
        total += values.nbytes
    write()
    if len(set(places.values())) == 1:
        (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
    else:
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
