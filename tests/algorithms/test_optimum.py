"""Where the losses lead, on a problem small enough to enumerate: all completions of two tokens, a table as the policy.

Three tokens, of which none ends: nine completions. Expected reward, KL and the losses' expectations are sums over all
of them (or over all pairs of them), so nothing is sampled, and the optimum of reward - beta KL is known in closed form:
pi(y) = ref(y) exp(r(y) / beta) / Z (arXiv:2305.18290 eq. 4).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from posttrain.algorithms.kl import k1, k2, k3, penalised_rewards
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.gspo import gspo
from posttrain.algorithms.policy_loss.reinforce import reinforce
from posttrain.algorithms.policy_loss.sequence_clipped import sequence_clipped
from posttrain.algorithms.preference.bco import bco
from posttrain.algorithms.preference.dpop import dpop
from posttrain.algorithms.preference.ipo import ipo
from posttrain.algorithms.preference.kto import kto
from posttrain.algorithms.preference.robust import robust
from posttrain.algorithms.preference.sigmoid import sigmoid

TOKENS, BETA = 3, 0.4
COMPLETIONS = list(itertools.product(range(TOKENS), repeat=2))
# A state is the beginning (0) or the first token (1 + token).
STATE = torch.tensor([[0, 1 + first] for first, _ in COMPLETIONS])
TOKEN = torch.tensor(COMPLETIONS)
MASK = torch.ones_like(TOKEN, dtype=torch.bool)
PAIRS = torch.tensor(list(itertools.permutations(range(len(COMPLETIONS)), 2)))
CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def token_log_probs(logits: Tensor) -> Tensor:
    """logits [4, 3], one row for each state -> [9, 2]."""
    return logits.log_softmax(dim=-1)[STATE, TOKEN]


def log_p(logits: Tensor) -> Tensor:
    return token_log_probs(logits).sum(dim=-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL between two distributions over completions, log-probabilities [9]."""
    return (p.exp() * (p - q)).sum()


def closed_form(reference: Tensor, reward: Tensor, beta: float) -> Tensor:
    """log pi [9] of the policy with the highest reward - beta KL."""
    return (reference + reward / beta).log_softmax(dim=0)


