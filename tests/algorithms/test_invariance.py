"""The core suite: a minibatch's loss and gradient do not depend on how it is cut, padded or ordered.

Each objective is written the way a trainer calls it: one micro-batch's share, given the whole minibatch's counts. The
checks cut the minibatch at random, into rows of one, with all-masked micro-batches in between, each padded with garbage
to a width of its own; then they compare the sum of losses, and of gradients, with those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.aggregate import MODES, aggregate, normaliser, row_sum, zero_masked
from posttrain.algorithms.kl import k1, k2, k3
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.gspo import gspo
from posttrain.algorithms.policy_loss.reinforce import reinforce
from posttrain.algorithms.policy_loss.sequence_clipped import sequence_clipped
from posttrain.algorithms.preference.bco import bco
from posttrain.algorithms.preference.bradley_terry import bradley_terry
from posttrain.algorithms.preference.dpop import dpop
from posttrain.algorithms.preference.hinge import hinge
from posttrain.algorithms.preference.ipo import ipo
from posttrain.algorithms.preference.kto import kl_baseline, kto
from posttrain.algorithms.preference.orpo import orpo
from posttrain.algorithms.preference.robust import robust
from posttrain.algorithms.preference.sigmoid import sigmoid
from posttrain.algorithms.preference.simpo import simpo
from posttrain.algorithms.value_loss import clipped_value_loss

Batch = dict[str, Tensor]
Counts = dict[str, float]
Objective = Callable[[Batch, Counts], Tensor]

ROWS, WIDTH = 9, 7
GARBAGE = torch.tensor([float("nan"), float("inf"), -float("inf"), 7.0], dtype=torch.float64)


def make_batch(normal: Callable[..., Tensor], mask: Tensor) -> Batch:
    """A minibatch with a prefix mask and, in the last row, no token at all (a row that only fills up)."""
    mask = mask.clone()
    mask[-1] = False
    names = ["new", "old", "reference", "advantages", "old_values", "returns"]
    tokens = {name: normal(ROWS, WIDTH) for name in names}
    tokens["old"] = tokens["new"] + 0.3 * normal(ROWS, WIDTH)
    return {"mask": mask, "labels": torch.arange(ROWS) % 3 == 0, "z0": torch.tensor(0.4).double(), **tokens}


def counts_of(batch: Batch) -> Counts:
    counts = {mode: normaliser(batch["mask"], mode) for mode in MODES}
    return {**counts, "sequence-sum": counts["sequence-sum"] * 11}


def share(values: Tensor, b: Batch, counts: Counts, mode: str) -> Tensor:
    mask = b["mask"] if values.dim() == 2 else b["mask"].any(1)
    return aggregate(values, mask, mode, count=counts[mode])


def sft(b: Batch, counts: Counts) -> Tensor:
    return share(-b["new"], b, counts, "token-mean")


def policy(loss: Callable[..., Any], mode: str, kl: Callable[..., Tensor] | None = None, **settings: Any) -> Objective:
    def objective(b: Batch, counts: Counts) -> Tensor:
        losses, _ = loss(b["new"], b["old"], b["advantages"], b["mask"], **settings)
        if kl is not None:
            losses = losses + 0.1 * kl(b["new"], b["reference"], b["mask"])
        return share(losses, b, counts, mode)

    return objective


def clip_share(b: Batch, counts: Counts) -> Tensor:
    """Logged metrics, joined to the loss so that there is a gradient to compare."""
    losses, stats = clipped_policy_loss(b["new"], b["old"], b["advantages"], b["mask"], **CLIP, dual_clip=None)
    values = stats["clipped_low"] + stats["clipped_high"] + stats["ratio"] + 0 * losses
    return share(values, b, counts, "token-mean")


def critic(b: Batch, counts: Counts) -> Tensor:
    losses = clipped_value_loss(b["new"], b["old_values"], b["returns"], b["mask"], value_clip=0.5)
    return share(losses, b, counts, "token-mean")


def pairs(loss: Callable[..., Any], **settings: Any) -> Objective:
    """Two log-ratios that both hang on a row's tokens."""

    def objective(b: Batch, counts: Counts) -> Tensor:
        policy, reference = row_sum(b["new"], b["mask"]), row_sum(b["reference"], b["mask"])
        losses, _ = loss(policy - reference, 0.5 * policy - 0.3 * reference, **settings)
        return share(losses, b, counts, "sequence-mean")

    return objective


