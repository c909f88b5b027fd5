"""Our functions against verl's `core_algos`, from stored vectors (recompute/verl_vectors.py made them).

Known differences of definition, each undone where it is compared:
- verl adds 1e-8 to the token count of a masked mean (whitening, clip fractions, a row's own mean); ours is exact.
- verl's k3 is held at 10, its log-ratios at 20 (GSPO's at 10 from above only); ours has no ceiling for k3 and 20 for
  every ratio. Never reached by the inputs.
- verl's vanilla loss always has the dual clip; ours can be without. Stored near the old policy, where it is not
  reached (its share is stored as 0), and far from it, where it is.
- verl counts tokens at the dual clip apart (`pg_clipfrac_lower`); ours are part of `clipped_high`.
- verl leaves values at masked tokens (GAE, ReMax, KL penalties); ours are zeros. Compared where unmasked.
- verl's GAE whitens; ours does not, and `whiten` is called as the trainer does.
- A group of one: verl's GRPO, RLOO, OPO and REINFORCE++ with baseline keep the raw score as the advantage (GRPO divides
  it by a float32 1 + 1e-6); ours is 0, as is that of verl's vectorised RLOO: without a second sample there is no
  baseline.
- verl's vectorised GRPO calculates in float32, whatever it is given. Compared at 1e-5.
- verl's outcome estimators add rewards at masked tokens to a row's score; ours never read them. The recomputing script
  puts none there.
- verl's adaptive controller is an object that holds its coefficient; ours is the function from one to the next.
Not ours, so not compared: GDPO, GPG's and pass@k advantages, optimal token baselines; DPPO, SAPO, DRO, clip-cov,
kl-cov, geometric-mean and bypass-mode losses; the absolute KL penalty; PF-PPO's reweighting.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posttrain.algorithms import kl
from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.advantages.group import group_advantages
from posttrain.algorithms.advantages.opo import opo
from posttrain.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from posttrain.algorithms.advantages.remax import remax
from posttrain.algorithms.advantages.rloo import rloo
from posttrain.algorithms.aggregate import aggregate, normaliser
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.gspo import gspo
from posttrain.algorithms.policy_loss.reinforce import reinforce
from posttrain.algorithms.value_loss import clipped_value_loss
from posttrain.algorithms.whiten import whiten

STORED = json.loads((Path(__file__).parent / "vectors" / "verl.json").read_text())
WANTED, SETTINGS = STORED["outputs"], STORED["settings"]
VERL_EPSILON = 1e-8
WHITENED = 1e-9  # absolute: verl's 1e-8 in the count moves the mean of whitened values

GRPO = functools.partial(group_advantages, scale_by_std=True)
DR_GRPO = functools.partial(group_advantages, scale_by_std=False)
ESTIMATORS = {
    "grpo": GRPO,
    "dr_grpo": DR_GRPO,
    "rloo": rloo,
    "rloo_vectorized": rloo,
    "opo": opo,
    "reinforce++": functools.partial(reinforce_plus_plus, gamma=SETTINGS["gamma"]),
    "reinforce++_baseline": reinforce_plus_plus_baseline,
}
BOUNDS = {"clip_low": SETTINGS["clip_low"], "clip_high": SETTINGS["clip_high"]}
POLICY_LOSSES = {
    "clipped": functools.partial(clipped_policy_loss, **BOUNDS, dual_clip=SETTINGS["dual_clip"]),
    "gspo": functools.partial(gspo, **BOUNDS),
    "cispo": functools.partial(cispo, **BOUNDS),
    "reinforce": reinforce,
}


class Inputs(dict):
    """The stored inputs in one precision; masks are bool, groups int64."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__({name: torch.tensor(value, dtype=dtype) for name, value in STORED["inputs"].items()})
        self.update({name: self[name].bool() for name in ("mask", "hole")})
        self.update({name: self[name].long() for name in ("group", "uneven", "single")})
        self.dtype = dtype
        self.rtol, self.atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-5, 1e-6)

    def same(self, ours: Tensor, theirs: object, mask: Tensor | None = None, atol: float = 0.0) -> None:
        wanted = torch.tensor(theirs, dtype=self.dtype)
        if mask is not None:
            ours, wanted = ours[mask], wanted[mask]
        torch.testing.assert_close(ours, wanted, rtol=self.rtol, atol=max(self.atol, atol))


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def x(request: pytest.FixtureRequest) -> Inputs:
    return Inputs(request.param)


