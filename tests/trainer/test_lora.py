"""Stages and methods with adapters: what trains, what the reference is, resume, and the plain model that comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.config.schema import SFT, Model
from posttrain.config.sections import Lora
from posttrain.model import lora
from posttrain.model.batch import Row
from posttrain.model.heads import ValueModule
from posttrain.model.load import load_causal_lm
from posttrain.model.lora import without_adapters
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward
from posttrain.roles.critic import Critic
from posttrain.roles.reference import Reference
from posttrain.roles.shared_actor import SharedActor
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import tiny_model
from tests.trainer.harness import digests, make_stage, run_in_process, run_stage

KINDS = ("sft", "reward_model", "dpo", "kto", "ppo", "grpo")
LORA = Lora(rank=3, alpha=12.0)
SETTINGS = SFT(steps=10, learning_rate=0.01, minibatch=4, lora=LORA)
ROWS: list[Row] = [([1, 20 + i, 40], [60 + i, 80, *range(100, 100 + i)]) for i in range(6)]


def loss(_: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return -(log_probs * mask).sum() / 20, {}


def trained(model: PreTrainedModel, steps: int = 3, budget: int = 1000, seed: int = 0, **settings: Any) -> Actor:
    actor = Actor(model, SETTINGS.model_copy(update=settings), Forward(0, budget), seed)
    for step in range(1, steps + 1):
        actor.update([(row,) for row in ROWS], loss, step)
    return actor


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize(("kind", "extra"), [*((kind, {}) for kind in KINDS), ("ppo", {"shared_trunk": True})])
def test_a_stage_changes_adapted_weights_alone_by_what_has_their_rank(
    kind: str, extra: dict[str, Any], world: Path, tmp_path: Path
) -> None:
    run_stage(make_stage(kind, world, tmp_path, steps=3, learning_rate=0.01, lora=LORA, **extra))
    before, after = weights(world / "sft"), weights(tmp_path / "out")
    if kind == "reward_model":
        assert set(after) - {"score.weight"} == {name for name in before if name.startswith("model.")}
        assert after.pop("score.weight").any()
    else:
        assert after.keys() == before.keys()
    for name, weight in after.items():
        change = (weight - before[name]).double()
        assert bool(change.any()) == name.endswith("_proj.weight"), name
        if change.any():
            sizes = torch.linalg.svdvals(change)
            assert sizes[2] > 100 * sizes[3], "no more than rank 3, but for rounding"


@pytest.mark.parametrize("kind", KINDS)
def test_the_stage_s_seed_decides_the_adapters(kind: str, world: Path, tmp_path: Path) -> None:
    """B is zero at the first step, so A has no gradient: the rows of a weight's change are those that A began with."""
    a, b = (rows_of_change(kind, world, tmp_path / str(seed), seed) for seed in (0, 1))
    assert float((a @ b.T).square().sum()) < 0.5 * len(a), "3/32 of it is expected of random rows"


def rows_of_change(kind: str, world: Path, place: Path, seed: int) -> Tensor:
    """An orthonormal basis [rank, in] of the rows of one weight's change."""
    run_stage(make_stage(kind, world, place, steps=1, seed=seed, lora=LORA))
    name = "model.layers.0.self_attn.q_proj.weight"
    return torch.linalg.svd((weights(place / "out")[name] - weights(world / "sft")[name]).double()).Vh[:3]


@pytest.mark.parametrize("kind", ["sft", "reward_model", "dpo", "ppo"])
def test_kill_and_restart_give_the_same_bytes(kind: str, world: Path, tmp_path: Path) -> None:
    model = Model(base="a folder", dtype="bfloat16", generation_dtype="float32")
    settings: dict[str, Any] = {"steps": 7, "model": model, "lora": LORA.model_dump()}
    assert run_in_process(kind, world, tmp_path / "whole", **settings) == 0
    assert run_in_process(kind, world, tmp_path / "twice", kill_at=5, **settings) == -9
    assert run_in_process(kind, world, tmp_path / "twice", **settings) == 0
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")
    assert "resumed at step 3" in (tmp_path / "twice" / "log").read_text()


def test_the_learner_has_masters_and_moments_of_adapters_and_heads_alone() -> None:
    model = tiny_model("llama").bfloat16()
    state = trained(model).learner.tensors()
    adapters = {name for name, _ in model.named_parameters() if ".lora_" in name}
    moments = ("step", "exp_avg", "exp_avg_sq")
    assert len(adapters) == 28
    assert state.keys() == {
        *(f"model/{name}" for name in adapters),
        *(f"optimiser/{name}/{moment}" for name in adapters for moment in moments),
    }
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert all(parameter.grad is None for parameter in model.parameters())
    shared = SharedActor(tiny_model("gpt2"), SETTINGS, Forward(0, 1000), 0)
    for learner in (critic_of(seed=0).learner, shared.learner):
        rest = {name for name in learner.tensors() if ".lora_" not in name}
        assert rest == {"model/head.weight", *(f"optimiser/head.weight/{moment}" for moment in moments)}


