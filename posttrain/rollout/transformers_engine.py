"""Generation with the training model's own code: batches over a key-value cache, rows retired as they finish."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from posttrain.errors import UserError
from posttrain.model.batch import accepts, positions
from posttrain.model.layers import logits_at
from posttrain.model.logits import best, draw
from posttrain.rollout.engine import Completion, Request, Sampling


class TransformersEngine:
    """Generates with a transformers model in this process.

    Give it the model that trains (weights are then shared, and a sync moves nothing) or a copy of its own.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.version = 0

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """See `GenerationEngine.generate`. Rows of similar prompt length are generated together.

        A row's logits may differ in their last bits with the batch it is in, as sums are taken in another order; so a
        token can differ only where its uniform number falls on a boundary to within that rounding, or where the two
        best logits are that close under `greedy`.

        Raises:
            UserError: a prompt and its new tokens do not fit into the model's context.
        """
        self._check_room(requests, sampling)
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), i))
        results: list[Completion | None] = [None] * len(requests)
        training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(order), sampling.batch):
                chosen = order[start : start + sampling.batch]
                rows = _Rows(self.model, [requests[i] for i in chosen], sampling)
                for index, completion in zip(chosen, rows.run(self.version), strict=True):
                    results[index] = completion
        finally:
            self.model.train(training)
        return [completion for completion in results if completion is not None]

    @torch.no_grad()
    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> int:
        """Copies every parameter that does not already share its storage with the model's; returns the bytes moved.

        Parameters that are tied travel once, under the name that `named_parameters` gives.

        Raises:
            ValueError: a parameter is unknown, tied to one that was sent, sent twice, of another shape, or missing.
        """
        own = dict(self.model.named_parameters())
        tied = dict(self.model.named_parameters(remove_duplicate=False)).keys() - own.keys()
        waiting = set(own)
        moved = 0
        for name, tensor in stream:
            if name not in waiting:
                fault = "sent twice" if name in own else "tied to another" if name in tied else "unknown to the engine"
                raise ValueError(f"weight sync: parameter {name} is {fault}")
            waiting.remove(name)
            target = own[name]
            if target.shape != tensor.shape:
                raise ValueError(f"weight sync: {name} is {tuple(tensor.shape)}, not {tuple(target.shape)}")
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
                moved += target.nbytes
        if waiting:
            raise ValueError(f"weight sync: parameter {min(waiting)} is missing ({len(waiting)} in all)")
        self.version += 1
        return moved

    def _check_room(self, requests: Sequence[Request], sampling: Sampling) -> None:
        room = getattr(self.model.config, "max_position_embeddings", None)
        for index, request in enumerate(requests):
            length = len(request.prompt_ids)
            if length == 0:
                raise ValueError(f"request {index}: the prompt has no token")
            if room is not None and length + sampling.max_new_tokens > room:
                raise UserError(
                    f"a prompt of {length} tokens and max_new_tokens {sampling.max_new_tokens} do not fit into the"
                    f" model's context of {room} tokens; lower max_new_tokens or data.max_prompt_tokens"
                )


class _Rows:
    """One batch on its way: the live rows' mask, cache and last tokens, and what every row has given so far."""

    def __init__(self, model: PreTrainedModel, requests: Sequence[Request], sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.device = model.device
        width = max(len(request.prompt_ids) for request in requests)
        inputs = torch.zeros(len(requests), width, dtype=torch.int64)
        mask = torch.zeros_like(inputs)
        for line, request in enumerate(requests):
            inputs[line, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[line, width - len(request.prompt_ids) :] = 1
        self.inputs, self.mask = inputs.to(self.device), mask.to(self.device)
        self.positions = positions(self.mask)
        self.uniforms = _uniforms(requests, sampling).to(self.device)
        self.cache = _new_cache(model, width + sampling.max_new_tokens)
        self.live = torch.arange(len(requests), device=self.device)
        self.ids = torch.zeros(len(requests), sampling.max_new_tokens, dtype=torch.int64, device=self.device)
        self.log_probs = torch.zeros(self.ids.shape, device=self.device)
        self.lengths = torch.full((len(requests),), sampling.max_new_tokens, device=self.device)
        self.ended = torch.zeros(len(requests), dtype=torch.bool, device=self.device)

    def run(self, version: int) -> list[Completion]:
        for step in range(self.sampling.max_new_tokens):
            tokens = self._next(step)
            self.ids[self.live, step] = tokens
            ending = tokens == self.sampling.eos_id
            self.lengths[self.live[ending]] = step + 1
            self.ended[self.live[ending]] = True
            if ending.all():
                break
            self._advance(tokens, ~ending)
        columns = (self.ids, self.log_probs, self.lengths, self.ended)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [Completion(ids[:n], logs[:n], "eos" if ended else "length", version) for ids, logs, n, ended in rows]

    def _next(self, step: int) -> Tensor:
        logits = self._last_logits()
        if self.sampling.greedy:
            tokens, log_probs = best(logits, self.sampling.temperature)
        else:
            tokens, log_probs = draw(logits, self.uniforms[self.live, step], self.sampling.temperature)
        self.log_probs[self.live, step] = log_probs
        return tokens

    def _last_logits(self) -> Tensor:
        inputs: dict[str, Any] = {
            "input_ids": self.inputs,
            "attention_mask": self.mask,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if accepts(self.model, "position_ids"):
            inputs["position_ids"] = self.positions
        rows = torch.arange(len(self.inputs), device=self.device)
        with logits_at(self.model, rows, torch.full_like(rows, self.inputs.shape[1] - 1)):
            output = self.model(**inputs)
        self.cache = output.past_key_values
        logits: Tensor = output.logits[0]
        return logits

    def _advance(self, tokens: Tensor, going: Tensor) -> None:
        """Makes the sampled tokens the next inputs, and drops the rows that have ended from all tensors."""
        positions = self.positions[:, -1:] + 1
        if not going.all():
            keep = going.nonzero()[:, 0]
            self.cache = _select(self.cache, keep)
            self.live, self.mask = self.live[keep], self.mask[keep]
            tokens, positions = tokens[keep], positions[keep]
        self.inputs, self.positions = tokens[:, None], positions
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)


def _uniforms(requests: Sequence[Request], sampling: Sampling) -> Tensor:
    """[B, max_new_tokens] numbers in [0, 1), each row from its own seed; drawn on the CPU, so that devices agree."""
    rows = [
        torch.rand(sampling.max_new_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(request.seed))
        for request in requests
    ]
    return torch.stack(rows)


def _new_cache(model: PreTrainedModel, tokens: int) -> Any:
    """An empty cache, with a layer of the right kind for each layer of the model, for rows of at most `tokens` tokens.

    transformers 4.51 knows one kind of layer, and a few of its models return tuples of tensors instead (None asks so).
    """
    if "config" in inspect.signature(DynamicCache.__init__).parameters:
        return DynamicCache(config=model.config)
    config: Any = model.config
    if getattr(config, "cache_implementation", None) == "hybrid" and tokens > config.sliding_window:
        raise UserError(
            f"transformers {transformers.__version__} cannot generate {tokens} tokens with a {config.model_type} model,"
            f" whose window is {config.sliding_window}; use transformers 5, or lower max_new_tokens"
        )
    return DynamicCache() if model._supports_cache_class else None


def _select(cache: Any, keep: Tensor) -> Any:
    if isinstance(cache, tuple):
        return tuple(tuple(part[keep] for part in layer) for layer in cache)
    cache.reorder_cache(keep)
    return cache
