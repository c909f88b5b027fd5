"""Which request runs when: places are given to waiting requests as others end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.model.logits import best, draw
from posttrain.rollout.decoder import Decoder
from posttrain.rollout.engine import Request, Sampling

# Waiting requests are admitted when this share of the places is free: prompts read together cost less.
ADMIT_SHARE = 1 / 8


@dataclass
class Row:
    """What a request has given so far, and the numbers in [0, 1) that draw its tokens."""

    request: int
    uniforms: list[float]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class Schedule:
    """Takes requests from the first prefill to the last token; equal prompts are read once.

    Long prompts go first. Nothing but the requests and their order decides the order of work, so that a run that is
    repeated gives the same bytes.
    """

    def __init__(self, decoder: Decoder, requests: Sequence[Request], sampling: Sampling, device: torch.device) -> None:
        self.decoder = decoder
        self.requests = requests
        self.sampling = sampling
        self.device = device
        self.prompts = [tuple(request.prompt_ids) for request in requests]
        self.waiting = deque(_longest_first(self.prompts))
        self.running: list[Row] = []
        self.ended: list[Row] = []

    def run(self) -> list[Row]:
        """All requests' rows, in the requests' order."""
        while self.waiting or self.running:
            if self._may_admit():
                self._admit()
            if self.running:
                self._step()
        return sorted(self.ended, key=lambda row: row.request)

    def _may_admit(self) -> bool:
        if not self.running or not self.waiting:
            return bool(self.waiting)
        free = self.sampling.batch - len(self.running)
        return self.decoder.joins and free >= min(len(self.waiting), self.sampling.batch * ADMIT_SHARE)

    def _admit(self) -> None:
        count = min(len(self.waiting), self.sampling.batch - len(self.running))
        rows = [self._new_row(self.waiting.popleft()) for _ in range(count)]
        prompts = list(dict.fromkeys(self.prompts[row.request] for row in rows))
        places = {prompt: place for place, prompt in enumerate(prompts)}
        picks = [places[self.prompts[row.request]] for row in rows]
        logits = self.decoder.prefill(prompts)
        going = self._sample(rows, logits[torch.tensor(picks, device=self.device)])
        if going:
            self.decoder.admit([picks[i] for i in going])
            self.running += [rows[i] for i in going]

    def _step(self) -> None:
        tokens = torch.tensor([row.ids[-1] for row in self.running], device=self.device)
        going = self._sample(self.running, self.decoder.step(tokens))
        if len(going) < len(self.running):
            order = _closed_up(going)
            self.decoder.keep(order)
            self.running = [self.running[i] for i in order]

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> list[int]:
        """Gives each row a token from its logits [rows, V]; returns the indices of those that go on."""
        if self.sampling.greedy:
            tokens, log_probs = best(logits, self.sampling.temperature)
        else:
            numbers = [row.uniforms[len(row.ids)] for row in rows]
            uniforms = torch.tensor(numbers, dtype=torch.float64, device=self.device)
            tokens, log_probs = draw(logits, uniforms, self.sampling.temperature)
        for row, token, log_prob in zip(rows, tokens.tolist(), log_probs.tolist(), strict=True):
            row.ids.append(token)
            row.log_probs.append(log_prob)
        ends = [self._ends(row) for row in rows]
        self.ended += [row for row, end in zip(rows, ends, strict=True) if end]
        return [i for i, end in enumerate(ends) if not end]

    def _ends(self, row: Row) -> bool:
        return row.ids[-1] == self.sampling.eos_id or len(row.ids) == self.sampling.max_new_tokens

    def _new_row(self, request: int) -> Row:
        return Row(request, [] if self.sampling.greedy else uniforms(self.requests[request], self.sampling))


def uniforms(request: Request, sampling: Sampling) -> list[float]:
    """`max_new_tokens` numbers in [0, 1) from the request's seed; drawn on the CPU, so that devices agree."""
    generator = torch.Generator().manual_seed(request.seed)
    numbers: list[float] = torch.rand(sampling.max_new_tokens, dtype=torch.float64, generator=generator).tolist()
    return numbers


def _longest_first(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Indices by the prompts' lengths, equal prompts side by side."""
    seen: dict[tuple[int, ...], int] = {}
    for index, prompt in enumerate(prompts):
        seen.setdefault(prompt, index)
    return sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), seen[prompts[i]], i))


def _closed_up(going: Sequence[int]) -> list[int]:
    """The order of the rows that go on: those behind take the places of those that ended, the others stay."""
    behind = [i for i in going if i >= len(going)]
    staying = set(going)
    return [i if i in staying else behind.pop() for i in range(len(going))]
