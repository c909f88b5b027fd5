"""The lines of a batch, and that neither company, order nor budget changes a row's log-probabilities or gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from posttrain.model import batch as module
from posttrain.model.batch import SequenceBatch, collate, model_inputs, token_log_probs
from posttrain.model.packing import Packing, Row, microbatches
from tests.model.conftest import FREE
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED
ROWS: list[Row] = [([5, 4], [6, 7]), ([8, 9, 0], [0]), ([5, 4], [3, 2, 1]), ([5, 4], [])]


def test_a_row_a_line() -> None:
    batch = collate(ROWS, pad_id=0)
    assert batch.plain
    assert batch.input_ids.tolist() == [[5, 4, 6, 7, 0], [8, 9, 0, 0, 0], [5, 4, 3, 2, 1], [5, 4, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4], [0, 1, 0, 0, 0]]
    assert batch.response_mask.tolist() == [[True, True, False], [True, False, False], [True] * 3, [False] * 3]
    assert batch.targets.tolist() == [6, 7, 0, 3, 2, 1]
    assert batch.before.tolist() == [1, 2, 7, 11, 12, 13]
    assert batch.last.tolist() == [3, 8, 14, 16]
    assert model_inputs(tiny_model("llama"), batch).keys() == {"input_ids", "use_cache"}, "causal attention is enough"


def test_rows_that_share_a_prompt() -> None:
    batch = collate(ROWS, pad_id=4, packing=FREE)
    assert not batch.plain
    assert batch.input_ids.tolist() == [[5, 4, 3, 2, 1, 6, 7], [8, 9, 0, 0, 4, 4, 4]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 2, 3], [0, 1, 2, 3, 0, 0, 0]]
    assert batch.targets.tolist() == [6, 7, 0, 3, 2, 1]
    assert batch.before.tolist() == [1, 5, 9, 1, 2, 3]
    assert batch.last.tolist() == [6, 10, 4, 1]
    mask = model_inputs(tiny_model("llama"), batch)["attention_mask"]
    assert mask.shape == (2, 1, 7, 7)
    assert (mask[0, 0] == 0).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1, 1],
    ]
    assert (mask[1, 0, 5] == 0).nonzero().tolist() == [[5]], "padding"


def test_a_window_counts_positions() -> None:
    batch = collate([([5, 6], [7, 8, 9, 1, 2, 3, 4, 5, 6]), ([5, 6], [1, 2, 3, 4])], 0, FREE)
    masks = model_inputs(tiny_model("gemma3"), batch)["attention_mask"]
    near, full = masks["sliding_attention"][0, 0] == 0, masks["full_attention"][0, 0] == 0
    assert full[10].nonzero()[:, 0].tolist() == list(range(11))
    assert near[10].nonzero()[:, 0].tolist() == list(range(3, 11)), "position 10 sees positions 3 to 10"
    assert torch.equal(near[14], full[14]), "its positions are 0 to 5, its columns far apart"


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1.*no token"):
        collate([([1], [2]), ([], [3])], 0)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def weighted(model: nn.Module, batch: SequenceBatch, numbers: list[int]) -> Tensor:
    """A loss that gives each response token of each row of the whole (`numbers`) a weight of its own."""
    values = token_log_probs(model, batch, 0.9)
    weights = torch.sin(torch.arange(40.0))[torch.tensor(numbers)[:, None] + torch.arange(values.shape[1])]
    return (values * weights).sum()


@pytest.mark.parametrize("packing", [None, FREE])
@pytest.mark.parametrize("arch", ALL)
def test_token_log_probs_equal_an_unpadded_row_by_hand(arch: str, packing: Packing | None, family: list[Row]) -> None:
    model = tiny_model(arch)
    batched = token_log_probs(model, collate(family, 0, packing), 0.7).detach()
    for row, (prompt, response) in enumerate(family):
        ids = torch.tensor([[*prompt, *response]])
        table = (model(ids).logits[0].double() / 0.7).log_softmax(-1)
        by_hand = table[len(prompt) - 1 :][: len(response)].gather(
            1, torch.tensor(response, dtype=torch.int64)[:, None]
        )
        torch.testing.assert_close(batched[row, : len(response)].double(), by_hand[:, 0].detach(), atol=1e-5, rtol=0)
        assert not batched[row, len(response) :].any()


@pytest.mark.parametrize("arch", ALL)
def test_gradients_do_not_depend_on_company_order_or_budget(arch: str, family: list[Row]) -> None:
    model = tiny_model(arch)
    count = len(family)
    single = torch.stack([weighted(model, collate([family[i]], 0), [i]) for i in range(count)])
    want = gradients(model, single.sum())
    mixed = [4, 9, 0, 7, 2, 8, 5, 1, 6, 3]
    for numbers, pad_id in ((list(range(count)), 0), (mixed, 7)):
        for packing in (None, FREE):
            batch = collate([family[i] for i in numbers], pad_id, packing)
            assert_same_gradients(want, gradients(model, weighted(model, batch, numbers)))
    groups = microbatches([(row,) for row in family], 40, FREE)
    assert 1 < len(groups) < count
    parts = [weighted(model, collate([family[i] for i in group], 0, FREE), group) for group in groups]
    assert_same_gradients(want, gradients(model, torch.stack(parts).sum()))


@pytest.mark.parametrize("arch", ["gpt2", "gpt_neox"])
def test_hidden_states_in_float64(arch: str, family: list[Row]) -> None:
    """The architectures that compute nothing in float32 of their own accord."""
    model = tiny_model(arch).double()
    batch = collate(family, 0, FREE)
    hidden = model.base_model(**model_inputs(model, batch)).last_hidden_state.flatten(0, 1)[batch.last]
    for found, (prompt, response) in zip(hidden, family, strict=True):
        want = model.base_model(torch.tensor([[*prompt, *response]])).last_hidden_state[0, -1]
        torch.testing.assert_close(found, want, atol=1e-10, rtol=1e-10)


def disturbed(batch: SequenceBatch, row: int) -> SequenceBatch:
    """The batch with other tokens in the row's completion, and in all padding."""
    ids = torch.full_like(batch.input_ids, 11)
    for line, start, stop, number, prompt in batch.segments:
        kept = batch.input_ids[line, start:stop]
        ids[line, start:stop] = kept if prompt is None or number != row else (kept + 17) % 300
    return dataclasses.replace(batch, input_ids=ids)