def as_verl_means(values: Tensor, mask: Tensor) -> Tensor:
    """Values whose mean over a row's tokens is verl's."""
    lengths = mask.sum(dim=1, keepdim=True).to(values.dtype)
    return values * lengths / (lengths + VERL_EPSILON)


def test_version() -> None:
    assert (STORED["peer"], STORED["version"]) == ("verl", "0.9.1")


@pytest.mark.parametrize("mask", ["mask", "hole"])
def test_gae(x: Inputs, mask: str) -> None:
    wanted = WANTED["gae"][mask]
    advantages, returns = gae(x["kl_rew"], x["values"], x[mask], gamma=wanted["gamma"], lam=wanted["lam"])
    x.same(returns, wanted["returns"], x[mask])
    x.same(whiten(advantages, x[mask]), wanted["whitened"], x[mask], atol=WHITENED)


@pytest.mark.parametrize(("mask", "groups"), [("mask", "group"), ("hole", "uneven")])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages(x: Inputs, name: str, mask: str, groups: str) -> None:
    ours = ESTIMATORS[name](x["kl_rew"].masked_fill(~x[mask], torch.nan), x[mask], x[groups])
    x.same(ours, WANTED["advantages"][mask][name], atol=WHITENED if "reinforce" in name else 0.0)


@pytest.mark.parametrize("mask", ["mask", "hole"])
def test_remax(x: Inputs, mask: str) -> None:
    ours = remax(x["kl_rew"].masked_fill(~x[mask], torch.nan), x[mask], x["baseline"])
    x.same(ours, WANTED["advantages"][mask]["remax"], x[mask])


@pytest.mark.parametrize(("mask", "groups"), [("mask", "group"), ("hole", "uneven")])
def test_vectorised_grpo_is_ours_in_float32(mask: str, groups: str) -> None:
    x = Inputs(torch.float32)
    x.same(GRPO(x["kl_rew"], x[mask], x[groups]), WANTED["advantages"][mask]["grpo_vectorized"])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "rloo_vectorized", "opo"])
def test_a_group_of_one(x: Inputs, name: str) -> None:
    """Ours is 0 where verl's is the raw score (but for its vectorised RLOO); all other rows agree."""
    ours, wanted = ESTIMATORS[name](x["kl_rew"], x["mask"], x["single"]), WANTED["advantages"]["single"][name]
    assert (ours[-1] == 0).all()
    factor = {"grpo": 1 / (torch.tensor(1.0) + 1e-6).item(), "rloo_vectorized": 0.0}.get(name, 1.0)
    raw = x["kl_rew"][-1].sum() * x["mask"][-1] * factor
    x.same(torch.cat([ours[:-1], raw[None]]), wanted)


def test_a_group_of_one_before_whitening(x: Inputs) -> None:
    centred = DR_GRPO(x["kl_rew"], x["mask"], x["single"])
    assert (centred[-1] == 0).all()
    centred[-1] = x["kl_rew"][-1].sum()
    wanted = WANTED["advantages"]["single"]["reinforce++_baseline"]
    x.same(whiten(centred, x["mask"]), wanted, atol=WHITENED)


def test_penalised_rewards(x: Inputs) -> None:
    penalty = kl.k1(x["old"], x["ref"], x["mask"])
    ours = kl.penalised_rewards(x["score"], penalty, x["mask"], SETTINGS["kl_coef"])
    x.same(ours, WANTED["compute_rewards"], x["mask"])


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl(x: Inputs, name: str) -> None:
    policy = x["logp"].requires_grad_()
    ours = getattr(kl, name)(policy, x["ref"], x["mask"])
    ours.sum().backward()
    x.same(ours.detach(), WANTED["kl_penalty"][name]["value"], x["mask"])
    x.same(policy.grad, WANTED["kl_penalty"][name]["gradient"], x["mask"])


