"""Generation with the training model's own code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.errors import UserError
from posttrain.model.lora import has_adapters
from posttrain.rollout.decoder import decoder_for
from posttrain.rollout.engine import Completion, Request, Sampling
from posttrain.rollout.schedule import Row, Schedule


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
        if not requests:
            return []
        longest = max(len(request.prompt_ids) for request in requests)
        rows = min(sampling.batch, len(requests))
        training = self.model.training
        self.model.eval()
        try:
            decoder = decoder_for(self.model, rows, longest, sampling.max_new_tokens)
            done = Schedule(decoder, requests, sampling, self.model.device).run()
        finally:
            self.model.train(training)
        return [self._completion(row, sampling) for row in done]

    @torch.no_grad()
    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> int:
        """Copies every parameter that does not already share its storage with the model's; returns the bytes moved.

        Parameters that are tied travel once, under the name that `named_parameters` gives. A model with adapters is the
        one that trains: what it would be sent is itself, with adapters and weights in one.

        Raises:
            ValueError: a parameter is unknown, tied to one that was sent, sent twice, of another shape, or missing.
        """
        if has_adapters(self.model):
            self.version += 1
            return 0
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

    def _completion(self, row: Row, sampling: Sampling) -> Completion:
        return Completion(row.ids, row.log_probs, "eos" if row.ids[-1] == sampling.eos_id else "length", self.version)

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
