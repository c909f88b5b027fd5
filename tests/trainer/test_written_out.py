"""The trainers' losses beside the papers' equations, written out token by token in float64 without a tensor.

Rows are ragged, numbers where there is no token are NaN, and a minibatch is cut into unequal micro-batches whose losses
and gradients are added, as the learner does it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.config.registry import METHODS, entries, resolve, settings_of
from posttrain.config.runs import settings_for
from posttrain.trainer.objectives.best_of_n import BestOfN
from posttrain.trainer.objectives.greedy_baseline import GreedyBaseline
from posttrain.trainer.objectives.groups import Groups
from posttrain.trainer.objectives.labels import BCOLabels, KTOLabels
from posttrain.trainer.pair_loss import pair_loss
from posttrain.trainer.policy_gradient import PolicyGradient
from tests.config.sections import run_of

LENGTHS = [3, 1, 5, 2, 4, 4, 1, 2]
GROUPS = [0, 0, 0, 0, 7, 7, 7, 7]
CUTS = [[2, 0], [5], [1, 3, 7], [6, 4]]
WIDTH, LONGEST = 5, 9
Rows = list[list[float]]


def draw(seed: int, low: float, high: float) -> Rows:
    """One number for each token of each row."""
    source = random.Random(seed)
    return [[source.uniform(low, high) for _ in range(length)] for length in LENGTHS]


def padded(rows: Rows) -> Tensor:
    found = torch.full((len(rows), WIDTH), math.nan, dtype=torch.float64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return found


MASK = torch.tensor([[t < length for t in range(WIDTH)] for length in LENGTHS])
NOW, OLD, REFERENCE = draw(1, -3, -0.1), draw(2, -3, -0.1), draw(3, -3, -0.1)
NEAR = [[old + 0.3 * math.sin(7 * t + i) for t, old in enumerate(row)] for i, row in enumerate(OLD)]
SCORES = [0.3, -1.2, 2.5, 0.7, 1.1, 1.0, -0.4, 3.0]
GREEDY = {0: 0.4, 7: -0.9}
LABELS = {"kto": KTOLabels, "bco": BCOLabels}


def bound(run: Any) -> dict[str, Callable[..., Any]]:
    found = {name: entry for name, entry in entries(run).items() if name != "job"}
    return {
        name: functools.partial(resolve(entry), **{key: settings_for(run, key) for key in settings_of(entry)})
        for name, entry in found.items()
    }


def ours(method: str, now: Rows, job: type[PolicyGradient], **settings: Any) -> tuple[float, Tensor]:
    """Loss and gradient of the method's own trainer, over micro-batches."""
    run = run_of(method, max_new_tokens=LONGEST, **settings)
    zeroed = [torch.where(MASK, padded(rows), 0.0) for rows in (OLD, REFERENCE)]
    trainer = SimpleNamespace(settings=run, parts=bound(run), kl_coef=run.kl_coef)
    experience = SimpleNamespace(
        mask=MASK, old=zeroed[0], sampled=zeroed[0], reference=zeroed[1] if run.kl_coef else None,
        scores=torch.tensor(SCORES, dtype=torch.float64), groups=torch.tensor(GROUPS), advantages=None,
    )  # fmt: skip
    trainer.tensors, trainer.prepared = (lambda samples: experience), (lambda base: base)
    trainer.rewards = functools.partial(PolicyGradient.rewards, trainer)
    trainer.baselines = lambda samples: torch.tensor([GREEDY[g] for g in GROUPS], dtype=torch.float64)
    job.estimate(trainer, [])
    policy = padded(now).requires_grad_()
    total = 0.0
    order = [6, 3, 0, 1, 7, 2, 5, 4]
    loss = PolicyGradient.policy_loss(trainer, experience, order)
    for cut in CUTS:
        width = max(LENGTHS[order[i]] for i in cut)
        rows = [order[i] for i in cut]
        part, _ = loss(torch.tensor(cut), policy[rows, :width], MASK[rows, :width])
        part.backward()
        total += float(part.detach())
    return total, policy.grad