def test_gradient_of_k2_is_verls_unbiased_one(x: Inputs) -> None:
    policy = x["logp"].requires_grad_()
    kl.k2(policy, x["ref"], x["mask"]).sum().backward()
    x.same(policy.grad, WANTED["kl_penalty"]["k3+"]["gradient"], x["mask"])


def test_adaptive_kl() -> None:
    coef = 0.2
    for step in WANTED["adaptive_kl"]:
        coef = kl.adapted_coef(coef, step["kl"], target=6.0, horizon=10000, samples=step["samples"])
        assert coef == pytest.approx(step["coef"], rel=1e-12)


@pytest.mark.parametrize("name", ["mask", "hole"])
def test_aggregate(x: Inputs, name: str) -> None:
    values, mask, wanted = x["adv"], x[name], WANTED["agg_loss"][name]
    rows = normaliser(mask, "sequence-sum")
    x.same(aggregate(values, mask, "token-mean", count=normaliser(mask, "token-mean")), wanted["token-mean"])
    x.same(aggregate(values, mask, "token-mean", count=1), wanted["token-sum"])
    x.same(aggregate(values, mask, "sequence-sum", count=rows), wanted["seq-mean-token-sum"])
    scaled = aggregate(values, mask, "sequence-sum", count=rows * SETTINGS["longest"])
    x.same(scaled, wanted["seq-mean-token-sum-norm"])
    means = aggregate(as_verl_means(values, mask), mask, "sequence-mean", count=rows)
    x.same(means, wanted["seq-mean-token-mean"])


@pytest.mark.parametrize("name", ["mask", "hole"])
@pytest.mark.parametrize("at", ["logp", "far"])
@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_policy_loss(x: Inputs, loss: str, at: str, name: str) -> None:
    policy, mask, wanted = x[at].requires_grad_(), x[name], WANTED["policy"][name][f"{loss}.{at}"]
    losses, stats = POLICY_LOSSES[loss](policy, x["old"], x["adv"], mask)
    tokens = normaliser(mask, "token-mean")
    if loss == "gspo":
        total = aggregate(as_verl_means(losses, mask), mask, "sequence-mean", count=normaliser(mask, "sequence-mean"))
    else:
        total = aggregate(losses, mask, "token-mean", count=tokens)
    total.backward()
    x.same(total.detach(), wanted["value"])
    x.same(policy.grad, wanted["gradient"])
    if loss != "reinforce":
        clipped = aggregate(
            stats["clipped_low"] + stats["clipped_high"], mask, "token-mean", count=tokens + VERL_EPSILON
        )
        x.same(clipped, wanted["actor/pg_clipfrac"] + wanted["actor/pg_clipfrac_lower"])


@pytest.mark.parametrize("name", ["mask", "hole"])
def test_every_bound_matters_far_from_the_old_policy(name: str) -> None:
    wanted = WANTED["policy"][name]
    assert wanted["clipped.logp"]["actor/pg_clipfrac_lower"] == 0 < wanted["clipped.far"]["actor/pg_clipfrac_lower"]
    assert all(wanted[f"{loss}.far"]["actor/pg_clipfrac"] > 0.2 for loss in ("clipped", "gspo", "cispo"))


def test_without_the_dual_clip_it_is_verls_where_that_is_not_reached(x: Inputs) -> None:
    loss = functools.partial(clipped_policy_loss, **BOUNDS, dual_clip=None)
    losses, _ = loss(x["logp"], x["old"], x["adv"], x["mask"])
    ours = aggregate(losses, x["mask"], "token-mean", count=normaliser(x["mask"], "token-mean"))
    x.same(ours, WANTED["policy"]["mask"]["clipped.logp"]["value"])


def test_clipped_value_loss(x: Inputs) -> None:
    values, mask, wanted = x["vpred"].requires_grad_(), x["mask"], WANTED["value"]
    losses = clipped_value_loss(values, x["values"], x["ret"], mask, value_clip=SETTINGS["value_clip"])
    loss = aggregate(losses, mask, "token-mean", count=normaliser(mask, "token-mean"))
    loss.backward()
    assert wanted["clipfrac"] > 0.2  # the clip matters in these inputs
    x.same(loss.detach(), wanted["value"])
    x.same(values.grad, wanted["gradient"])
