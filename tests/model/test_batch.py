"""The padded layout, and that neither padding nor grouping changes a row's log-probabilities or the gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from posttrain.model.batch import Row, SequenceBatch, collate, microbatches, positions, token_log_probs
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED


def test_layout() -> None:
    batch = collate([([5], [6, 7]), ([8, 9, 0], [0])], pad_id=0)
    assert batch.input_ids.tolist() == [[0, 0, 5, 6, 7], [8, 9, 0, 0, 0]]
    assert batch.attention_mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.position_ids.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]
    assert batch.response_mask.tolist() == [[True, True], [True, False]]
    assert batch.response_ids.tolist() == [[6, 7], [0, 0]]
    assert (batch.prompt_width, batch.rows) == (3, (0, 1))


def test_collate_of_some_rows(rows: list[Row]) -> None:
    batch = collate(rows, 0, [3, 1])
    assert batch.rows == (3, 1)
    assert batch.input_ids[0, 4:].tolist() == [*rows[3][0], *rows[3][1]]
    assert batch.input_ids[1, :8].tolist() == [*rows[1][0], *rows[1][1]]


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1.*no token"):
        collate([([1], [2]), ([], [3])], 0)


def test_microbatches_hold_every_row_once_within_the_budget() -> None:
    lengths = [(3, 9), (50, 60), (1, 5), (7, 1), (20, 2), (2, 20), (4, 4)]
    groups = microbatches(lengths, 60)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert groups[0] == [1]
    for group in groups[1:]:
        width = max(lengths[i][0] for i in group) + max(lengths[i][1] for i in group)
        assert len(group) * width <= 60
    assert max(map(len, groups)) > 1
    assert microbatches([], 60) == []


def padded(batch: SequenceBatch, left: int, right: int, pad_id: int) -> SequenceBatch:
    """The same rows with more padding on both sides."""
    ids = nn.functional.pad(batch.input_ids, (left, right), value=pad_id)
    mask = nn.functional.pad(batch.attention_mask, (left, right))
    response_mask = nn.functional.pad(batch.response_mask, (0, right))
    return SequenceBatch(ids, mask, response_mask, positions(mask), batch.prompt_width + left, batch.rows)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("arch", ALL)
def test_token_log_probs_equal_an_unpadded_row_by_hand(arch: str, rows: list[Row]) -> None:
    model = tiny_model(arch)
    batched = token_log_probs(model, collate(rows, 0), 0.7).detach()
    for row, (prompt, response) in enumerate(rows):
        ids = torch.tensor([[*prompt, *response]])
        table = (model(ids).logits[0].double() / 0.7).log_softmax(-1)
        by_hand = torch.stack([table[len(prompt) + t - 1, token] for t, token in enumerate(response)])
        torch.testing.assert_close(batched[row, : len(response)].double(), by_hand, atol=1e-5, rtol=0)
        assert not batched[row, len(response) :].any()


@pytest.mark.parametrize("arch", ALL)
def test_padding_and_grouping_change_neither_values_nor_gradients(arch: str, rows: list[Row]) -> None:
    model = tiny_model(arch)
    weights = torch.linspace(-1, 1, 12)

    def loss(batch: SequenceBatch) -> Tensor:
        values = token_log_probs(model, batch, 0.9)
        return (values[:, :12] * weights[: values.shape[1]]).sum()

    whole = collate(rows, 0)
    want = gradients(model, loss(whole))
    assert_same_gradients(want, gradients(model, loss(padded(whole, 3, 5, pad_id=7))))
    single = [collate(rows, 0, [i]) for i in range(4)]
    assert_same_gradients(want, gradients(model, torch.stack([loss(batch) for batch in single]).sum()))
    lengths = [(len(p), len(r)) for p, r in rows]
    groups = microbatches(lengths, 40)
    assert 1 < len(groups) < 4
    parts = [loss(collate(rows, 0, group)) for group in groups]
    assert_same_gradients(want, gradients(model, torch.stack(parts).sum()))


def test_a_leak_of_padding_would_be_seen(rows: list[Row]) -> None:
    model = tiny_model("llama")
    batch = collate(rows, 0)
    leaky = dataclasses.replace(batch, attention_mask=torch.ones_like(batch.attention_mask))
    assert (token_log_probs(model, batch) - token_log_probs(model, leaky)).abs().max() > 1e-2


def test_entropy_is_that_of_the_predicting_distribution(rows: list[Row]) -> None:
    model = tiny_model("qwen2")
    batch = collate(rows, 0)
    log_probs, entropy = token_log_probs(model, batch, 0.8, with_entropy=True)
    torch.testing.assert_close(log_probs, token_log_probs(model, batch, 0.8))
    prompt, response = rows[3]
    table = (model(torch.tensor([[*prompt, *response]])).logits[0, 2:-1] / 0.8).log_softmax(-1)
    torch.testing.assert_close(entropy[3, :9], -(table.exp() * table).sum(-1), atol=1e-5, rtol=0)


def test_rows_without_a_response_give_zero_and_a_zero_gradient() -> None:
    model = tiny_model("llama")
    values = token_log_probs(model, collate([([4, 5], []), ([6], [])], 0))
    assert values.shape == (2, 0)
    assert not any(g.any() for g in gradients(model, values.sum()).values())
