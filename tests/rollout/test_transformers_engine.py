"""Generation: exactly the sampled ids, the trainer's log-probabilities, and rows that do not know their batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posttrain.errors import UserError
from posttrain.model.batch import collate, token_log_probs
from posttrain.rollout.engine import Completion, Request, Sampling
from posttrain.rollout.transformers_engine import TransformersEngine
from tests.model.tiny import ARCHITECTURES, CONTEXT, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED
EOS = 2


def requests(lengths: tuple[int, ...] = (5, 1, 17, 9, 5, 12, 3, 8, 30, 2)) -> list[Request]:
    generator = random.Random(1)
    return [Request([generator.randrange(3, 300) for _ in range(n)], seed=100 + i) for i, n in enumerate(lengths)]


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"max_new_tokens": 20, "temperature": 0.9, "eos_id": EOS, "batch": 4, **changes})


def ending_model(arch: str, greedy: bool = False) -> nn.Module:
    """A model that ends its completions: with every twentieth token or so, or, for `greedy`, at times."""
    model = tiny_model(arch)

    def raise_eos(module: nn.Module, arguments: Any, output: Any) -> Any:
        if greedy:
            output.logits[..., EOS] += 4.0
        else:
            output.logits[..., EOS] = output.logits.logsumexp(-1) - 3.0
        return output

    model.register_forward_hook(raise_eos)
    return model


@pytest.mark.parametrize("arch", ALL)
def test_rows_do_not_depend_on_their_batch(arch: str) -> None:
    engine = TransformersEngine(ending_model(arch))
    asked = requests()
    together = engine.generate(asked, sampling(batch=10))
    finishes = [completion.finish for completion in together]
    assert {"eos", "length"} <= set(finishes), "the test needs rows that retire and rows that do not"
    alone = [engine.generate([request], sampling())[0] for request in asked]
    turned = engine.generate(asked[::-1], sampling(batch=3))[::-1]
    for other in (alone, turned):
        assert [c.ids for c in other] == [c.ids for c in together]
        assert [c.finish for c in other] == finishes
        for one, two in zip(other, together, strict=True):
            assert one.log_probs == pytest.approx(two.log_probs, abs=1e-4)


@pytest.mark.parametrize("arch", ALL)
def test_log_probs_are_the_trainers(arch: str) -> None:
    asked = requests()
    for greedy in (False, True):
        model = ending_model(arch, greedy)
        completions = TransformersEngine(model).generate(asked, sampling(temperature=0.7, greedy=greedy))
        batch = collate([(r.prompt_ids, c.ids) for r, c in zip(asked, completions, strict=True)], pad_id=0)
        trainer = token_log_probs(model, batch, 0.7)
        for row, completion in enumerate(completions):
            gap = trainer[row, : len(completion.ids)] - torch.tensor(completion.log_probs)
            assert gap.abs().max() < 1e-4


def greedy_by_transformers(model: nn.Module, request: Request) -> list[int]:
    ids = torch.tensor([request.prompt_ids])
    arguments = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": EOS, "pad_token_id": 0}
    tokens: Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    return tokens[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("arch", ALL)
def test_greedy_equals_transformers_generate(arch: str) -> None:
    model = ending_model(arch, greedy=True)
    asked = requests()
    completions = TransformersEngine(model).generate(asked, sampling(greedy=True))
    for request, completion in zip(asked, completions, strict=True):
        assert completion.ids == greedy_by_transformers(model, request)


def test_ids_end_with_the_eos_that_was_sampled() -> None:
    for completion in TransformersEngine(ending_model("llama")).generate(requests(), sampling()):
        assert EOS not in completion.ids[:-1]
        assert (completion.ids[-1] == EOS) == (completion.finish == "eos")
        assert len(completion.ids) == 20 or completion.finish == "eos"
        assert len(completion.log_probs) == len(completion.ids)


def test_samples_follow_the_models_distribution() -> None:
    model = tiny_model("gpt2", vocab=12)
    prompt = [3, 4, 5]
    asked = [Request(prompt, seed) for seed in range(4000)]
    completions = TransformersEngine(model).generate(asked, sampling(max_new_tokens=1, batch=1000, eos_id=0))
    observed = torch.bincount(torch.tensor([c.ids[0] for c in completions]), minlength=12) / 4000
    expected = (model(torch.tensor([prompt])).logits[0, -1] / 0.9).softmax(-1)
    assert (4000 * (observed - expected) ** 2 / expected).sum() < 31.3  # chi-square, 11 degrees of freedom, p = 0.001


def test_the_seed_decides_the_sample_and_a_longer_limit_only_continues_it() -> None:
    engine = TransformersEngine(tiny_model("qwen2"))
    prompt = [3, 4, 5]
    short = engine.generate([Request(prompt, 1), Request(prompt, 1), Request(prompt, 2)], sampling(max_new_tokens=6))
    assert short[0].ids == short[1].ids != short[2].ids
    longer = engine.generate([Request(prompt, 1)], sampling(max_new_tokens=20))[0]
    assert longer.ids[:6] == short[0].ids


def test_finished_rows_cost_nothing_and_shared_prompts_are_read_once() -> None:
    model = ending_model("llama")
    read: list[int] = []
    rows: list[int] = []

    def count(module: nn.Module, arguments: Any, inputs: dict[str, Any]) -> None:
        ids = inputs["input_ids"]
        (rows if inputs["past_key_values"].get_seq_length() else read).append(len(ids))

    model.register_forward_pre_hook(count, with_kwargs=True)
    completions = TransformersEngine(model).generate(
        [Request(request.prompt_ids, seed) for request in requests() for seed in range(3)], sampling(batch=30)
    )
    lengths = [len(completion.ids) for completion in completions]
    assert sum(read) == len(requests())
    assert rows == [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def test_a_repeated_call_gives_the_same_bytes() -> None:
    asked = [Request(request.prompt_ids, seed) for request in requests() for seed in range(3)]
    model = ending_model("qwen2")
    first, second = (TransformersEngine(model).generate(asked, sampling(batch=7)) for _ in range(2))
    assert first == second


def test_training_mode_is_put_back_and_dropout_is_off() -> None:
    model = tiny_model("gpt2").train()
    engine = TransformersEngine(model)
    first, second = (engine.generate(requests(), sampling()) for _ in range(2))
    assert first == second
    assert model.training


@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_no_room_in_the_context(arch: str) -> None:
    engine = TransformersEngine(tiny_model(arch))
    engine.generate(requests((CONTEXT - 4,)), sampling(max_new_tokens=4))
    with pytest.raises(UserError, match=rf"125 tokens.*max_new_tokens 4.*{CONTEXT}"):
        engine.generate(requests((CONTEXT - 3,)), sampling(max_new_tokens=4))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="request 1"):
        TransformersEngine(tiny_model("llama")).generate([Request([4], 0), Request([], 0)], sampling())


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"temperature": -1.0}, {"max_new_tokens": 0}, {"batch": 0}])
def test_impossible_sampling_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        sampling(**changes)


def stream(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in model.named_parameters()]


def generated(engine: TransformersEngine) -> list[Completion]:
    return engine.generate(requests(), sampling())


def test_weights_are_copied_and_the_version_counts() -> None:
    trained, engine = tiny_model("llama", seed=7), TransformersEngine(tiny_model("llama", seed=0))
    before = generated(engine)
    moved = engine.load_weights(iter(stream(trained)))
    assert moved == sum(p.nbytes for p in trained.parameters())
    after, want = generated(engine), generated(TransformersEngine(trained))
    assert [c.ids for c in after] == [c.ids for c in want] != [c.ids for c in before]
    assert {c.version for c in before} == {0}
    assert {c.version for c in after} == {1}


def test_a_shared_model_moves_nothing() -> None:
    model = tiny_model("llama")
    engine = TransformersEngine(model)
    assert engine.load_weights(stream(model)) == 0
    assert engine.version == 1


def test_faulty_streams_name_the_parameter() -> None:
    model = tiny_model("llama")
    good = stream(tiny_model("llama", seed=1))
    name, tensor = good[3]
    tied = ("lm_head.weight", dict(good)["model.embed_tokens.weight"])
    faulty = {
        rf"{name} is missing": good[:3] + good[4:],
        r"lm_head\.weight is tied": [*good, tied],
        r"nonsense is unknown": [*good, ("nonsense", tensor)],
        rf"{name} is sent twice": [*good, good[3]],
        rf"{name} is \(": [(n, t[:1] if n == name else t) for n, t in good],
    }
    for message, weights in faulty.items():
        engine = TransformersEngine(model)
        with pytest.raises(ValueError, match=message):
            engine.load_weights(weights)
        assert engine.version == 0