def check(method: str, of: Callable[[Rows], float], now: Rows, job: type = Groups, **settings: Any) -> None:
    """Loss, and its gradient by differences of the equation."""
    loss, gradient = ours(method, now, job, **settings)
    assert loss == pytest.approx(of(now), rel=1e-9, abs=1e-12)
    step = 1e-6
    for i, row in enumerate(now):
        for t in range(len(row)):
            up, down = ([list(r) for r in now] for _ in range(2))
            up[i][t] += step
            down[i][t] -= step
            assert float(gradient[i, t]) == pytest.approx((of(up) - of(down)) / (2 * step), rel=1e-5, abs=1e-8)
    assert gradient[~MASK].eq(0).all()


def mates(i: int) -> list[int]:
    return [j for j, group in enumerate(GROUPS) if group == GROUPS[i]]


def centred(i: int, rewards: list[float] = SCORES) -> float:
    return rewards[i] - sum(rewards[j] for j in mates(i)) / len(mates(i))


def over_std(i: int) -> float:
    variance = sum(centred(j) ** 2 for j in mates(i)) / (len(mates(i)) - 1)
    return centred(i) / (math.sqrt(variance) + 1e-6)


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def tokens(of: Callable[[int, int], float]) -> list[list[float]]:
    return [[of(i, t) for t in range(length)] for i, length in enumerate(LENGTHS)]


def test_grpo_with_its_kl_term() -> None:
    """arXiv:2402.03300 eq. 3 and 4."""

    def loss(now: Rows) -> float:
        def of(i: int, t: int) -> float:
            back = REFERENCE[i][t] - now[i][t]
            ratio = math.exp(now[i][t] - OLD[i][t])
            return clipped(ratio, over_std(i), 0.2, 0.2) - 0.05 * (math.exp(back) - back - 1)

        return -sum(sum(row) / len(row) for row in tokens(of)) / len(LENGTHS)

    check("grpo", loss, NOW)


def test_dr_grpo_divides_by_constants_alone() -> None:
    """arXiv:2503.20783 section 3.1, with the longest completion as the constant."""

    def loss(now: Rows) -> float:
        terms = tokens(lambda i, t: clipped(math.exp(now[i][t] - OLD[i][t]), centred(i), 0.2, 0.2))
        return -sum(map(sum, terms)) / (len(LENGTHS) * LONGEST)

    check("dr_grpo", loss, NOW)


def test_dapo_counts_each_token_of_the_minibatch_alike() -> None:
    """arXiv:2503.14476 eq. 8."""

    def loss(now: Rows) -> float:
        terms = tokens(lambda i, t: clipped(math.exp(now[i][t] - OLD[i][t]), over_std(i), 0.2, 0.28))
        return -sum(map(sum, terms)) / sum(LENGTHS)

    check("dapo", loss, NOW)


def test_gspo_has_one_ratio_for_a_sequence() -> None:
    """arXiv:2507.18071 eq. 5 to 7, the sequence's form."""

    def loss(now: Rows) -> float:
        found = 0.0
        for i, length in enumerate(LENGTHS):
            ratio = math.exp(sum(a - b for a, b in zip(now[i], OLD[i], strict=True)) / length)
            found += clipped(ratio, over_std(i), 0.1, 0.15)
        return -found / len(LENGTHS)

    check("gspo", loss, NEAR, clip_low=0.1, clip_high=0.15)


def test_cispo_clips_weights_and_stops_no_gradient() -> None:
    """arXiv:2506.13585 eq. 4 and 5: the weight is a constant, taken at NOW."""

    def loss(now: Rows) -> float:
        def of(i: int, t: int) -> float:
            weight = min(math.exp(NOW[i][t] - OLD[i][t]), 1 + 0.5)
            return weight * over_std(i) * now[i][t]

        return -sum(map(sum, tokens(of))) / sum(LENGTHS)

    check("cispo", loss, NOW, clip_high=0.5)


