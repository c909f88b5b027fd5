"""Our functions against verl's `core_algos`, from stored vectors (recompute/verl_vectors.py made them).

Known differences of definition, each undone where it is compared:
- verl adds 1e-8 to the token count of a masked mean (whitening, clip fractions, a row's own mean); ours is exact.
- verl's k3 is held at 10 and its log-ratio at 20; ours has no ceiling. Neither is reached by the inputs.
- verl clips a second time at ratio 3 for negative advantages (dual clip). Not reached: its share is stored as 0.
- verl leaves values at masked tokens (GAE, KL penalties); ours are zeros. Compared where unmasked.
- A group of one: verl's GRPO keeps the raw score as the advantage, ours is 0. Not in the inputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posttrain.algorithms import kl
from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.advantages.group import group_advantages
from posttrain.algorithms.aggregate import aggregate, normaliser
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.value_loss import clipped_value_loss
from posttrain.algorithms.whiten import whiten

STORED = json.loads((Path(__file__).parent / "vectors" / "verl.json").read_text())
WANTED = STORED["outputs"]
VERL_EPSILON = 1e-8


class Inputs(dict):
    """The stored inputs in one precision; masks are bool, groups int64."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__({name: torch.tensor(value, dtype=dtype) for name, value in STORED["inputs"].items()})
        self |= {"mask": self["mask"].bool(), "hole": self["hole"].bool(), "group": self["group"].long()}
        self.dtype = dtype
        self.rtol, self.atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-5, 1e-6)

    def same(self, ours: Tensor, theirs: object, mask: Tensor | None = None, atol: float | None = None) -> None:
        wanted = torch.tensor(theirs, dtype=self.dtype)
        if mask is not None:
            ours, wanted = ours[mask], wanted[mask]
        torch.testing.assert_close(ours, wanted, rtol=self.rtol, atol=self.atol if atol is None else atol)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def x(request: pytest.FixtureRequest) -> Inputs:
    return Inputs(request.param)


def test_version() -> None:
    assert (STORED["peer"], STORED["version"]) == ("verl", "0.9.1")


@pytest.mark.parametrize(("name", "mask"), [("gae", "mask"), ("gae_hole", "hole")])
def test_gae(x: Inputs, name: str, mask: str) -> None:
    wanted = WANTED[name]
    advantages, returns = gae(x["kl_rew"], x["values"], x[mask], wanted["gamma"], wanted["lam"])
    x.same(returns, wanted["returns"], x[mask])
    # atol: 1e-8 in verl's count moves the mean of the whitened values
    x.same(whiten(advantages, x[mask]), wanted["whitened"], x[mask], atol=max(x.atol, 1e-9))


@pytest.mark.parametrize(("name", "scale"), [("grpo", True), ("grpo_unscaled", False)])
def test_group_advantages(x: Inputs, name: str, scale: bool) -> None:
    ours = group_advantages(x["score"], x["group"], scale)
    x.same(ours[:, None] * x["mask"], WANTED[name])


def test_penalised_rewards(x: Inputs) -> None:
    penalty = kl.k1(x["old"], x["ref"], x["mask"])
    x.same(kl.penalised_rewards(x["score"], penalty, x["mask"], 0.05), WANTED["compute_rewards"], x["mask"])


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl(x: Inputs, name: str) -> None:
    policy = x["logp"].requires_grad_()
    ours = getattr(kl, name)(policy, x["ref"], x["mask"])
    ours.sum().backward()
    x.same(ours.detach(), WANTED[f"kl_penalty.{name}"]["value"], x["mask"])
    x.same(policy.grad, WANTED[f"kl_penalty.{name}"]["gradient"], x["mask"])


def test_gradient_of_k2_is_verls_unbiased_one(x: Inputs) -> None:
    policy = x["logp"].requires_grad_()
    kl.k2(policy, x["ref"], x["mask"]).sum().backward()
    x.same(policy.grad, WANTED["kl_penalty.k3+"]["gradient"], x["mask"])


def test_aggregate(x: Inputs) -> None:
    values, mask, rows = x["adv"], x["mask"], len(x["mask"])
    tokens = normaliser(mask, "token-mean")
    x.same(aggregate(values, mask, "token-mean", count=tokens), WANTED["agg_loss.token-mean"])
    x.same(aggregate(values, mask, "token-mean", count=1), WANTED["agg_loss.token-sum"])
    x.same(aggregate(values, mask, "token-mean", count=rows), WANTED["agg_loss.seq-mean-token-sum"])
    lengths = mask.sum(dim=1, keepdim=True).to(values.dtype)
    as_verl = values * lengths / (lengths + VERL_EPSILON)
    x.same(aggregate(as_verl, mask, "sequence-mean", count=rows), WANTED["agg_loss.seq-mean-token-mean"])


def test_clipped_policy_loss(x: Inputs) -> None:
    policy, mask, wanted = x["logp"].requires_grad_(), x["mask"], WANTED["policy"]
    assert wanted["actor/pg_clipfrac_lower"] == 0
    losses, stats = clipped_policy_loss(policy, x["old"], x["adv"], mask, 0.2, 0.28)
    count = normaliser(mask, "token-mean")
    loss = aggregate(losses, mask, "token-mean", count=count)
    loss.backward()
    x.same(loss.detach(), wanted["value"])
    x.same(policy.grad, wanted["gradient"])
    clipped = aggregate(stats["clipped_low"] + stats["clipped_high"], mask, "token-mean", count=count + VERL_EPSILON)
    x.same(clipped, wanted["actor/pg_clipfrac"])


def test_clipped_value_loss(x: Inputs) -> None:
    values, mask, wanted = x["vpred"].requires_grad_(), x["mask"], WANTED["value"]
    losses = clipped_value_loss(values, x["values"], x["ret"], mask, 0.2)
    loss = aggregate(losses, mask, "token-mean", count=normaliser(mask, "token-mean"))
    loss.backward()
    assert wanted["clipfrac"] > 0.2  # the clip matters in these inputs
    x.same(loss.detach(), wanted["value"])
    x.same(values.grad, wanted["gradient"])
