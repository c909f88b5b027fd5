"""Low-rank adapters on the linear layers of a trunk (LoRA, arXiv:2106.09685): y = W x + alpha / rank B A x.

peft puts them into the model in place: it keeps its class, its layers and its output head, and gains the parameters A
[rank, in] and B [out, rank] of each layer. B is zero at first, so a fresh adapter changes nothing.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from posttrain.errors import UserError
from posttrain.model.layers import trunk_of

if TYPE_CHECKING:
    from posttrain.config.sections import Lora

M = TypeVar("M", bound=nn.Module)

ADAPTER = "default"


def add_adapters(model: nn.Module, settings: Lora, seed: int, heads: Sequence[nn.Module] = ()) -> None:
    """Gives the targeted layers adapters, drawn from `seed` alone; only these and `heads` train from now on.

    The adapters have the precision of their layers, which stay as they are.

    Raises:
        UserError: a target is no linear layer of the trunk, or one that peft has no such adapters for.
    """
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _inject(trunk_of(model), settings)
    for head in heads:
        head.requires_grad_(True)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within, the model is what it was before it had adapters; nothing happens to one that has none."""
    layers = _adapted(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def has_adapters(model: nn.Module) -> bool:
    """Whether `add_adapters` was called on the model."""
    return bool(_adapted(model))


def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter under the name that it has without adapters, merged with its own; one at a time, tied ones once.

    Only merged ones take memory; all others are the model's own.
    """
    layers = {id(layer.base_layer.weight): layer for layer in _adapted(model)}
    adapters = {id(part.weight) for layer in layers.values() for part in _parts(layer)}
    for name, parameter in model.named_parameters():
        if id(parameter) in adapters:
            continue
        layer = layers.get(id(parameter))
        merged = parameter.detach() if layer is None else merged_weight(layer)
        yield name.replace(".base_layer.", "."), merged


def without_adapters(model: M) -> M:
    """The model itself where it has no adapters, else one of the same class whose weights hold what they do.

    It shares all memory but that of the merged weights.
    """
    layers = _adapted(model)
    if not layers:
        return model
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for layer in layers:
        memo[id(layer.base_layer.weight)] = nn.Parameter(merged_weight(layer), requires_grad=False)
        memo[id(layer)] = copy.deepcopy(layer.base_layer, memo)
    return copy.deepcopy(model, memo)


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """W + alpha / rank B A of an adapted layer in W's shape and precision; added in float32 at least, rounded once."""
    weight, (a, b) = layer.base_layer.weight, _parts(layer)
    precise = torch.promote_types(weight.dtype, torch.float32)
    change = layer.scaling[ADAPTER] * (b.weight.to(precise) @ a.weight.to(precise))
    merged: Tensor = weight.to(precise) + (change.T if layer.fan_in_fan_out else change)
    return merged.to(weight.dtype)


def _inject(trunk: PreTrainedModel, settings: Lora) -> None:
    from peft import LoraConfig, inject_adapter_in_model  # half a second that other trainings need not wait

    targets = _targets(trunk, settings)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number
        target_modules=targets,
        fan_in_fan_out=all(isinstance(trunk.get_submodule(name), Conv1D) for name in targets),
    )
    try:
        inject_adapter_in_model(config, trunk, ADAPTER)
    except ValueError as error:
        raise UserError(f"lora.targets: {str(error).split('. ')[0]}; name other layers") from error
    if len(_adapted(trunk)) != len(targets):  # peft takes the names of some shared experts for those of all experts
        kind = trunk.config.model_type
        raise UserError(f"lora.targets: adapters of the experts of {kind} models cannot be merged; name other layers")


def _targets(trunk: nn.Module, settings: Lora) -> list[str]:
    """Names of the trunk's layers that get adapters. The output head is no part of a trunk."""
    linear = [name for name, module in trunk.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    if settings.targets == "all-linear":
        return linear
    ends = {target: [name for name in linear if f".{name}".endswith(f".{target}")] for target in settings.targets}
    for target, found in ends.items():
        if not found:
            known = linear if "." in target else {name.rpartition(".")[2]: None for name in linear}
            near = ", ".join(difflib.get_close_matches(target, known, 3, cutoff=0.0))
            raise UserError(f"lora.targets: this model has no linear layer {target!r} below its head; name one: {near}")
    chosen = {name for found in ends.values() for name in found}
    return [name for name in linear if name in chosen]


def _adapted(model: nn.Module) -> list[Any]:
    """The layers that peft has put in the place of linear ones."""
    return [module for module in model.modules() if hasattr(module, "lora_A")]


def _parts(layer: Any) -> tuple[nn.Linear, nn.Linear]:
    return layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