def test_opo_has_a_baseline_weighted_by_length() -> None:
    """arXiv:2505.23585."""

    def advantage(i: int) -> float:
        weights = sum(LENGTHS[j] for j in mates(i))
        return SCORES[i] - sum(LENGTHS[j] * SCORES[j] for j in mates(i)) / weights

    def loss(now: Rows) -> float:
        terms = tokens(lambda i, t: clipped(math.exp(now[i][t] - OLD[i][t]), advantage(i), 0.2, 0.2))
        return -sum(map(sum, terms)) / (len(LENGTHS) * LONGEST)

    check("opo", loss, NOW)


def test_rloo_takes_a_completion_as_one_action() -> None:
    """arXiv:2402.14740, with the KL paid by the reward of each sequence."""
    paid = [
        score - 0.05 * sum(a - b for a, b in zip(OLD[i], REFERENCE[i], strict=True)) for i, score in enumerate(SCORES)
    ]

    def advantage(i: int) -> float:
        others = [paid[j] for j in mates(i) if j != i]
        return paid[i] - sum(others) / len(others)

    def loss(now: Rows) -> float:
        ratios = [math.exp(sum(now[i]) - sum(OLD[i])) for i in range(len(LENGTHS))]
        return -sum(clipped(ratio, advantage(i), 0.2, 0.2) for i, ratio in enumerate(ratios)) / len(LENGTHS)

    check("rloo", loss, NEAR)


def whitened(values: list[list[float]]) -> list[list[float]]:
    flat = [value for row in values for value in row]
    mean = sum(flat) / len(flat)
    spread = math.sqrt(sum((value - mean) ** 2 for value in flat) / (len(flat) - 1) + 1e-8)
    return [[(value - mean) / spread for value in row] for row in values]


def returns(gamma: float) -> list[list[float]]:
    """Of the score at the last token, and the price 0.05 of a nat at each."""

    def of(i: int, t: int) -> float:
        later = range(t, LENGTHS[i])
        price = sum(gamma ** (s - t) * 0.05 * (OLD[i][s] - REFERENCE[i][s]) for s in later)
        return gamma ** (LENGTHS[i] - 1 - t) * SCORES[i] - price

    return tokens(of)


def test_reinforce_plus_plus_whitens_returns_over_the_step() -> None:
    """arXiv:2501.03262."""
    advantages = whitened(returns(0.9))

    def loss(now: Rows) -> float:
        terms = tokens(lambda i, t: clipped(math.exp(now[i][t] - OLD[i][t]), advantages[i][t], 0.2, 0.2))
        return -sum(map(sum, terms)) / sum(LENGTHS)

    check("reinforce++", loss, NOW, gamma=0.9)


def test_reinforce_plus_plus_with_baseline() -> None:
    """arXiv:2501.03262, with the KL as k2 in the loss."""
    advantages = whitened(tokens(lambda i, t: centred(i)))

    def loss(now: Rows) -> float:
        def of(i: int, t: int) -> float:
            gain = clipped(math.exp(now[i][t] - OLD[i][t]), advantages[i][t], 0.2, 0.2)
            return gain - 0.05 * (now[i][t] - REFERENCE[i][t]) ** 2 / 2

        return -sum(map(sum, tokens(of))) / sum(LENGTHS)

    check("reinforce++_baseline", loss, NOW)


def test_remax_takes_the_greedy_score_from_each_return() -> None:
    """arXiv:2310.10505 algorithm 1."""
    back = returns(1.0)

    def loss(now: Rows) -> float:
        terms = tokens(lambda i, t: (back[i][t] - GREEDY[GROUPS[i]]) * now[i][t])
        return -sum(map(sum, terms)) / (len(LENGTHS) * LONGEST)

    check("remax", loss, NOW, GreedyBaseline, policy_loss="reinforce")


