from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.kl import adapted_coef, k1, k2, k3, penalised_rewards


@pytest.fixture
def vocabulary(normal):
    """Log-probabilities of two distributions over 13 tokens, the first of which wants a gradient."""
    logits = normal(13).requires_grad_()
    return logits, logits.log_softmax(0), normal(13).log_softmax(0)


EVERY = torch.ones(13, dtype=torch.bool)


def exact_kl(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum()


@pytest.mark.parametrize("estimator", [k1, k3])
def test_the_expectation_is_the_exact_kl(estimator, vocabulary):
    _, log_p, log_q = vocabulary
    expectation = (log_p.exp() * estimator(log_p, log_q, EVERY)).sum()
    torch.testing.assert_close(expectation, exact_kl(log_p, log_q), rtol=1e-12, atol=0)


def test_k2_is_biased_but_its_expected_gradient_is_exact(vocabulary):
    logits, log_p, log_q = vocabulary
    probabilities = log_p.exp().detach()  # the sampling is not differentiated
    (ours,) = torch.autograd.grad((probabilities * k2(log_p, log_q, EVERY)).sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad(exact_kl(log_p, log_q), logits, retain_graph=True)
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)
    assert abs((probabilities * k2(log_p, log_q, EVERY)).sum() - exact_kl(log_p, log_q)) > 1e-3


def test_brute_force(normal, ragged_mask):
    p, q, mask = normal(4, 5), normal(4, 5), ragged_mask(4, 5)
    formulas = {
        k1: lambda a, b: a - b,
        k2: lambda a, b: (a - b) ** 2 / 2,
        k3: lambda a, b: math.exp(b - a) - 1 - (b - a),
    }
    for estimator, formula in formulas.items():
        ours = estimator(p, q, mask)
        for i in range(4):
            for j in range(5):
                wanted = formula(p[i, j].item(), q[i, j].item()) if mask[i, j] else 0.0
                assert math.isclose(ours[i, j].item(), wanted, rel_tol=1e-9, abs_tol=1e-14)


@pytest.mark.parametrize("estimator", [k2, k3])
def test_never_negative_and_zero_at_equality(estimator, normal):
    p, mask = normal(4, 5), torch.ones(4, 5, dtype=torch.bool)
    assert (estimator(p, p + 0.1 * normal(4, 5), mask) > 0).all()
    assert (estimator(p, p, mask) == 0).all()


def test_k3_keeps_its_digits_near_equality():
    """exp(x) - 1 - x by subtraction would lose them all in float32."""
    p, q = torch.zeros(1, 1), torch.full((1, 1), 1e-3)
    torch.testing.assert_close(k3(p, q, torch.ones(1, 1, dtype=torch.bool)).item(), 5.0017e-7, rtol=2e-4, atol=0)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_masked_values_do_not_leak(estimator, garbage, normal, ragged_mask):
    mask = ragged_mask(4, 5)
    p = normal(4, 5).masked_fill(~mask, garbage).requires_grad_()
    values = estimator(p, normal(4, 5).masked_fill(~mask, garbage), mask)
    values.sum().backward()
    assert (values[~mask] == 0).all() and values.isfinite().all()
    assert (p.grad[~mask] == 0).all() and p.grad.isfinite().all()


def test_penalised_rewards(normal, ragged_mask):
    scores, kl, mask = normal(5), normal(5, 6), ragged_mask(5, 6)
    mask[2] = False
    mask[0, 2:4] = False  # a gap: the last token is still the last one
    ours = penalised_rewards(scores.requires_grad_(), kl.masked_fill(~mask, torch.nan), mask, 0.3)
    assert not ours.requires_grad
    for i in range(5):
        own = [j for j in range(6) if mask[i, j]]
        for j in range(6):
            wanted = -0.3 * kl[i, j].item() if j in own else 0.0
            wanted += scores[i].item() if own and j == own[-1] else 0.0
            assert math.isclose(ours[i, j].item(), wanted, rel_tol=1e-12, abs_tol=1e-15)


def test_a_row_without_tokens_does_not_leak_its_score():
    scores, mask = torch.tensor([torch.nan, 1.0]), torch.tensor([[False, False], [True, False]])
    rewards = penalised_rewards(scores, torch.zeros(2, 2), mask, 0.1)
    assert rewards.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("kl", "factor"), [(6.0, 1.0), (60.0, 1.02), (0.0, 0.98), (6.6, 1.01), (5.4, 0.99), (7.2, 1.02), (-3.0, 0.98)]
)
def test_the_adaptive_coefficient(kl, factor):
    """The error is kl / target - 1, held at 20 %; 100 samples of a horizon of 1000 take a tenth of it."""
    assert adapted_coef(0.2, kl, target=6.0, horizon=1000, samples=100) == pytest.approx(0.2 * factor, rel=1e-12)


def test_the_adaptive_coefficient_finds_the_target():
    """A policy whose KL is inverse to the coefficient: the controller settles where the KL is the target."""
    coef = 0.01
    for _ in range(400):
        coef = adapted_coef(coef, 0.3 / coef, target=6.0, horizon=1000, samples=100)
    assert coef == pytest.approx(0.05, rel=1e-3)