def minimum(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The logits where L-BFGS ends."""

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(x.copy()).view_as(start).requires_grad_()
        value = loss(leaf)
        value.backward()
        return value.item(), leaf.grad.flatten().numpy()

    options = {"maxiter": 1000, "ftol": 0, "gtol": 1e-11}
    found = minimize(value_and_gradient, start.flatten().numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).view_as(start)


def gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf), leaf)
    return found


def expected_pair_loss(loss: Callable[..., tuple[Tensor, dict]], reference: Tensor, preferred: Tensor) -> Callable:
    """The loss over all ordered pairs; preferred [72]: how probable it is that the first of a pair is chosen."""

    def population(logits: Tensor) -> Tensor:
        ratio = log_p(logits) - reference
        losses, _ = loss(ratio[PAIRS[:, 0]], ratio[PAIRS[:, 1]])
        return (preferred * losses).mean()

    return population


@pytest.fixture
def logits(normal: Callable[..., Tensor]) -> Tensor:
    """The reference, and where all searches begin."""
    return normal(4, TOKENS)


@pytest.fixture
def reference(logits: Tensor) -> Tensor:
    return log_p(logits)


@pytest.fixture
def reward(normal: Callable[..., Tensor]) -> Tensor:
    return normal(len(COMPLETIONS))


@pytest.fixture
def preferred(reward: Tensor) -> Tensor:
    """Bradley-Terry: sigmoid of the difference of rewards."""
    return torch.sigmoid(reward[PAIRS[:, 0]] - reward[PAIRS[:, 1]])


def close(ours: Tensor, wanted: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(ours, wanted, rtol=tolerance, atol=tolerance)


# --- what the closed form is ----------------------------------------------------------------------------------------


def test_the_closed_form_is_the_best_policy(logits, reference, reward):
    """By a search for the highest reward - beta KL, both exact."""
    found = minimum(lambda x: BETA * kl(log_p(x), reference) - (log_p(x).exp() * reward).sum(), logits)
    close(log_p(found), closed_form(reference, reward, BETA))


@pytest.mark.parametrize("estimator", [k1, k3])
def test_expectations_of_estimators_are_the_exact_kl(estimator, logits, reference, reward):
    policy = 1.3 * logits.flip(0)
    each = estimator(token_log_probs(policy), token_log_probs(logits), MASK).sum(dim=-1)
    close((log_p(policy).exp() * each).sum(), kl(log_p(policy), reference), 1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_what_an_estimator_in_the_loss_pulls_at_on_policy(name, logits):
    """k1 at nothing, k2 at KL(policy, reference), k3 at KL(reference, policy); for one token, from all tokens."""
    policy, target = logits[0].flip(0), logits[0].log_softmax(dim=-1)
    mask = torch.ones_like(policy, dtype=torch.bool)
    fixed = policy.softmax(dim=-1)
    estimator = {"k1": k1, "k2": k2, "k3": k3}[name]
    pull = gradient(lambda x: (fixed * estimator(x.log_softmax(dim=-1), target, mask)).sum(), policy)
    exact = {
        "k1": lambda x: 0 * x.sum(),
        "k2": lambda x: kl(x.log_softmax(dim=-1), target),
        "k3": lambda x: kl(target, x.log_softmax(dim=-1)),
    }[name]
    close(pull, gradient(exact, policy), 1e-12)


# --- pairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        functools.partial(sigmoid, label_smoothing=0.0),
        functools.partial(robust, label_smoothing=0.2),
        functools.partial(dpop, dpop_lambda=0.0),
    ],
    ids=["sigmoid", "robust", "dpop"],
)
def test_dpo_ends_at_the_closed_form(loss, logits, reference, reward, preferred):
    """Preferences by Bradley-Terry on r: then beta times the log-ratio is r. Robust DPO: with flipped labels."""
    if getattr(loss, "func", None) is robust:
        preferred = 0.8 * preferred + 0.2 * (1 - preferred)
    population = expected_pair_loss(functools.partial(loss, beta=BETA), reference, preferred)
    found = log_p(minimum(population, logits))
    close(found, closed_form(reference, reward, BETA))
    margin = BETA * ((found - reference)[PAIRS[:, 0]] - (found - reference)[PAIRS[:, 1]])
    close(margin, reward[PAIRS[:, 0]] - reward[PAIRS[:, 1]])


def test_label_smoothing_ends_at_a_milder_preference(logits, reference, preferred):
    """Conservative DPO's optimum prefers as the labels would if the share e of them were flipped."""
    loss = functools.partial(sigmoid, beta=BETA, label_smoothing=0.2)
    ratio = log_p(minimum(expected_pair_loss(loss, reference, preferred), logits)) - reference
    ours = torch.sigmoid(BETA * (ratio[PAIRS[:, 0]] - ratio[PAIRS[:, 1]]))
    # The smoothed preferences are no Bradley-Terry model, so no policy has all of them; the scores' sums balance.
    wanted = 0.8 * preferred + 0.2 * (1 - preferred)
    for completion in range(len(COMPLETIONS)):
        first = PAIRS[:, 0] == completion
        close(ours[first].sum(), wanted[first].sum())


def test_dpo_without_a_reference_ends_where_log_probabilities_are_rewards(logits, reference, reward, preferred):
    """CPO's preference term: the reference is uniform, whatever the policy began as."""
    loss = functools.partial(sigmoid, beta=BETA, label_smoothing=0.0)
    found = minimum(expected_pair_loss(loss, torch.zeros_like(reference), preferred), logits)
    close(log_p(found), (reward / BETA).log_softmax(dim=0))


def test_ipos_margin_of_a_certain_preference(logits, reference):
    """Two completions, one always preferred: the log-ratios differ by 1 / (2 beta), and DPO's would without end."""
    certain = ((PAIRS[:, 0] == 2) & (PAIRS[:, 1] == 6)).double()
    population = expected_pair_loss(functools.partial(ipo, beta=BETA), reference, certain)
    ratio = log_p(minimum(population, logits)) - reference
    close(ratio[2] - ratio[6], torch.tensor(1 / (2 * BETA)).double())
    unbounded = expected_pair_loss(functools.partial(sigmoid, beta=BETA, label_smoothing=0.0), reference, certain)
    ratio = log_p(minimum(unbounded, logits)) - reference
    assert ratio[2] - ratio[6] > 10 / BETA


def test_ipos_optimum(logits, reference, preferred):
    """The closed form with the mean preference over other completions as the reward (arXiv:2310.12036 eq. 7 and 17).

    Over all pairs the least squares are log-ratio(y) = mean over y' of (2 p(y > y') - 1) / (2 beta), up to a constant.
    """
    population = expected_pair_loss(functools.partial(ipo, beta=BETA), reference, preferred)
    found = log_p(minimum(population, logits))
    count = len(COMPLETIONS)
    wins = torch.stack([(2 * preferred[PAIRS[:, 0] == y] - 1).sum() / count for y in range(count)])
    close(found, (reference + wins / (2 * BETA)).log_softmax(dim=0))


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["kto", "bco"])
def test_labels_move_good_up_and_bad_down(loss, logits, reference, reward):
    """From the reference: the good completions together gain probability, a good one gains against every bad one."""
    labels = reward > reward.median()
    weights = {"desirable_weight": 1.0, "undesirable_weight": 1.0} if loss == "kto" else {}
    function = functools.partial(kto if loss == "kto" else bco, beta=BETA, **weights)

    def population(x: Tensor) -> Tensor:
        return function(log_p(x) - reference, labels, torch.zeros(()))[0].mean()

    moved = log_p(logits - 0.1 * gradient(population, logits))
    assert moved.exp()[labels].sum() > reference.exp()[labels].sum() + 1e-4
    ratio = log_p(minimum_steps(population, logits, 300)) - reference
    assert ratio[labels].min() > ratio[~labels].max()


