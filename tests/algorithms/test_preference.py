"""The losses on pairs, against the papers' formulas in 60 digits (mpmath)."""

from __future__ import annotations

import functools
import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.algorithms.preference.dpop import dpop
from posttrain.algorithms.preference.hinge import hinge
from posttrain.algorithms.preference.ipo import ipo
from posttrain.algorithms.preference.orpo import log1mexp, orpo
from posttrain.algorithms.preference.robust import robust
from posttrain.algorithms.preference.sigmoid import sigmoid
from posttrain.algorithms.preference.simpo import simpo

mpmath.mp.dps = 60


def log_sigmoid(x):
    return -mpmath.log(1 + mpmath.exp(-x))


def log_odds(x):
    return x - mpmath.log(1 - mpmath.exp(x))


FORMULAS = {
    "dpo": lambda c, r: -log_sigmoid(mpmath.mpf(0.3) * (c - r)),
    "cdpo": lambda c, r: -0.75 * log_sigmoid(0.5 * (c - r)) - 0.25 * log_sigmoid(0.5 * (r - c)),
    "robust": lambda c, r: (-0.75 * log_sigmoid(0.5 * (c - r)) + 0.25 * log_sigmoid(0.5 * (r - c))) / 0.5,
    "ipo": lambda c, r: (c - r - 1 / (2 * mpmath.mpf(0.1))) ** 2,
    "hinge": lambda c, r: max(mpmath.mpf(0), 1 - 0.25 * (c - r)),
    "simpo": lambda c, r: -log_sigmoid(2 * c - 2 * r - 0.5),
    "orpo": lambda c, r: -0.25 * log_sigmoid(log_odds(c) - log_odds(r)),
    "dpop": lambda c, r: -log_sigmoid(0.25 * (c - r - 5 * max(mpmath.mpf(0), -c))),
}
LOSSES = {
    "dpo": functools.partial(sigmoid, beta=0.3, label_smoothing=0.0),
    "cdpo": functools.partial(sigmoid, beta=0.5, label_smoothing=0.25),
    "robust": functools.partial(robust, beta=0.5, label_smoothing=0.25),
    "ipo": functools.partial(ipo, beta=0.1),
    "hinge": functools.partial(hinge, beta=0.25),
    "simpo": functools.partial(simpo, beta=2.0, target_margin=0.5),
    "orpo": functools.partial(orpo, beta=0.25),
    "dpop": functools.partial(dpop, beta=0.25, dpop_lambda=5.0),
}
FAR = [(1e4, -1e4), (-1e4, 1e4), (-1e4, -9e3), (0.0, 1e4), (-0.01, -0.02), (-800.0, -1e-6)]

every_loss = pytest.mark.parametrize("name", LOSSES)


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def graded(loss, chosen, rejected):
    """Losses, statistics and the gradient with respect to both inputs."""
    chosen, rejected = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
    losses, stats = loss(chosen, rejected)
    losses.sum().backward()
    return losses.detach(), stats, chosen.grad, rejected.grad


def close(ours, exact, rtol=1e-9):
    assert mpmath.almosteq(mpmath.mpf(ours), exact, rel_eps=rtol, abs_eps=1e-300), (ours, exact)


def points(name, normal):
    """Random pairs and far ones; below zero for ORPO, whose inputs are log-probabilities."""
    pairs = [*(20 * normal(12, 2)).tolist(), *(0.3 * normal(12, 2)).tolist(), *FAR]
    return [(-abs(c) or -1.0, -abs(r)) for c, r in pairs] if name == "orpo" else pairs


@every_loss
def test_loss_and_gradient_are_the_papers(name, normal):
    pairs = points(name, normal)
    chosen, rejected = float64(*pairs).unbind(1)
    losses, _, by_chosen, by_rejected = graded(LOSSES[name], chosen, rejected)
    for i, pair in enumerate(pairs):
        c, r = map(mpmath.mpf, pair)
        close(losses[i].item(), FORMULAS[name](c, r))
        if c != 0:  # DPO-positive has a corner there
            close(by_chosen[i].item(), mpmath.diff(lambda x, r=r: FORMULAS[name](x, r), c))
        close(by_rejected[i].item(), mpmath.diff(lambda x, c=c: FORMULAS[name](c, x), r))