def critic_of(seed: int) -> Critic:
    return Critic(ValueModule.from_causal_lm(tiny_model("gpt2"), 1), SETTINGS, 0.01, Forward(0, 1000), seed)


def test_the_critic_s_adapters_are_its_own() -> None:
    def first(module: torch.nn.Module) -> Tensor:
        return next(parameter for name, parameter in module.named_parameters() if "lora_A" in name)

    found = [first(critic_of(seed=0).module), first(critic_of(seed=1).module)]
    found.append(first(Actor(tiny_model("gpt2"), SETTINGS, Forward(0, 1000), 0).model))
    assert len({tensor[0, 0].item() for tensor in found}) == 3


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_microbatches_change_no_gradient(arch: str) -> None:
    def moments(budget: int) -> dict[str, Tensor]:
        actor = trained(tiny_model(arch), steps=0, budget=budget)
        with torch.no_grad():
            for name, master in sorted(actor.learner.tensors().items()):
                if name.startswith("model/"):
                    master.add_(torch.randn(master.shape, generator=torch.Generator().manual_seed(1)) / 10)
        actor.update([(row,) for row in ROWS], loss, 1)
        return {name: t for name, t in actor.learner.tensors().items() if name.endswith("/exp_avg")}

    big, small = moments(10_000), moments(1)
    for name, tensor in big.items():
        assert tensor.any()
        torch.testing.assert_close(small[name], tensor, atol=1e-5 * float(tensor.abs().max()), rtol=1e-4)


def test_the_policy_without_its_adapters_is_the_reference() -> None:
    actor = trained(tiny_model("llama"))
    reference = Reference(actor.model, Forward(0, 1000)).log_probs(ROWS)
    assert torch.equal(reference, Reference(tiny_model("llama"), Forward(0, 1000)).log_probs(ROWS))
    assert float((actor.log_probs(ROWS) - reference).abs().max()) > 0.1


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_an_online_reference_and_a_probe_need_no_second_model(
    kind: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    for module in ("online", "preference", "distance"):
        name = f"posttrain.trainer.{module}.load_causal_lm"
        monkeypatch.setattr(name, lambda *arguments: loaded.append(arguments) or load_causal_lm(*arguments))
    probe = {"kl_probe": {"every": 1, "prompts": 8, "max_new_tokens": 6}} if kind == "dpo" else {}
    settings = {"steps": 4, "learning_rate": 0.01, "kl_budget": 1e9, **probe}
    stage = run_stage(make_stage(kind, world, tmp_path / "lora", lora=LORA, **settings))
    assert len(loaded) == 1
    distances = stage.metric("rollout/kl")
    assert distances[-1] > 0.01
    if kind == "grpo":
        assert distances[0] == pytest.approx(0, abs=1e-5), "the first samples are the reference's own"
    run_stage(make_stage(kind, world, tmp_path / "whole", **settings))
    assert len(loaded) == 3, "the reference is a model of its own where all weights train"


def test_a_generation_copy_gets_merged_weights_and_the_training_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, copy = trained(tiny_model("llama")), tiny_model("llama")
    merged = dict(without_adapters(actor.model).named_parameters())
    kept = {name: tensor.clone() for name, tensor in actor.model.state_dict().items()}
    calls = []
    monkeypatch.setattr(lora, "merged_weight", lambda layer, real=lora.merged_weight: calls.append(1) or real(layer))
    engine, own = TransformersEngine(copy), TransformersEngine(actor.model)
    assert own.load_weights(actor.stream_weights()) == 0
    assert not calls
    for number, (name, _) in enumerate(stream := actor.stream_weights()):
        assert name == list(merged)[number]
        assert len(calls) == sum(name.endswith("_proj.weight") for name in list(merged)[: number + 1]), "one at a time"
    assert not list(stream)
    assert engine.load_weights(actor.stream_weights()) == sum(
        parameter.nbytes for name, parameter in copy.named_parameters()
    )
    assert engine.version == own.version == 1
    assert all(torch.equal(tensor, kept[name]) for name, tensor in actor.model.state_dict().items())
    assert all(torch.equal(parameter, merged[name]) for name, parameter in copy.named_parameters())
    found = Reference(copy, Forward(0, 1000)).log_probs(ROWS)
    torch.testing.assert_close(found, actor.log_probs(ROWS), atol=1e-4, rtol=1e-4)


def test_layers_and_adapters_are_two_ways_to_train_less() -> None:
    with pytest.raises(ValueError, match="train_layers and lora"):
        SFT(train_layers=1, lora=LORA)


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gpt_neox"])
def test_an_adapted_policy_learns_its_rows(arch: str) -> None:
    actor = trained(tiny_model(arch), steps=0)
    before = float(actor.log_probs(ROWS).sum())
    for step in range(1, 11):
        actor.update([(row,) for row in ROWS], loss, step)
    assert float(actor.log_probs(ROWS).sum()) > before + 20