def minimum_steps(loss: Callable[[Tensor], Tensor], logits: Tensor, steps: int) -> Tensor:
    """Plain gradient descent: labels that are certain have no finite optimum."""
    for _ in range(steps):
        logits = logits - 0.5 * gradient(loss, logits)
    return logits


def test_weights_say_which_side_moves_more(logits, reference, reward):
    """KTO at the reference: the gradient is w beta / 4 times that of the log-probability, up for good, down for bad."""
    labels = reward > reward.median()

    def moves(good: float, bad: float) -> Tensor:
        settings = {"beta": BETA, "desirable_weight": good, "undesirable_weight": bad}
        return gradient(lambda x: kto(log_p(x) - reference, labels, torch.zeros(()), **settings)[0].sum(), logits)

    up = gradient(lambda x: log_p(x)[labels].sum(), logits)
    down = gradient(lambda x: log_p(x)[~labels].sum(), logits)
    close(moves(3.0, 0.5), BETA / 4 * (-3.0 * up + 0.5 * down), 1e-12)


# --- policy gradient ------------------------------------------------------------------------------------------------


def exact_advantages(logits: Tensor, rewards: Tensor) -> Tensor:
    """Q - V of each token by enumeration; rewards [9, 2] per token -> [9, 2]."""
    p, to_go = log_p(logits).exp(), rewards.flip(1).cumsum(1).flip(1)
    value_of_first = torch.zeros(TOKENS, dtype=p.dtype).index_add(0, TOKEN[:, 0], p * to_go[:, 1])
    mass = torch.zeros(TOKENS, dtype=p.dtype).index_add(0, TOKEN[:, 0], p)
    after = (value_of_first / mass)[TOKEN[:, 0]]
    start = (p * to_go[:, 0]).sum()
    return torch.stack([rewards[:, 0] + after - start, rewards[:, 1] - after], dim=1)


LOSSES = {
    "reinforce": reinforce,
    "clipped": functools.partial(clipped_policy_loss, **CLIP, dual_clip=3.0),
    "cispo": functools.partial(cispo, **CLIP),
    "sequence_clipped": functools.partial(sequence_clipped, **CLIP),
    "gspo": functools.partial(gspo, **CLIP),
}


