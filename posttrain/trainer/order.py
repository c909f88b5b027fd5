"""The order in which rows are seen: a function of seed and step, so that nothing of it can be lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from posttrain.runtime.seeds import derive


def permutation(total: int, seed: int, *names: object) -> list[int]:
    """The numbers 0..total-1 in an order that depends on `seed` and `names` alone."""
    generator = torch.Generator().manual_seed(derive(seed, *names))
    order: list[int] = torch.randperm(total, generator=generator).tolist()
    return order


class Order:
    """Endless passes over `total` rows, each in its own order, cut into minibatches; one may span two passes."""

    def __init__(self, seed: int, total: int, minibatch: int) -> None:
        if total < 1:
            raise ValueError("no rows to order")
        self.seed, self.total, self.minibatch = seed, total, minibatch
        self._passes: dict[int, list[int]] = {}

    def rows(self, step: int) -> list[int]:
        """Row numbers of the minibatch of `step` (the first is 1)."""
        first = (step - 1) * self.minibatch
        return [self._pass(i // self.total)[i % self.total] for i in range(first, first + self.minibatch)]

    def position(self, step: int) -> dict[str, int]:
        """How far `step` steps have come: whole passes, and rows seen in all."""
        seen = step * self.minibatch
        return {"epoch": seen // self.total, "samples_seen": seen}

    def _pass(self, number: int) -> list[int]:
        if number not in self._passes:
            self._passes = {n: p for n, p in self._passes.items() if n == number - 1}
            self._passes[number] = permutation(self.total, self.seed, "epoch", number)
        return self._passes[number]


def data_digest(rows: Iterable[Sequence[Sequence[int]]]) -> str:
    """sha256 over token ids: rows of id lists, in order."""
    found = hashlib.sha256()
    for row in rows:
        for ids in row:
            found.update(torch.tensor([len(ids), *ids], dtype=torch.int64).numpy().tobytes())
    return found.hexdigest()