def normalised_pairs(loss: Callable[..., Any], **settings: Any) -> Objective:
    """Two means over tokens of numbers below 0, as log-probabilities without a reference are."""

    def objective(b: Batch, counts: Counts) -> Tensor:
        lengths = b["mask"].sum(1).clamp(min=1)
        means = (-zero_masked(b[name], b["mask"]).square().sum(1) / lengths for name in ("new", "reference"))
        losses, _ = loss(*means, **settings)
        return share(losses, b, counts, "sequence-mean")

    return objective


def labels(loss: Callable[..., Any], **settings: Any) -> Objective:
    def objective(b: Batch, counts: Counts) -> Tensor:
        log_ratios = row_sum(b["new"], b["mask"]) - row_sum(b["reference"], b["mask"])
        losses, _ = loss(log_ratios, b["labels"], b["z0"], **settings)
        return share(losses, b, counts, "sequence-mean")

    return objective


CLIP = {"clip_low": 0.2, "clip_high": 0.28}
KTO = labels(kto, beta=0.3, desirable_weight=1.2, undesirable_weight=0.7)
CASES: dict[str, Objective] = {
    "sft": sft,
    "clip_share": clip_share,
    "critic": critic,
    "ppo": policy(clipped_policy_loss, "token-mean", **CLIP, dual_clip=None),
    "dual_clip": policy(clipped_policy_loss, "token-mean", **CLIP, dual_clip=1.3),
    "dapo": policy(clipped_policy_loss, "token-mean", k2, **CLIP, dual_clip=None),
    "grpo": policy(clipped_policy_loss, "sequence-mean", k3, **CLIP, dual_clip=None),
    "dr_grpo": policy(clipped_policy_loss, "sequence-sum", k1, **CLIP, dual_clip=None),
    "gspo": policy(gspo, "sequence-mean", **CLIP),
    "gspo_by_tokens": policy(gspo, "token-mean", **CLIP),
    "cispo": policy(cispo, "token-mean", **CLIP),
    "rloo": policy(sequence_clipped, "sequence-mean", **CLIP),
    "reinforce": policy(reinforce, "token-mean"),
    "reinforce_by_sums": policy(reinforce, "sequence-sum"),
    "dpo": pairs(sigmoid, beta=0.3, label_smoothing=0.0),
    "cdpo": pairs(sigmoid, beta=0.3, label_smoothing=0.1),
    "robust": pairs(robust, beta=0.3, label_smoothing=0.1),
    "ipo": pairs(ipo, beta=0.3),
    "hinge": pairs(hinge, beta=0.3),
    "dpop": pairs(dpop, beta=0.3, dpop_lambda=5.0),
    "reward_model": pairs(bradley_terry, gap=torch.tensor(0.7), centre_coef=0.01, label_smoothing=0.1),
    "simpo": normalised_pairs(simpo, beta=2.0, target_margin=0.5),
    "orpo": normalised_pairs(orpo, beta=0.3),
    "kto": KTO,
    "bco": labels(bco, beta=0.3),
}
each_objective = pytest.mark.parametrize("objective", CASES.values(), ids=CASES.keys())


def part(batch: Batch, rows: list[int], extra: int, generator: torch.Generator) -> Batch:
    """Some rows as a micro-batch: cut to its longest row, widened by `extra` columns, all its padding garbage."""
    index = torch.tensor(rows, dtype=torch.long)
    longest = int(batch["mask"][index].sum(1).max()) if rows else 0
    mask = torch.nn.functional.pad(batch["mask"][index, :longest], (0, extra))
    result = {"mask": mask, "labels": batch["labels"][index], "z0": batch["z0"]}
    for name, value in batch.items():
        if name not in result:
            garbage = GARBAGE[torch.randint(len(GARBAGE), mask.shape, generator=generator)].to(value.dtype)
            padded = torch.nn.functional.pad(value[index, :longest], (0, extra))
            result[name] = torch.where(mask, padded, garbage)
    return result


def partitions(generator: torch.Generator, number: int = 5) -> Iterator[list[list[int]]]:
    """Ways to deal the rows into micro-batches: all at once, one by one, at random; some leave parts empty."""
    yield [list(range(ROWS))]
    yield [[row] for row in range(ROWS)]
    for _ in range(number):
        size = int(torch.randint(2, ROWS + 1, (), generator=generator))
        hand = torch.randint(size, (ROWS,), generator=generator).tolist()
        order = torch.randperm(ROWS, generator=generator).tolist()
        yield [[row for row in order if hand[row] == i] for i in range(size)]


