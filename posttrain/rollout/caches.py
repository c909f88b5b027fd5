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

    None for a model that is no stack of such layers: one with recurrent states, with layers that share keys, with
    positions of its own counting, with a past of its own kind, or with code from elsewhere, which may be any of these.
    """
    known = any(kind.__module__.startswith("transformers.models.") for kind in type(model).__mro__)
    if not known or not accepts(model, "position_ids"):
        return None
    return _windows(model.config) if _caches_know_layers() else _windows_by_4(model, tokens)


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


def _windows(config: Any) -> list[int | None] | None:
    layers = DynamicCache(config=config).layers
    text = config.get_text_config()
    kinds = {cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer}
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    if chunked or len(layers) != text.num_hidden_layers or not {type(layer) for layer in layers} <= kinds:
        return None
    return [getattr(layer, "sliding_window", None) for layer in layers]


def _windows_by_4(model: PreTrainedModel, tokens: int) -> list[int | None] | None:
    """The same under transformers 4.51, whose layers leave windows to the mask."""
    config: Any = model.config
    window = getattr(config, "sliding_window", None)
    hybrid = getattr(config, "cache_implementation", None) == "hybrid"
    if hybrid or not model._supports_cache_class or (window is not None and tokens > window):
        return None
    return [None] * config.num_hidden_layers


def _caches_know_layers() -> bool:
    return "config" in inspect.signature(DynamicCache.__init__).parameters
