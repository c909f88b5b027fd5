"""The core suite: a minibatch's loss and gradient do not depend on how it is cut, padded or ordered.

Each objective is written the way a trainer calls it: one micro-batch's share, given the whole minibatch's counts. The
checks cut the minibatch at random, into rows of one, with all-masked micro-batches in between, each padded with garbage
to a width of its own; then they compare the sum of losses, and of gradients, with those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate, normaliser, row_sum
from posttrain.algorithms.kl import k3
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.preference.bradley_terry import bradley_terry_loss
from posttrain.algorithms.preference.dpo import dpo_loss
from posttrain.algorithms.preference.kto import kl_baseline, kto_loss
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
    return {mode: normaliser(batch["mask"], mode) for mode in ("token-mean", "sequence-mean")}


def sft(b: Batch, counts: Counts) -> Tensor:
    return aggregate(-b["new"], b["mask"], "token-mean", count=counts["token-mean"])


def ppo(b: Batch, counts: Counts) -> Tensor:
    losses, _ = clipped_policy_loss(b["new"], b["old"], b["advantages"], b["mask"], 0.2, 0.2)
    return aggregate(losses, b["mask"], "token-mean", count=counts["token-mean"])


def clip_share(b: Batch, counts: Counts) -> Tensor:
    """A logged metric, joined to the loss so that there is a gradient to compare."""
    losses, stats = clipped_policy_loss(b["new"], b["old"], b["advantages"], b["mask"], 0.2, 0.2)
    values = stats["clipped_low"] + stats["clipped_high"] + stats["ratio"] + 0 * losses
    return aggregate(values, b["mask"], "token-mean", count=counts["token-mean"])


def critic(b: Batch, counts: Counts) -> Tensor:
    losses = clipped_value_loss(b["new"], b["old_values"], b["returns"], b["mask"], 0.5)
    return aggregate(losses, b["mask"], "token-mean", count=counts["token-mean"])


def grpo(b: Batch, counts: Counts) -> Tensor:
    losses, _ = clipped_policy_loss(b["new"], b["old"], b["advantages"], b["mask"], 0.2, 0.28)
    losses = losses + 0.1 * k3(b["new"], b["reference"], b["mask"])
    return aggregate(losses, b["mask"], "sequence-mean", count=counts["sequence-mean"])


def dpo(b: Batch, counts: Counts) -> Tensor:
    chosen, reference = row_sum(b["new"], b["mask"]), row_sum(b["reference"], b["mask"])
    losses, _ = dpo_loss(chosen, 0.5 * chosen, reference, 0.3 * reference, 0.3)
    return aggregate(losses, b["mask"].any(1), "sequence-mean", count=counts["sequence-mean"])


def kto(b: Batch, counts: Counts) -> Tensor:
    policy, reference = row_sum(b["new"], b["mask"]), row_sum(b["reference"], b["mask"])
    losses, _ = kto_loss(policy, reference, b["labels"], b["z0"], 0.3, 1.2, 0.7)
    return aggregate(losses, b["mask"].any(1), "sequence-mean", count=counts["sequence-mean"])


def reward_model(b: Batch, counts: Counts) -> Tensor:
    losses, _ = bradley_terry_loss(row_sum(b["new"], b["mask"]), row_sum(b["reference"], b["mask"]))
    return aggregate(losses, b["mask"].any(1), "sequence-mean", count=counts["sequence-mean"])


OBJECTIVES = [sft, ppo, clip_share, critic, grpo, dpo, kto, reward_model]


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


def partitions(generator: torch.Generator, number: int = 25) -> Iterator[list[list[int]]]:
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
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
def test_loss_and_gradient_do_not_depend_on_the_microbatches(objective, dtype, batch, generator):
    batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
    check_invariance(objective, batch, counts_of(batch), generator)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
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
            return kto(b, counts)
        logps = (row_sum(b[name], b["mask"])[used].detach() for name in ("new", "old"))
        return kto({**b, "z0": kl_baseline(*logps)}, counts)

    with pytest.raises(AssertionError):
        check_invariance(own_baseline, batch, counts_of(batch), generator)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
def test_an_all_masked_microbatch_gives_exactly_zero(objective, batch):
    counts = counts_of(batch)
    leaf = torch.full((ROWS, WIDTH), torch.nan, dtype=torch.float64, requires_grad=True)
    loss = objective({**batch, "new": leaf, "mask": torch.zeros_like(batch["mask"])}, counts)
    loss.backward()
    assert loss.item() == 0
    assert (leaf.grad == 0).all()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
def test_the_order_of_rows_does_not_matter(objective, batch, generator):
    order = torch.randperm(ROWS, generator=generator)
    shuffled = {name: value[order] if value.dim() else value for name, value in batch.items()}
    counts = counts_of(batch)
    torch.testing.assert_close(objective(batch, counts), objective(shuffled, counts), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda f: f.__name__)
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