def run(objective: Objective, batch: Batch, parts: list[list[int]], counts: Counts, generator) -> tuple[Tensor, Tensor]:
    """Sum of the losses of the parts, and the accumulated gradient of `new`."""
    leaf = batch["new"].clone().requires_grad_()
    total = torch.zeros((), dtype=leaf.dtype)
    for rows in parts:
        extra = int(torch.randint(1, 4, (), generator=generator))
        loss = objective(part({**batch, "new": leaf}, rows, extra, generator), counts)
        loss.backward()
        total += loss.detach()
    return total, leaf.grad


def check_invariance(objective: Objective, batch: Batch, counts: Counts, generator: torch.Generator) -> None:
    leaf = batch["new"].clone().requires_grad_()
    whole = objective({**batch, "new": leaf}, counts)
    whole.backward()
    rtol, atol = (1e-9, 1e-12) if leaf.dtype == torch.float64 else (1e-5, 1e-6)
    for parts in partitions(generator):
        loss, gradient = run(objective, batch, parts, counts, generator)
        torch.testing.assert_close(loss, whole.detach(), rtol=rtol, atol=atol)
        torch.testing.assert_close(gradient, leaf.grad, rtol=rtol, atol=atol)


@pytest.fixture
def batch(normal, ragged_mask) -> Batch:
    return make_batch(normal, ragged_mask(ROWS, WIDTH))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@each_objective
def test_loss_and_gradient_do_not_depend_on_the_microbatches(objective, dtype, batch, generator):
    batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
    check_invariance(objective, batch, counts_of(batch), generator)


@each_objective
def test_the_check_catches_a_mean_of_means(objective, batch, generator):
    """The wrong normaliser: each micro-batch divides by its own count."""

    def wrong(b: Batch, counts: Counts) -> Tensor:
        own = {mode: max(count, 1) for mode, count in counts_of(b).items()}
        return objective(b, own)

    def mean_of_means(b: Batch, counts: Counts) -> Tensor:
        return wrong(b, counts) * len(b["mask"]) / ROWS

    for broken in (wrong, mean_of_means):
        with pytest.raises(AssertionError):
            check_invariance(broken, batch, counts_of(batch), generator)


def test_the_check_catches_a_baseline_per_microbatch(batch, generator):
    """KTO's z0 belongs to the minibatch; one for each micro-batch makes another loss."""

    def own_baseline(b: Batch, counts: Counts) -> Tensor:
        used = b["mask"].any(1)
        if not used.any():
            return KTO(b, counts)
        logps = (row_sum(b[name], b["mask"])[used].detach() for name in ("new", "old"))
        return KTO({**b, "z0": kl_baseline(*logps)}, counts)

    with pytest.raises(AssertionError):
        check_invariance(own_baseline, batch, counts_of(batch), generator)


@each_objective
def test_an_all_masked_microbatch_gives_exactly_zero(objective, batch):
    counts = counts_of(batch)
    leaf = torch.full((ROWS, WIDTH), torch.nan, dtype=torch.float64, requires_grad=True)
    loss = objective({**batch, "new": leaf, "mask": torch.zeros_like(batch["mask"])}, counts)
    loss.backward()
    assert loss.item() == 0
    assert (leaf.grad == 0).all()


@each_objective
def test_the_order_of_rows_does_not_matter(objective, batch, generator):
    order = torch.randperm(ROWS, generator=generator)
    shuffled = {name: value[order] if value.dim() else value for name, value in batch.items()}
    counts = counts_of(batch)
    torch.testing.assert_close(objective(batch, counts), objective(shuffled, counts), rtol=1e-12, atol=1e-14)


@each_objective
def test_garbage_in_the_padding_changes_nothing(objective, batch, generator):
    counts = counts_of(batch)
    clean = batch["new"].clone().requires_grad_()
    loss = objective({**batch, "new": clean}, counts)
    loss.backward()
    dirty = part(batch, list(range(ROWS)), 3, generator)
    leaf = dirty["new"].requires_grad_()
    other = objective(dirty, counts)
    other.backward()
    assert other.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(leaf.grad[:, :WIDTH], clean.grad, rtol=1e-12, atol=0)
    assert (leaf.grad[~dirty["mask"]] == 0).all()
