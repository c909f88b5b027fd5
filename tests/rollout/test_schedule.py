"""Which request runs when: shared prompts are read once, places are taken again, and the order is always the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from posttrain.rollout.engine import Request, Sampling
from posttrain.rollout.schedule import Schedule

EOS, VOCABULARY = 0, 5


class Script:
    """A decoder of rows whose lengths are known: prompt (length, …) ends with its `length`-th token."""

    joins = True

    def __init__(self) -> None:
        self.rows: list[list[int]] = []  # what is left to go, and the last token
        self.read: list[tuple[int, ...]] = []
        self.known: Sequence[tuple[int, ...]] = []
        self.widths: list[int] = []

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        self.read += [prompt for prompt in prompts if prompt not in self.known[-1:]]
        self.known = prompts
        return torch.stack([self.logits(prompt[0]) for prompt in prompts])

    def admit(self, picks: Sequence[int]) -> None:
        assert self.joins or not self.rows
        self.rows += [[self.known[pick][0] - 1] for pick in picks]

    def step(self, tokens: Tensor) -> Tensor:
        assert EOS not in tokens.tolist()
        self.widths.append(len(tokens))
        assert len(tokens) == len(self.rows)
        logits = torch.stack([self.logits(row[0]) for row in self.rows])
        for row in self.rows:
            row[0] -= 1
        return logits

    def keep(self, order: Sequence[int]) -> None:
        assert all(source == row or source >= len(order) for row, source in enumerate(order))
        assert len(set(order)) == len(order)
        self.rows = [self.rows[source] for source in order]

    def logits(self, left: int) -> Tensor:
        """All weight on the end where one token is left, and none on it before."""
        logits = torch.zeros(VOCABULARY)
        logits[EOS] = 100.0 if left == 1 else -200.0
        return logits


def prompts(count: int, samples: int, seed: int = 0) -> list[Request]:
    generator = random.Random(seed)
    distinct = [[generator.randrange(1, 9), *range(place), *[1] * generator.randrange(1, 9)] for place in range(count)]
    return [Request(ids, 100 * place + sample) for place, ids in enumerate(distinct) for sample in range(samples)]


def sampling(batch: int, max_new_tokens: int = 8) -> Sampling:
    return Sampling(max_new_tokens, 1.0, EOS, batch)


def run(requests: list[Request], batch: int, joins: bool = True) -> tuple[Script, list[list[int]]]:
    decoder = Script()
    decoder.joins = joins
    rows = Schedule(decoder, requests, sampling(batch), torch.device("cpu")).run()
    assert [row.request for row in rows] == list(range(len(requests)))
    return decoder, [row.ids for row in rows]


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 8, 64])
def test_every_request_gets_its_own_tokens(batch: int, joins: bool) -> None:
    requests = prompts(7, 3)
    decoder, ids = run(requests, batch, joins)
    assert [len(row) for row in ids] == [request.prompt_ids[0] for request in requests]
    assert all(row.index(EOS) == len(row) - 1 for row in ids)
    assert max(decoder.widths) <= batch
    assert ids == run(requests, 64)[1]


@pytest.mark.parametrize("batch", [2, 5, 64])
def test_a_prompt_is_read_once_for_all_its_samples(batch: int) -> None:
    requests = prompts(6, 4)
    decoder, _ = run(requests, batch)
    assert len(decoder.read) == len(set(decoder.read)) == 6


def test_free_places_are_taken_while_others_run() -> None:
    requests = [Request([length, place], place) for place, length in enumerate([8, 2, 2, 2, 2, 2, 2])]
    decoder, _ = run(requests, batch=2)
    assert decoder.widths == [2, 2, 2, 2, 2, 2, 1]
    assert run(requests, batch=2, joins=False)[0].widths == [2, *[1] * 6, 2, 2, 1]


def test_one_token_takes_no_place() -> None:
    decoder, ids = run([Request([1, place], place) for place in range(20)], batch=4)
    assert decoder.widths == []
    assert ids == [[EOS]] * 20


def test_the_length_limit_ends_a_row() -> None:
    decoder = Script()
    rows = Schedule(decoder, [Request([8], 0)], sampling(1, max_new_tokens=3), torch.device("cpu")).run()
    assert len(rows[0].ids) == 3
    assert EOS not in rows[0].ids
