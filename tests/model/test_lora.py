"""Adapters against W + alpha / rank B A worked out by hand, on every architecture."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, LoraModel
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, MambaConfig, PreTrainedModel

from posttrain.config.sections import Lora
from posttrain.errors import UserError
from posttrain.model.export import export_model, export_reward_module
from posttrain.model.heads import RewardModule, ValueModule
from posttrain.model.layers import decoder_layers, trunk_of
from posttrain.model.lora import adapters_off, add_adapters, has_adapters, merged_parameters, without_adapters
from tests.model.read_back import IDS, read
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model, tiny_tokenizer_dir

ROOT = Path(__file__).parents[2]
ALL = ARCHITECTURES + WINDOWED
SETTINGS = Lora(rank=4, alpha=6.0)
SCALE = 1.5  # alpha / rank
Parts = dict[str, dict[str, Tensor]]


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    return model(torch.tensor([IDS])).logits[0]


def adapted(arch: str, settings: Lora = SETTINGS, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model whose adapters are as large as trained ones could ever be."""
    model = tiny_model(arch).to(dtype)
    add_adapters(model, settings, seed=1)
    return shaken(model)


@torch.no_grad()
def shaken(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.add_(torch.randn(parameter.shape, generator=generator) / 10)
    return model


def by_hand(model: PreTrainedModel) -> dict[str, Tensor]:
    """Every weight of the plain model in float64, from the names of the adapted one's state alone."""
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    found = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        path = name.removesuffix(".base_layer.weight")
        if path != name:
            change = SCALE * state[f"{path}.lora_B.default.weight"] @ state[f"{path}.lora_A.default.weight"]
            # GPT-2 keeps its weights the other way round.
            tensor = tensor + (change.T if model.config.model_type == "gpt2" else change)
        found[name.replace(".base_layer", "")] = tensor
    return found


@pytest.mark.parametrize("arch", ALL)
def test_a_fresh_adapter_changes_nothing_and_leaves_the_model_what_it_was(arch: str) -> None:
    model, plain = tiny_model(arch), tiny_model(arch)
    kind, layers = type(model), len(decoder_layers(model))
    add_adapters(model, SETTINGS, seed=1)
    assert torch.equal(logits(model), logits(plain))
    assert type(model) is kind
    assert len(decoder_layers(model)) == layers
    assert type(model.get_output_embeddings()) is type(plain.get_output_embeddings())
    training = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert training == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert torch.equal(logits(without_adapters(model)), logits(plain))


@pytest.mark.parametrize("arch", ALL)
def test_forward_and_merge_are_the_formula(arch: str) -> None:
    model = adapted(arch, dtype=torch.float64)
    want = by_hand(model)
    plain = tiny_model(arch).double()
    assert float((logits(model) - logits(plain)).abs().max()) > 0.1, "the adapters must do something"
    names = [name for name, _ in plain.named_parameters()]
    found = dict(merged_parameters(model))
    assert list(found) == names
    plain.load_state_dict(want)
    torch.testing.assert_close(logits(model), logits(plain), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found, {name: want[name] for name in names}, atol=1e-13, rtol=1e-13)
    merged = without_adapters(model)
    assert type(merged) is type(plain)
    torch.testing.assert_close(dict(merged.state_dict()), want, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_gradients_are_those_of_the_weights_by_the_chain_rule(arch: str) -> None:
    """dA = s B^T dW and dB = s dW A^T (s = alpha / rank), with dW from a model that has the merged weights."""
    model = adapted(arch, dtype=torch.float64)
    plain = tiny_model(arch).double()
    plain.load_state_dict(by_hand(model))
    ids = torch.tensor([IDS])
    for one in (model, plain):
        one(ids, labels=ids).loss.backward()
    weights = dict(plain.named_parameters())
    checked = 0
    for path, layer in model.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        gradient = weights[f"{path}.weight"].grad
        assert gradient is not None
        gradient = gradient.T if arch == "gpt2" else gradient
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        torch.testing.assert_close(a.grad, SCALE * b.T @ gradient, atol=1e-11, rtol=1e-9)
        torch.testing.assert_close(b.grad, SCALE * gradient @ a.T, atol=1e-11, rtol=1e-9)
        checked += 1
    assert checked == (14 if arch == "llama" else 8)
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if ".lora_" not in name)


@pytest.mark.parametrize("arch", ALL)
def test_switched_off_the_model_is_its_base_also_after_an_error(arch: str) -> None:
    model, plain = adapted(arch), tiny_model(arch)
    on = logits(model)
    with pytest.raises(RuntimeError, match="within"), adapters_off(model):
        assert torch.equal(logits(model), logits(plain))
        raise RuntimeError("within")
    assert torch.equal(logits(model), on)
    assert all(parameter.requires_grad == (".lora_" in name) for name, parameter in model.named_parameters())


def test_a_model_without_adapters_is_left_alone() -> None:
    model = tiny_model("llama")
    with adapters_off(model):
        pass
    assert without_adapters(model) is model
    assert not has_adapters(model)
    assert has_adapters(adapted("llama"))
    for (name, found), (wanted, parameter) in zip(merged_parameters(model), model.named_parameters(), strict=True):
        assert name == wanted
        assert found.data_ptr() == parameter.data_ptr()


def test_only_merged_weights_take_memory() -> None:
    model = adapted("llama")
    own = {parameter.data_ptr() for parameter in model.parameters()}
    plain = without_adapters(model)
    for found in (dict(merged_parameters(model)), dict(plain.named_parameters())):
        new = {name for name, tensor in found.items() if tensor.data_ptr() not in own}
        assert new == {name for name in found if name.endswith("_proj.weight")}
    assert plain.lm_head.weight is plain.model.embed_tokens.weight, "tied as before"


def test_the_seed_alone_decides_the_adapters() -> None:
    def adapters(seed: int) -> dict[str, Tensor]:
        model = tiny_model("llama")
        add_adapters(model, SETTINGS, seed)
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    torch.manual_seed(5)
    first = adapters(1)
    state = torch.get_rng_state()
    torch.rand(3)
    again, other = adapters(1), adapters(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    a = [name for name in first if "lora_A" in name]
    assert not any(torch.equal(first[name], other[name]) for name in a)
    assert len({first[name].flatten()[0].item() for name in a}) == len(a), "no two layers begin alike"
    assert all(not first[name].any() for name in first if "lora_B" in name)
    torch.manual_seed(5)
    assert torch.equal(state, torch.get_rng_state()), "nothing else sees other random numbers"


@pytest.mark.parametrize("arch", ALL)
def test_all_linear_is_what_peft_takes_it_for(arch: str) -> None:
    theirs = tiny_model(arch)
    LoraModel(theirs, LoraConfig(r=4, target_modules="all-linear", fan_in_fan_out=arch == "gpt2"), "default")
    wanted = [name for name, module in theirs.named_modules() if hasattr(module, "lora_A")]
    assert [name for name, module in adapted(arch).named_modules() if hasattr(module, "lora_A")] == wanted


def test_targets_are_layers_by_name_or_by_path() -> None:
    model = adapted("llama", Lora(targets=["q_proj", "layers.1.mlp.up_proj"]))
    found = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    assert found == [f"model.layers.{place}" for place in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj")]


@pytest.mark.parametrize(
    ("arch", "target", "named"),
    [
        ("llama", "q_porj", "q_proj"),
        ("llama", "proj", "o_proj"),
        ("llama", "layers.5.mlp.up_proj", "layers.0.mlp.up_proj"),
        ("llama", "embed_tokens", "down_proj"),
        ("gpt2", "q_proj", "c_proj"),
        ("gpt2", "lm_head", "c_attn"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest_names(arch: str, target: str, named: str) -> None:
    with pytest.raises(UserError, match=rf"^lora.targets: .*{target!r}.*: .*\b{named}\b"):
        add_adapters(tiny_model(arch), Lora(targets=[target]), seed=1)


def test_what_peft_cannot_merge_or_adapt_is_refused() -> None:
    common = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 300}
    experts = DeepseekV3Config(
        **common, intermediate_size=48, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, n_group=2,
        topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, q_lora_rank=8, kv_lora_rank=8,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(experts)
    with pytest.raises(UserError, match="experts of deepseek_v3 models cannot be merged; name other layers"):
        add_adapters(model, SETTINGS, seed=1)
    add_adapters(AutoModelForCausalLM.from_config(experts), Lora(targets=["o_proj"]), seed=1)
    with pytest.raises(UserError, match=r"lora.targets: .*out_proj.*; name other layers"):
        add_adapters(AutoModelForCausalLM.from_config(MambaConfig(**common)), SETTINGS, seed=1)


@pytest.mark.parametrize("kind", [RewardModule, ValueModule])
def test_a_head_trains_beside_the_adapters_of_its_trunk(kind: Any) -> None:
    module = kind.from_causal_lm(tiny_model("gpt_neox"), seed=1)
    head = module.score if kind is RewardModule else module.head
    add_adapters(module, SETTINGS, 1, [head])
    training = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    rest = {name for name in training if ".lora_" not in name}
    assert rest == {"score.weight" if kind is RewardModule else "head.weight"}
    assert len(training) == 1 + 2 * 8


def test_a_half_precision_weight_is_rounded_once() -> None:
    model = adapted("llama", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    want = by_hand(model)
    for name, found in merged_parameters(model):
        error = (found.double() - want[name]).abs()
        assert bool((error <= 1.001 * 2**-8 * want[name].abs()).all()), "half a unit in the last place of 8 bits"
    torch.testing.assert_close(logits(without_adapters(model)), logits(model), atol=0.25, rtol=0.05)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_export_is_a_plain_model_with_the_adapted_ones_logits(arch: str, tmp_path: Path) -> None:
    tokenizer, model = tiny_tokenizer_dir(tmp_path), adapted(arch)
    export_model(tiny_model(arch), tokenizer, tmp_path / "plain")
    export_model(model, tokenizer, tmp_path / "merged")
    assert has_adapters(model)
    plain, merged = (read_folder(tmp_path / name) for name in ("plain", "merged"))
    assert merged == plain
    found = torch.tensor(read(str(tmp_path / "merged"))["logits"])
    torch.testing.assert_close(found, logits(model), atol=1e-5, rtol=1e-5)


def read_folder(folder: Path) -> dict[str, Any]:
    """Every file's name with its content; of weights, their names, shapes and types."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights = (folder / "model.safetensors").read_bytes()
    found["model.safetensors"] = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    return found


def test_adapters_and_their_exports_under_transformers_4_51(tmp_path: Path, transformers4: str) -> None:
    tokenizer, want = tiny_tokenizer_dir(tmp_path), {}
    for arch in ("llama", "gpt2"):
        model = adapted(arch)
        export_model(model, tokenizer, tmp_path / arch)
        want[arch] = logits(model)
        module = RewardModule.from_causal_lm(tiny_model(arch), seed=1)
        add_adapters(module, SETTINGS, 1, [module.score])
        export_reward_module(shaken(module), tokenizer, tmp_path / f"{arch}-reward")
        with torch.no_grad():
            states = trunk_of(module)(torch.tensor([IDS])).last_hidden_state[0, -1]
            want[f"{arch}-reward"] = states @ module.score.weight[0, :, None]
    command = [transformers4, "-m", "tests.model.lora_check", *(str(tmp_path / name) for name in want)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert {line["transformers"][:5] for line in lines} == {"4.51."}
    assert [line["arch"] for line in lines[: -len(want)]] == list(ARCHITECTURES)
    for line in lines[: -len(want)]:
        assert (line["fresh"], line["off"], line["names"]) == (True, True, True)
        assert line["moved"] > 0.1 > 1e-4 > line["merged"]
    for line, logits_here in zip(lines[-len(want) :], want.values(), strict=True):
        torch.testing.assert_close(torch.tensor(line["logits"]), logits_here, atol=1e-5, rtol=1e-5)
