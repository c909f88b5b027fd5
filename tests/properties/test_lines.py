"""Rules 2, 3, 4, 13 and 15 on generated families of rows: a row's numbers are its own, wherever it stands.

Rows share prompts or not, hold the ids of padding and end, and are dealt into micro-batches of any budget in any order;
their log-probabilities, values, scores and gradient are those of each row alone, without padding.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from posttrain.model.batch import collate, token_log_probs
from posttrain.model.heads import RewardModule, ValueModule
from posttrain.model.packing import Packing, Row
from posttrain.model.trees import packing_of
from posttrain.roles.batches import Forward, per_row, per_token, response_mask, split
from tests.model.tiny import tiny_model
from tests.properties.cases import PACKINGS, families, tokens

MODEL = tiny_model("llama")
REWARD = RewardModule.from_causal_lm(MODEL, seed=3)
CRITIC = ValueModule.from_causal_lm(MODEL, seed=4)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}

FORWARDS = st.builds(
    Forward,
    pad_id=st.integers(0, 299),
    microbatch_tokens=st.integers(1, 80),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    packing=PACKINGS | st.just(packing_of(MODEL)),
)


@torch.no_grad()
def alone(row: Row, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of one row without padding: log p of each response token, the value before it, and the score."""
    prompt, response = row
    output = MODEL(torch.tensor([[*prompt, *response]]), output_hidden_states=True)
    before = slice(len(prompt) - 1, len(prompt) - 1 + len(response))
    hidden = output.hidden_states[-1][0]
    table = (output.logits[0, before].double() / temperature).log_softmax(-1)
    log_probs = table.gather(1, torch.tensor(response, dtype=torch.int64)[:, None])[:, 0]
    return log_probs.float(), hidden[before] @ CRITIC.head.weight[0], hidden[-1] @ REWARD.score.weight[0]


@given(rows=families(), forward=FORWARDS)
def test_a_row_has_the_numbers_that_it_has_alone(rows: list[Row], forward: Forward) -> None:
    mask = response_mask(rows, "cpu")
    assert mask.sum(-1).tolist() == [len(response) for _, response in rows], "by length, never by id"
    log_probs = per_token(rows, forward, lambda batch: token_log_probs(MODEL, batch, forward.temperature))
    values = per_token(rows, forward, CRITIC)
    scores = per_row(rows, forward, REWARD)
    for number, row in enumerate(rows):
        length = len(row[1])
        by_hand = alone(row, forward.temperature)
        found = (log_probs[number, :length], values[number, :length], scores[number])
        for one, other in zip(found, by_hand, strict=True):
            torch.testing.assert_close(one, other, **CLOSE)
        assert not log_probs[number, length:].any() and not values[number, length:].any()


@given(rows=families(), forward=FORWARDS, data=st.data())
def test_neither_order_nor_company_nor_padding_matter(rows: list[Row], forward: Forward, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    company = [(data.draw(st.sampled_from(rows))[0], data.draw(tokens(4)))]
    other = dataclasses.replace(forward, pad_id=data.draw(st.integers(0, 299)), packing=data.draw(PACKINGS))
    mixed = [*company, *(rows[i] for i in order)]

    def log_probs(them: list[Row], how: Forward) -> Tensor:
        return per_token(them, how, lambda batch: token_log_probs(MODEL, batch, forward.temperature))

    width = max(len(response) for _, response in rows)
    want, found = log_probs(rows, forward), log_probs(mixed, other)[1:, :width]
    torch.testing.assert_close(found, want[order], **CLOSE)


def gradient(rows: list[Row], forward: Forward) -> dict[str, Tensor]:
    """Of a loss that weighs each token of each row differently, added up over the micro-batches."""
    MODEL.zero_grad()
    for micro in split([(row,) for row in rows], forward):
        values = token_log_probs(MODEL, micro.batch, forward.temperature)
        weights = torch.sin(1 + 9 * micro.index[:, None] + torch.arange(values.shape[1]))
        (values * weights).sum().backward()
    return {name: p.grad.clone() for name, p in MODEL.named_parameters() if p.grad is not None}


@settings(max_examples=15)
@given(rows=families(), forward=FORWARDS)
def test_the_gradient_is_that_of_rows_alone(rows: list[Row], forward: Forward) -> None:
    want = gradient(rows, dataclasses.replace(forward, packing=None, microbatch_tokens=1))
    found = gradient(rows, forward)
    assert want.keys() == found.keys()
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=3e-4 * max(1.0, float(value.abs().max())))


def test_the_first_and_the_last_response_token_are_trained() -> None:
    """And no token of the prompt, at any place of any line: by what the loss asks of the logits."""

    @given(rows=families(), packing=PACKINGS)
    def holds(rows: list[Row], packing: Packing | None) -> None:
        batch = collate(rows, 0, packing)
        asked = batch.spread(batch.targets)
        for row, (_, response) in enumerate(rows):
            assert asked[row][batch.response_mask[row]].tolist() == list(response)
        ids, positions = batch.input_ids.flatten(), batch.position_ids.flatten()
        after = iter(zip(batch.before.tolist(), batch.targets.tolist(), strict=True))
        for prompt, response in rows:
            text = [*prompt, *response]
            for place, token in enumerate(response, start=len(prompt)):
                before, target = next(after)
                assert (target, int(positions[before])) == (token, place - 1)
                assert int(ids[before]) == text[place - 1]

    holds()


@pytest.mark.parametrize("module", [REWARD, CRITIC], ids=["reward", "critic"])
def test_a_batch_of_one_is_the_row(module: nn.Module) -> None:
    @settings(max_examples=10)
    @given(rows=families(), pad_id=st.integers(0, 299))
    def holds(rows: list[Row], pad_id: int) -> None:
        with torch.no_grad():
            together = module(collate(rows, pad_id))
            for number, row in enumerate(rows):
                one = module(collate([row], pad_id))[0]
                length = len(row[1])
                found = together[number] if one.dim() == 0 else together[number, :length]
                torch.testing.assert_close(found, one, **CLOSE)

    holds()