def test_raft_is_sft_on_the_best() -> None:
    """arXiv:2304.06767 algorithm 1: all that is learnt is the chosen rows."""
    run = run_of("raft")
    trainer = SimpleNamespace(parts=bound(run))
    best = [2, 7]
    assert bound(run)["best_of_n"](torch.tensor(SCORES), torch.tensor(GROUPS)).nonzero()[:, 0].tolist() == best
    mask = MASK[best]
    experience = SimpleNamespace(mask=mask, advantages=mask.double(), sampled=padded(OLD)[best])
    policy = padded(NOW)[best].requires_grad_()
    total = 0.0
    for i in (1, 0):
        part, _ = BestOfN.loss(trainer, experience, [1, 0])(torch.tensor([1 - i]), policy[[i]], mask[[i]])
        part.backward()
        total += float(part.detach())
    count = sum(LENGTHS[i] for i in best)
    assert total == pytest.approx(-sum(sum(NOW[i]) for i in best) / count, rel=1e-12)
    assert policy.grad[mask].tolist() == pytest.approx([-1 / count] * count)


@pytest.mark.parametrize("method", [name for name in METHODS if "loss" in METHODS[name].choices and name not in LABELS])
def test_losses_on_pairs(method: str) -> None:
    """Rows 2 i and 2 i + 1 are a pair, in unequal micro-batches of pairs."""
    run: Any = run_of(method)
    reference = [(sum(REFERENCE[i]), sum(REFERENCE[i + 1])) for i in range(0, 8, 2)]

    def of(now: Rows) -> float:
        found = 0.0
        for pair, i in enumerate(range(0, 8, 2)):
            x = [sum(now[i]), sum(now[i + 1])]
            if not run.reference_free:
                x = [a - b for a, b in zip(x, reference[pair], strict=True)]
            if run.length_normalised:
                x = [x[0] / LENGTHS[i], x[1] / LENGTHS[i + 1]]
            found += written(run, *x) / 4
        nll = -sum(sum(now[i]) for i in range(0, 8, 2)) / sum(LENGTHS[i] for i in range(0, 8, 2))
        return found + run.nll_coef * nll

    units = [(([1], [0] * LENGTHS[i]), ([1], [0] * LENGTHS[i + 1])) for i in range(0, 8, 2)]
    given = None if run.reference_free else torch.tensor(reference, dtype=torch.float64)
    loss = pair_loss(bound(run)["loss"], run, units, given)
    policy = padded(NOW).requires_grad_()
    total = 0.0
    for pairs in ([3, 1], [0], [2]):
        rows = [row for pair in pairs for row in (2 * pair, 2 * pair + 1)]
        part, _ = loss(torch.tensor(pairs), policy[rows], MASK[rows])
        part.backward()
        total += float(part.detach())
    assert total == pytest.approx(of(NOW), rel=1e-9)
    for i, row in enumerate(NOW):
        for t in range(len(row)):
            up, down = ([list(r) for r in NOW] for _ in range(2))
            up[i][t] += 1e-6
            down[i][t] -= 1e-6
            assert float(policy.grad[i, t]) == pytest.approx((of(up) - of(down)) / 2e-6, rel=1e-5, abs=1e-8)


GOOD = [True, False, False, True, False, False, True, False]
MINIBATCHES = [[4, 0, 3], [7, 1, 6], [2, 5, 0]]


