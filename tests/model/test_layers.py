"""Only the last layers train, and frozen ones do their work once, with every architecture's numbers unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posttrain.errors import UserError
from posttrain.model import frozen as module
from posttrain.model.batch import collate, token_log_probs
from posttrain.model.frozen import FrozenLayers
from posttrain.model.heads import RewardModule, ValueModule
from posttrain.model.layers import decoder_layers, logits_at, share_first, train_last
from posttrain.model.packing import Packing, Row
from posttrain.roles.batches import Forward, split
from tests.model.conftest import FREE
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED
LONG = [15, 16, 17, 18, 19, 20, 21, 22, 23]
ROWS: list[Row] = [([5, 6, 7], [8, 9, 10, 11]), ([12], [13, 14]), (LONG, [24]), (LONG, [25, 26, 27]), (LONG, [])]
# What stands behind the layers, by its name in the trunk.
NORMS = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm"}


@pytest.mark.parametrize("arch", ALL)
def test_the_last_layers_and_the_norm_after_them_train(arch: str) -> None:
    model = tiny_model(arch)
    assert train_last(model, 1) == 1
    last = {f"{name}" for name, _ in decoder_layers(model)[1].named_parameters()}
    training = {name for name, p in model.base_model.named_parameters() if p.requires_grad}
    norm = NORMS.get(arch, "norm")
    assert {name for name in training if name.split(".")[0] == norm} == {
        f"{norm}.{name}" for name, _ in getattr(model.base_model, norm).named_parameters()
    }
    assert {name.split(".", 2)[2] for name in training if name.split(".")[0] != norm} == last
    assert all(name.split(".")[1] == "1" for name in training if name.split(".")[0] != norm)
    assert not any(p.requires_grad for p in model.get_output_embeddings().parameters())


def test_heads_train_and_none_changes_nothing() -> None:
    reward = RewardModule.from_causal_lm(tiny_model("llama"), seed=0)
    assert train_last(reward, None) == 0
    assert all(p.requires_grad for p in reward.parameters())
    train_last(reward, 2, [reward.score])
    assert reward.score.weight.requires_grad
    assert not reward.trunk.get_input_embeddings().weight.requires_grad


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UserError, match="train_layers is 3, the model has 2 layers"):
        train_last(tiny_model("llama"), 3)


def loss_and_gradients(model: nn.Module, forward: Forward) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    parts = [token_log_probs(model, micro.batch) for micro in split([(row,) for row in ROWS], forward)]
    loss = torch.stack([part.pow(2).sum() for part in parts]).sum()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("arch", ALL)
@pytest.mark.parametrize("tokens", [1000, 16])
@pytest.mark.parametrize("packing", [None, FREE])
def test_recalled_layers_give_the_same_numbers_and_do_no_work(arch: str, tokens: int, packing: Packing | None) -> None:
    model = tiny_model(arch)
    depth = train_last(model, 1)
    plain = loss_and_gradients(model, Forward(0, tokens))
    store = FrozenLayers(model, depth, 0, 16, "cpu")
    store.keep(ROWS)
    calls: list[int] = []
    for i, layer in enumerate(decoder_layers(model)):
        real = next(m for m in layer.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D")
        real.register_forward_hook(lambda *_, i=i: calls.append(i))
    recalled = loss_and_gradients(model, Forward(0, tokens, frozen=store, packing=packing))
    assert calls
    assert set(calls) == {1}
    torch.testing.assert_close(recalled, plain, rtol=1e-4, atol=1e-5)
    calls.clear()
    loss_and_gradients(model, Forward(0, tokens))
    assert set(calls) == {0, 1}, "afterwards every layer works again"


def test_reward_and_value_modules_recall_too() -> None:
    model = tiny_model("llama")
    reward, value = RewardModule.from_causal_lm(model, 1), ValueModule.from_causal_lm(model, 2)
    store = FrozenLayers(model, 1, 0, 1000, "cpu")
    store.keep(ROWS)
    (plain,), (recalled,) = (
        list(split([(row,) for row in ROWS], Forward(0, 1000, frozen=frozen))) for frozen in (None, store)
    )
    assert recalled.batch.recall is not None
    torch.testing.assert_close(reward(recalled.batch), reward(plain.batch))
    mask = plain.batch.response_mask
    torch.testing.assert_close(value(recalled.batch)[mask], value(plain.batch)[mask])


def test_a_shared_prompt_is_computed_in_company_and_kept_once() -> None:
    model = tiny_model("llama")
    store = FrozenLayers(model, 1, 0, 1000, "cpu")
    seen: list[int] = []
    first = decoder_layers(model)[0]
    handle = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2].numel()))
    store.keep(ROWS)
    handle.remove()
    tokens = sum(len(prompt) + len(completion) for prompt, completion in ROWS)
    assert sum(seen) < tokens
    lone = [(LONG, [25, 26, 27])]
    recall = store.recall(collate(lone, 0), lone)
    assert recall is not None
    hidden = model.base_model(torch.tensor([[*LONG, 25, 26, 27]]), output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(recall.hidden, hidden.detach(), atol=1e-5, rtol=1e-5)


def test_a_row_that_is_not_kept_goes_through_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    store = FrozenLayers(model, 1, 0, 1000, "cpu")
    store.keep(ROWS[:2])
    assert store.recall(collate(ROWS, 0), ROWS) is None
    assert store.recall(collate(ROWS[:2], 0), ROWS[:2]) is not None
    store.keep(ROWS[2:])
    assert store.recall(collate(ROWS[:2], 0), ROWS[:2]) is None, "the earlier ones are forgotten"
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    store.keep(ROWS)
    assert store.recall(collate(ROWS, 0), ROWS) is None, "they would take too much memory"


def test_models_that_begin_alike_share_memory() -> None:
    owner, same, other = tiny_model("llama"), tiny_model("llama"), tiny_model("llama", seed=1)
    with torch.no_grad():
        decoder_layers(same)[1].mlp.up_proj.weight.add_(1)
        same.base_model.norm.weight.add_(1)
    assert share_first(owner, same, 1)
    ours, theirs = dict(owner.named_parameters()), dict(same.named_parameters())
    shared = {name for name in ours if ours[name].data_ptr() == theirs[name].data_ptr()}
    assert shared == {name for name in ours if ".layers.0." in name or "embed" in name}
    assert not share_first(owner, same, 2)
    assert not share_first(owner, other, 1)
    assert not share_first(owner, tiny_model("llama").bfloat16(), 1)
    assert not share_first(owner, tiny_model("qwen2"), 1)


@pytest.mark.parametrize("arch", ALL)
def test_logits_at_places_are_those_of_the_whole(arch: str) -> None:
    model = tiny_model(arch)
    batch = collate(ROWS, 0)
    places = torch.tensor([1, 30, 31])
    with torch.no_grad():
        whole = model(batch.input_ids).logits
        with logits_at(model, places) as states:
            picked = model(batch.input_ids).logits
        again = model(batch.input_ids).logits
        hidden = model.base_model(batch.input_ids).last_hidden_state
    assert picked.shape == (1, 3, whole.shape[-1])
    torch.testing.assert_close(picked[0], whole.flatten(0, 1)[places])
    torch.testing.assert_close(states[0], hidden.flatten(0, 1)[places])
    assert len(states) == 1
    assert torch.equal(again, whole)