@every_loss
def test_statistics(name, normal):
    chosen, rejected = -normal(9).abs(), -normal(9).abs()
    rejected[0] = chosen[0]
    _, stats, _, _ = graded(LOSSES[name], chosen, rejected)
    beta = LOSSES[name].keywords["beta"]
    torch.testing.assert_close(stats["chosen_reward"], beta * chosen, rtol=1e-15, atol=0)
    torch.testing.assert_close(stats["rejected_reward"], beta * rejected, rtol=1e-15, atol=0)
    torch.testing.assert_close(stats["margin"], beta * chosen - beta * rejected, rtol=1e-15, atol=0)
    assert stats["accuracy"].tolist() == [float(c > r) for c, r in zip(chosen, rejected, strict=True)]
    assert stats["accuracy"][0] == 0  # no preference is not a right one
    assert not any(values.requires_grad for values in stats.values())


@every_loss
def test_nothing_overflows_in_float32(name):
    """Every pair of numbers from 1e-30 to 1e4, of both signs, and 0."""
    sizes = torch.logspace(-30, 4, 18)
    chosen, rejected = torch.cartesian_prod(*[torch.cat([-sizes, torch.zeros(1), sizes])] * 2).unbind(1)
    if name == "orpo":
        chosen, rejected = -chosen.abs(), -rejected.abs()
    losses, stats, *slopes = graded(LOSSES[name], chosen, rejected)
    assert all(values.isfinite().all() for values in [losses, *stats.values(), *slopes])
    assert losses.dtype == torch.float32


@every_loss
def test_a_batch_is_its_pairs_alone(name, normal):
    chosen, rejected = -normal(7).abs(), -normal(7).abs()
    whole, _ = LOSSES[name](chosen, rejected)
    alone = torch.cat([LOSSES[name](chosen[i : i + 1], rejected[i : i + 1])[0] for i in range(7)])
    assert torch.equal(whole, alone)


def test_dpo_of_the_reference_itself_is_log_two():
    losses, _ = LOSSES["dpo"](float64(0.0), float64(0.0))
    assert losses.item() == pytest.approx(math.log(2), rel=1e-15)


def test_huge_margins_are_linear_not_infinite():
    losses, _, slope, _ = graded(
        functools.partial(sigmoid, beta=1.0, label_smoothing=0.0), *torch.tensor([[-500.0], [500.0]])
    )
    assert (losses.item(), slope.item()) == (1000, -1)


def test_dpo_optimum_is_the_closed_form():
    """Pairs drawn from Bradley-Terry rewards: the slope is zero where the policy is ref exp(r / beta), normalised."""
    beta, rewards = 0.5, float64(0.3, -0.4, 0.9)
    reference = float64(0.2, 0.5, 0.3).log()
    better, worse = map(list, zip(*[(i, j) for i in range(3) for j in range(3) if i != j], strict=True))
    weights = torch.sigmoid(rewards[better] - rewards[worse])

    def slope(logits):
        logits.requires_grad_()
        ratios = logits.log_softmax(0) - reference
        losses, _ = sigmoid(ratios[better], ratios[worse], beta=beta, label_smoothing=0.0)
        return torch.autograd.grad((weights * losses).sum(), logits)[0]

    assert slope(reference + rewards / beta).abs().max() < 1e-15
    assert slope(reference + rewards / beta + float64(0.01, 0.0, 0.0)).abs().max() > 1e-4


def test_conservative_dpo_stops_where_the_doubt_says():
    """Its gradient is zero where the probability of the preference is 1 - label_smoothing."""
    at = math.log(0.75 / 0.25) / 0.5
    _, _, slope, _ = graded(LOSSES["cdpo"], float64(at), float64(0.0))
    assert abs(slope.item()) < 1e-15


