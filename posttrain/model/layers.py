"""The decoder layers of any architecture: finding them, training only the last ones, leaving the first ones out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.errors import UserError


@dataclass(frozen=True)
class Recall:
    """What the first `depth` layers have made of a batch: hidden [B, T, H], zeros at padding.

    `as_tuple`: whether a layer of this architecture returns its hidden states in a tuple.
    """

    hidden: Tensor
    depth: int
    as_tuple: bool


def trunk_of(model: nn.Module) -> PreTrainedModel:
    """The part of a language model, reward or value module that turns ids into hidden states."""
    trunk = getattr(model, "trunk", None) or getattr(model, "base_model", model)
    assert isinstance(trunk, PreTrainedModel)
    return trunk


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The model's list of decoder layers.

    Raises:
        UserError: no list of modules has as many entries as the model's configuration has layers.
    """
    found = _layer_list(model)
    if found is None:
        family = trunk_of(model).config.model_type
        raise UserError(f"train_layers: the layers of {family} models are not in one list; leave it out")
    return found


def train_last(model: nn.Module, count: int | None, heads: Sequence[nn.Module] = ()) -> int:
    """Lets only the last `count` layers train, with what the trunk runs after them (a norm) and `heads`.

    Embeddings and the output head stay as they are. None lets everything train. Returns the number of frozen layers.

    Raises:
        UserError: the model has fewer layers.
    """
    if count is None:
        return 0
    layers = decoder_layers(model)
    frozen = len(layers) - count
    if frozen < 0:
        raise UserError(f"train_layers is {count}, the model has {len(layers)} layers; lower it, or leave it out")
    chosen = [*layers[frozen:], *_after(trunk_of(model), layers), *heads]
    training = {id(parameter) for part in chosen for parameter in part.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in training)
    return frozen


def share_first(owner: nn.Module, other: nn.Module, depth: int) -> bool:
    """Whether `other` begins with the embeddings and `depth` layers of `owner`; it then uses their memory."""
    ours, theirs = _first(owner, depth), _first(other, depth)
    if ours.keys() != theirs.keys():
        return False
    if any(ours[name].dtype != theirs[name].dtype or not torch.equal(ours[name], theirs[name]) for name in ours):
        return False
    for name, parameter in theirs.items():
        parameter.data = ours[name].data
    return True


def layer_digests(model: nn.Module) -> list[str]:
    """For each decoder layer a digest of the parameters that decide what comes out of it: embeddings to that layer.

    Models whose digests agree at a layer compute the same up to there. Empty where the layers are not in one list.
    """
    layers, state = _layer_list(model), hashlib.sha256()
    found: list[str] = []
    if layers is None:
        return found
    _add(state, _first(model, 0).items())
    for layer in layers:
        _add(state, layer.named_parameters())
        found.append(state.hexdigest())
    return found


@contextmanager
def recalled(model: nn.Module, recall: Recall | None) -> Iterator[None]:
    """Within, the model's first layers do no work and give what `recall` holds, whatever they are asked."""
    if recall is None:
        yield
        return
    result = (recall.hidden,) if recall.as_tuple else recall.hidden

    def recall_it(*_: Any, **__: Any) -> Any:
        return result

    skipped = decoder_layers(model)[: recall.depth]
    for layer in skipped:
        layer.forward = recall_it  # hides the class's own; a module put in its place would lack its attributes
    try:
        yield
    finally:
        for layer in skipped:
            del layer.forward


@contextmanager
def logits_at(model: nn.Module, places: Tensor) -> Iterator[list[Tensor]]:
    """Within, a causal language model computes logits [1, M, V] at `places` [M] alone, counted line after line.

    The hidden states are picked in front of the output head: what a model does with its logits afterwards (a cap, a
    scale) it does as ever. Picked states lie in one piece, so the head is one matrix product; a slice of a padded batch
    would be multiplied row by row with as many copies of the vocabulary's matrix. Gives a list, to which each forward
    pass adds the states that it picked, [M, H].
    """
    assert isinstance(model, PreTrainedModel)
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    picked: list[Tensor] = []

    def pick(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        picked.append(inputs[0].flatten(0, 1).index_select(0, places))
        return (picked[-1][None], *inputs[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield picked
    finally:
        handle.remove()


def _layer_list(model: nn.Module) -> nn.ModuleList | None:
    trunk = trunk_of(model)
    lists = (part for part in trunk.modules() if isinstance(part, nn.ModuleList))
    return next((part for part in lists if len(part) == trunk.config.num_hidden_layers), None)


def _after(trunk: PreTrainedModel, layers: nn.ModuleList) -> list[nn.Module]:
    """The modules with parameters that the trunk runs after its last layer, seen on a pass of one token."""
    inside = set(layers.modules())
    order: list[nn.Module] = []
    leaves = [m for m in trunk.modules() if m not in inside and any(True for _ in m.parameters(recurse=False))]
    watched = [*leaves, layers[-1]]
    handles = [m.register_forward_pre_hook(lambda module, _: order.append(module)) for m in watched]
    try:
        with torch.no_grad():
            trunk(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=trunk.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return order[order.index(layers[-1]) + 1 :]


def _first(model: nn.Module, depth: int) -> dict[str, nn.Parameter]:
    """The parameters that decide what comes out of layer `depth`: the trunk's, less later layers and what follows."""
    trunk, layers = trunk_of(model), decoder_layers(model)
    later = {id(p) for part in (*layers[depth:], *_after(trunk, layers)) for p in part.parameters()}
    return {name: p for name, p in trunk.named_parameters() if id(p) not in later}


def _add(state: Any, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Feeds names, types and bytes of `parameters` to a digest."""
    for name, parameter in parameters:
        state.update(f"{name} {parameter.dtype} {list(parameter.shape)}".encode())
        state.update(parameter.detach().cpu().flatten().view(torch.uint8).numpy())
