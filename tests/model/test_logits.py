"""Log-probabilities and entropy against float64 autograd, and drawing by the inverse distribution function."""

from __future__ import annotations

import pytest
import torch

from posttrain.model import logits as module
from posttrain.model.logits import best, draw, scale, selected_log_probs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 3 * 11)  # three rows of the 11-wide logits below


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(9, 11, generator=generator)
    return logits, torch.tensor([0, 10, 5, 5, 1, 3, 2, 9, 0])


def reference(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.log_softmax(logits / temperature, dim=-1)
    return table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_equals_float64_autograd(temperature: float, with_entropy: bool) -> None:
    logits, targets = example()
    mine, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    weights = torch.linspace(-1, 2, len(targets))
    log_probs, entropy = selected_log_probs(mine * 1, targets, temperature, with_entropy)
    want_log_probs, want_entropy = reference(exact, targets, temperature)
    torch.testing.assert_close(log_probs.double(), want_log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), want_entropy * with_entropy, atol=1e-5, rtol=0)
    (log_probs * weights + entropy * weights.flip(0)).sum().backward()
    (want_log_probs * weights + with_entropy * want_entropy * weights.flip(0)).sum().backward()
    torch.testing.assert_close(mine.grad.double(), exact.grad, atol=1e-5, rtol=0)


def test_half_precision_keeps_its_dtype_in_the_gradient_and_float32_in_the_value() -> None:
    logits, targets = example()
    half = logits.bfloat16().requires_grad_()
    log_probs, _ = selected_log_probs(half * 1, targets, 1.0)
    log_probs.sum().backward()
    assert log_probs.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    want, _ = reference(half.detach().double(), targets, 1.0)
    torch.testing.assert_close(log_probs.double(), want, atol=1e-5, rtol=0)


def test_no_rows_give_no_gradient() -> None:
    logits = example()[0].requires_grad_()
    nothing = torch.zeros(0, dtype=torch.int64)
    selected_log_probs(logits[:0] * 1, nothing, 1.0)[0].sum().backward()
    assert not logits.grad.any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_takes_the_memory_of_the_logits_and_no_other(temperature: float, dtype: torch.dtype) -> None:
    values, targets = example()
    leaf = values.to(dtype).requires_grad_()
    logits = leaf * 1
    address = logits.data_ptr()
    found: list[int] = []
    logits.register_hook(lambda gradient: found.append(gradient.data_ptr()))
    selected_log_probs(logits, targets, temperature)[0].sum().backward()
    assert found == [address]
    assert torch.equal(leaf.detach(), values.to(dtype))


def test_memory_that_others_need_is_not_taken_in_silence() -> None:
    values, targets = example()
    leaf = values.requires_grad_()
    with pytest.raises(AssertionError, match="parameter"):
        selected_log_probs(leaf, targets, 1.0)
    capped = (leaf * 1).tanh()  # its backward pass reads its own output
    total = selected_log_probs(capped, targets, 1.0)[0].sum() + capped.exp().sum()
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()
    again = selected_log_probs(leaf * 1, targets, 1.0)[0].sum()
    again.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        again.backward()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        scale(torch.zeros(2), temperature)


def test_draw_never_takes_a_token_of_zero_probability() -> None:
    logits = torch.tensor([[-500.0, 1.0, -500.0, 2.0, -500.0]])
    edge = [0.0, 1 - 2.0**-53, float(torch.softmax(logits, -1)[0, 1]), 0.5]
    for uniform in edge:
        ids, log_probs = draw(logits, torch.tensor([uniform], dtype=torch.float64), 1.0)
        assert ids.item() in (1, 3)
        assert log_probs.item() > -2
    # Totals on both sides of 1, at the largest uniform there is: the last token, of no probability, is out of reach.
    many = torch.randn(5000, 7, generator=torch.Generator().manual_seed(0)) * 3
    many[:, -1] = -500.0
    ids, _ = draw(many, torch.full((5000,), 1 - 2.0**-53, dtype=torch.float64), 1.0)
    assert ids.max() == 5


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draw_follows_the_distribution(temperature: float) -> None:
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0])
    count = 20_000
    uniforms = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ids, log_probs = draw(logits.expand(count, 4), uniforms, temperature)
    expected = torch.softmax(logits / temperature, -1)
    observed = torch.bincount(ids, minlength=4) / count
    assert (count * (observed - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001
    torch.testing.assert_close(log_probs, expected.log()[ids])


def test_best_is_the_argmax_with_its_log_probability() -> None:
    logits = example()[0]
    ids, log_probs = best(logits, 0.7)
    assert torch.equal(ids, logits.argmax(-1))
    torch.testing.assert_close(log_probs, (logits / 0.7).log_softmax(-1).max(-1).values)


@pytest.mark.parametrize("width", [512, 513, 3000, 4096])
def test_draw_from_a_large_vocabulary_is_the_inverse_of_the_distribution(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = 5 * torch.randn(400, width, generator=generator)
    logits[:, generator.initial_seed() % 7 :: 7] = -500.0
    uniforms = torch.rand(400, dtype=torch.float64, generator=generator)
    ids, log_probs = draw(logits, uniforms, 0.8)
    exact = (logits.double() / 0.8).log_softmax(-1)
    until = exact.exp().cumsum(-1).gather(1, ids[:, None])[:, 0]
    # The number falls into the token's own part of [0, 1), to within float32.
    assert (uniforms < until + 1e-6).all()
    assert (uniforms > until - exact.exp().gather(1, ids[:, None])[:, 0] - 1e-6).all()
    torch.testing.assert_close(log_probs, exact.gather(1, ids[:, None])[:, 0].float(), rtol=0, atol=1e-5)
    assert (ids % 7 != generator.initial_seed() % 7).all()


def test_draw_from_a_large_vocabulary_at_the_edges() -> None:
    logits = torch.full((3, 2000), -500.0)
    logits[0, 700:702], logits[1, [0, 1999]], logits[2, 511:513] = 0.0, 0.0, 0.0
    for uniform, want in ((0.0, [700, 0, 511]), (0.5, [701, 1999, 512]), (1 - 2.0**-53, [701, 1999, 512])):
        ids, _ = draw(logits, torch.full((3,), uniform, dtype=torch.float64), 1.0)
        assert ids.tolist() == want