def labels_job(method: str, now: list[Rows], **settings: Any) -> Any:
    """The method's own job, whose policy gives the log-probabilities now[step - 1] and counts gradients for none."""
    job: Any = object.__new__(LABELS[method])
    job.settings = run_of(method, **settings)
    job.parts = bound(job.settings)
    job.rows = [([1], [i] * length) for i, length in enumerate(LENGTHS)]
    job.labels = torch.tensor(GOOD)
    job.reference = torch.tensor([sum(row) for row in REFERENCE], dtype=torch.float64)
    job.order = SimpleNamespace(rows=lambda step: MINIBATCHES[step - 1], minibatch=3)

    def update(units: Any, loss: Any, step: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        for cut in ([2, 0], [1]):
            rows = [units[i][0][1][0] for i in cut]
            part, stats = loss(torch.tensor(cut), padded(now[step - 1])[rows], MASK[rows])
            for name, value in {"loss": part, **stats}.items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    job.actor = SimpleNamespace(update=update)
    return job


def test_bco_measures_from_the_mean_of_all_rewards_before() -> None:
    """arXiv:2404.04656."""
    now = [NOW, NEAR, OLD]
    job = labels_job("bco", now, beta=0.4)
    before: list[float] = []
    for step, numbers in enumerate(MINIBATCHES, 1):
        shift = sum(before) / len(before) if before else 0.0
        rewards = [0.4 * (sum(now[step - 1][i]) - sum(REFERENCE[i])) for i in numbers]
        signs = [1 if GOOD[i] else -1 for i in numbers]
        wanted = sum(math.log1p(math.exp(-s * (r - shift))) for s, r in zip(signs, rewards, strict=True)) / 3
        assert job.train_step(step)[0]["train/loss"] == pytest.approx(wanted, rel=1e-6)
        before += rewards


@pytest.mark.parametrize("shift", [0.7, -0.7])
def test_kto_measures_from_the_mismatched_rows_of_the_minibatch(shift: float) -> None:
    """arXiv:2402.01306 eq. 8 and section 4.1."""
    job = labels_job("kto", [NOW], beta=0.4, desirable_weight=1.5, undesirable_weight=0.6)
    job.mismatched = [([2], [i]) for i in range(len(LENGTHS))]
    job.further_reference = torch.tensor([0.1 * i for i in range(len(LENGTHS))], dtype=torch.float64)
    job.actor.log_probs = lambda rows: torch.tensor([[0.2 * row[1][0], shift] for row in rows], dtype=torch.float64)
    z0 = max(0.0, sum(0.1 * i + shift for i in MINIBATCHES[0]) / 3)
    assert (z0 > 0) == (shift > 0)
    wanted = 0.0
    for i in MINIBATCHES[0]:
        gain = 0.4 * (sum(NOW[i]) - sum(REFERENCE[i]) - z0) * (1 if GOOD[i] else -1)
        wanted += (1.5 if GOOD[i] else 0.6) * (1 - 1 / (1 + math.exp(-gain))) / 3
    assert job.train_step(1)[0]["train/loss"] == pytest.approx(wanted, rel=1e-9)


def written(run: Any, w: float, l: float) -> float:  # noqa: E741
    """The table of docs/algorithms.md."""

    def log_sigmoid(x: float) -> float:
        return -math.log1p(math.exp(-x))

    m, e = run.beta * (w - l), run.label_smoothing
    if run.loss == "ipo":
        return (w - l - 1 / (2 * run.beta)) ** 2
    if run.loss == "hinge":
        return max(0.0, 1 - m)
    if run.loss == "simpo":
        return -log_sigmoid(m - run.target_margin)
    if run.loss == "robust":
        return (-(1 - e) * log_sigmoid(m) + e * log_sigmoid(-m)) / (1 - 2 * e)
    if run.loss == "dpop":
        return -log_sigmoid(run.beta * (w - l - run.dpop_lambda * max(0.0, -w)))
    if run.loss == "orpo":
        odds = [math.exp(x) / (1 - math.exp(x)) for x in (w, l)]
        return -run.beta * log_sigmoid(math.log(odds[0] / odds[1]))
    return -(1 - e) * log_sigmoid(m) - e * log_sigmoid(-m)