def expected_policy_loss(loss: str, sampler: Tensor, advantages: Tensor) -> Callable[[Tensor], Tensor]:
    """The loss over all completions, each weighing what the policy with logits `sampler` gives it."""
    old, p = token_log_probs(sampler), log_p(sampler).exp()

    def population(x: Tensor) -> Tensor:
        losses, _ = LOSSES[loss](token_log_probs(x), old, advantages, MASK)
        return (p * losses.sum(dim=-1)).sum()

    return population


def improved(loss: str, logits: Tensor, advantages_of: Callable[[Tensor], Tensor], rounds: int) -> list[Tensor]:
    """Rounds of sampling (here: enumerating) and four updates each, the way PPO trains; the policies in between."""
    found = [logits]
    for _ in range(rounds):
        population = expected_policy_loss(loss, found[-1], advantages_of(found[-1]))
        x = found[-1]
        for _ in range(4):
            x = x - 0.3 * gradient(population, x)
        found.append(x)
    return found


def whole(advantages: Tensor) -> Tensor:
    """One advantage for a sequence, at each of its tokens: what losses with a sequence's ratio take."""
    return advantages.sum(dim=-1, keepdim=True).expand_as(advantages)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_round_raises_the_expected_reward(loss, logits, reward):
    rewards = torch.stack([torch.zeros_like(reward), reward], dim=1)

    def advantages_of(x: Tensor) -> Tensor:
        found = exact_advantages(x, rewards)
        return whole(found) if loss in ("gspo", "sequence_clipped") else found

    means = [(log_p(x).exp() * reward).sum() for x in improved(loss, logits, advantages_of, 40)]
    assert all(later > earlier for earlier, later in itertools.pairwise(means[:10]))
    assert means[-1] > reward.max() - 0.1


@pytest.mark.parametrize("loss", ["clipped", "cispo", "reinforce"])
def test_the_penalised_reward_has_its_fixed_point_at_the_closed_form(loss, logits, reference, reward):
    """k1 in the reward: there the whole penalised reward is one constant, so that nothing is left to learn."""
    best = closed_form(reference, reward, BETA)
    table = best.exp().view(TOKENS, TOKENS)
    at_best = torch.cat([table.sum(1, keepdim=True).T, table / table.sum(1, keepdim=True)]).log()
    close(log_p(at_best), best, 1e-12)

    def advantages_of(x: Tensor) -> Tensor:
        penalty = k1(token_log_probs(x), token_log_probs(logits), MASK)
        return exact_advantages(x, penalised_rewards(reward, penalty, MASK, BETA))

    close(advantages_of(at_best), torch.zeros(len(COMPLETIONS), 2).double(), 1e-12)
    away = gradient(expected_policy_loss(loss, logits, advantages_of(logits)), logits)
    assert away.abs().max() > 0.05
    objective = functools.partial(penalised, reference=reference, reward=reward)
    close(away, -gradient(objective, logits), 1e-9)
    # what is lacking in the objective is beta times the KL to its optimum
    lacking = [kl(log_p(x), best) for x in improved(loss, logits, advantages_of, 40)]
    assert all(later < earlier for earlier, later in itertools.pairwise(lacking))
    assert lacking[-1] < 0.1 * lacking[0]


def penalised(logits: Tensor, reference: Tensor, reward: Tensor) -> Tensor:
    """reward - beta KL, exact."""
    return (log_p(logits).exp() * reward).sum() - BETA * kl(log_p(logits), reference)


def test_gspos_expected_gradient_is_the_exact_one_over_the_length(logits, reward):
    """Of sequences of one length, at the policy that sampled: the mean over tokens of log p times the advantage.

    Its ratio is a geometric mean, so longer sequences weigh less: where lengths differ it is no multiple of the exact
    gradient, by design.
    """
    spread_out = (reward - 0.3)[:, None].expand(-1, 2)
    ours = gradient(expected_policy_loss("gspo", logits, spread_out), logits) / 2  # sequence-mean: over two tokens
    exact = gradient(lambda x: (log_p(x).exp() * reward).sum(), logits)
    close(ours, -exact / 2, 1e-9)