def leaks(model: nn.Module, rows: list[Row], packing: Packing | None) -> list[int]:
    """The rows whose tokens another row, or padding, sees."""
    batch = collate(rows, 0, packing)
    found = []
    with torch.no_grad():
        before = token_log_probs(model, batch)
        for row in range(len(rows)):
            after = token_log_probs(model, disturbed(batch, row))
            others = [i for i in range(len(rows)) if i != row]
            if not torch.equal(after[others], before[others]):
                found.append(row)
            assert len(rows[row][1]) < 2 or not torch.equal(after[row], before[row])
    return found


@pytest.mark.parametrize("arch", ALL)
def test_no_row_sees_another_or_padding(arch: str, family: list[Row]) -> None:
    assert leaks(tiny_model(arch), family, FREE) == []
    assert leaks(tiny_model(arch), family, None) == []


def causal_alone(mask: Tensor) -> Tensor:
    return torch.full_like(mask, torch.finfo(mask.dtype).min).triu(1)


def other_items(mask: Tensor) -> Tensor:
    mask[..., 10:, 5] = 0
    return mask


@pytest.mark.parametrize("wrong", [causal_alone, other_items])
def test_a_wrong_mask_would_be_seen(
    wrong: Callable[[Tensor], Tensor], family: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = module.tree_mask
    monkeypatch.setattr(module, "tree_mask", lambda *arguments: wrong(right(*arguments)))
    assert leaks(tiny_model("llama"), family, FREE)


@pytest.mark.parametrize("packing", [None, FREE])
def test_entropy_is_that_of_the_predicting_distribution(packing: Packing | None, rows: list[Row]) -> None:
    model = tiny_model("qwen2")
    batch = collate([*rows, rows[3]], 0, packing)
    log_probs, entropy = token_log_probs(model, batch, 0.8, with_entropy=True)
    torch.testing.assert_close(log_probs, token_log_probs(model, batch, 0.8))
    prompt, response = rows[3]
    table = (model(torch.tensor([[*prompt, *response]])).logits[0, 2:-1] / 0.8).log_softmax(-1)
    for row in (3, 4):
        torch.testing.assert_close(entropy[row, :9], -(table.exp() * table).sum(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("packing", [None, FREE])
def test_rows_without_a_response_give_zero_and_a_zero_gradient(packing: Packing | None) -> None:
    model = tiny_model("llama")
    values = token_log_probs(model, collate([([4, 5], []), ([6], [])], 0, packing))
    assert values.shape == (2, 0)
    assert not any(g.any() for g in gradients(model, values.sum()).values())


def test_without_gradient_nothing_is_kept(family: list[Row]) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        log_probs, entropy = token_log_probs(model, collate(family, 0, FREE), with_entropy=True)
    assert log_probs.grad_fn is None
    assert entropy.grad_fn is None
