"""Which cache a model needs."""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from transformers import DynamicCache, PreTrainedModel, cache_utils

from posttrain.errors import UserError
from posttrain.model.batch import accepts


def attention_windows(model: PreTrainedModel, tokens: int) -> list[int | None] | None:
    """The window of each layer's attention (None sees the whole past), for rows of up to `tokens` tokens.

    None for a model that is no stack of such layers, or whose tokens get no positions from the caller: one with
    recurrent states, with layers that share keys, with a past of its own kind.
    """
    config: Any = model.config.get_text_config()
    if not accepts(model, "position_ids"):
        return None
    if not _caches_know_layers():
        window = getattr(config, "sliding_window", None)
        plain = model._supports_cache_class and (window is None or tokens <= window)
        return [None] * config.num_hidden_layers if plain else None
    layers = DynamicCache(config=model.config).layers
    kinds = {cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer}
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if chunked or len(layers) != config.num_hidden_layers or not {type(layer) for layer in layers} <= kinds:
        return None
    return [getattr(layer, "sliding_window", None) for layer in layers]


def own_cache(model: PreTrainedModel, tokens: int) -> Any:
    """The model's own kind of cache, empty, for rows of up to `tokens` tokens.

    transformers 4.51 knows one kind of layer, and a few of its models return tuples of tensors instead (None asks so).

    Raises:
        UserError: this version of transformers cannot generate that many tokens with the model.
    """
    if _caches_know_layers():
        return DynamicCache(config=model.config)
    config: Any = model.config
    if getattr(config, "cache_implementation", None) == "hybrid" and tokens > config.sliding_window:
        raise UserError(
            f"transformers {transformers.__version__} cannot generate {tokens} tokens with a {config.model_type} model,"
            f" whose window is {config.sliding_window}; use transformers 5, or lower max_new_tokens"
        )
    return DynamicCache() if model._supports_cache_class else None


def _caches_know_layers() -> bool:
    return "config" in inspect.signature(DynamicCache.__init__).parameters