@settings(max_examples=30, deadline=None)
@given(margin=st.floats(-50, 50), share=st.floats(0, 0.49), beta=st.floats(0.01, 2))
def test_robust_dpo_is_unbiased(margin, share, beta):
    """The mean over pairs of which `share` is turned round is DPO's loss on the pairs as they should be."""
    chosen, rejected = float64(margin), float64(0.0)
    right, flipped = (
        robust(*pair, beta=beta, label_smoothing=share)[0] for pair in [(chosen, rejected), (rejected, chosen)]
    )
    clean, _ = sigmoid(chosen, rejected, beta=beta, label_smoothing=0.0)
    torch.testing.assert_close((1 - share) * right + share * flipped, clean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [-0.1, 0.5, 0.7])
def test_robust_dpo_refuses_pairs_that_say_nothing(share):
    with pytest.raises(ValueError, match="from 0 to below"):
        robust(float64(1.0), float64(0.0), beta=0.1, label_smoothing=share)


def test_ipo_is_least_at_its_target():
    losses, _, slope, _ = graded(LOSSES["ipo"], float64(4.9, 5.0, 5.1), float64(0.0, 0.0, 0.0))
    assert losses[1] == 0 < min(losses[0], losses[2])
    assert slope[0] < 0 == slope[1] < slope[2]


def test_hinge_teaches_nothing_beyond_its_margin():
    losses, _, slope, _ = graded(LOSSES["hinge"], float64(3.9, 4.1), float64(0.0, 0.0))
    assert losses.tolist() == [pytest.approx(0.025), 0]
    assert slope.tolist() == [-0.25, 0]


def test_simpo_is_in_doubt_at_its_target_margin():
    losses, stats, slope, _ = graded(LOSSES["simpo"], float64(0.25), float64(0.0))
    assert losses.item() == pytest.approx(math.log(2), rel=1e-15)
    assert slope.item() == -1  # beta times a probability of one half
    assert stats["margin"].item() == 0.5


def test_dpo_positive_is_dpo_while_the_chosen_gains():
    rejected = float64(-3.0, 2.0)
    ours, _ = dpop(float64(0.0, 1.5), rejected, beta=0.3, dpop_lambda=50.0)
    dpo, _ = LOSSES["dpo"](float64(0.0, 1.5), rejected)
    assert torch.equal(ours, dpo)


def test_dpo_positive_pulls_back_a_chosen_that_loses():
    """DPO is content with a rejected one that loses more; DPO-positive's slope is 1 + lambda times as steep."""
    chosen, rejected = float64(-2.0), float64(-40.0)
    _, _, slope, other = graded(LOSSES["dpop"], chosen, rejected)
    assert slope.item() == pytest.approx(-6 * other.item(), rel=1e-12)


def test_orpo_of_equal_probabilities_is_log_two():
    losses, _ = LOSSES["orpo"](float64(-0.7), float64(-0.7))
    assert losses.item() == pytest.approx(0.25 * math.log(2), rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1mexp_keeps_all_digits(dtype):
    """From just below 0 to where e^x is lost beside 1, on both sides of the branch at -log 2."""
    exponents = torch.linspace(math.log(2e-7), math.log(80), 400, dtype=torch.float64)
    x = torch.cat([-exponents.exp(), float64(-math.log(2)), float64(-0.69314), float64(-0.69315)]).to(dtype)
    for argument, ours in zip(x.tolist(), log1mexp(x).tolist(), strict=True):
        close(ours, mpmath.log(1 - mpmath.exp(mpmath.mpf(argument))), rtol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orpo_of_a_certain_completion_has_a_finite_slope(dtype):
    """A probability that rounds to 1 has infinite odds."""
    losses, _, *slopes = graded(LOSSES["orpo"], *torch.tensor([[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]], dtype=dtype))
    assert all(values.isfinite().all() for values in [losses, *slopes])
    assert slopes[1][1] > 0  # the certain rejected one is still pushed down
