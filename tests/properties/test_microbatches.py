"""Rule 15 on generated minibatches: however the rows are dealt, losses, gradients and metrics add up to the whole's.

Every entry of the registry is checked, with settings from the whole of their ranges. A part gets its rows in another
order, padded with garbage to another width, and sometimes no row at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from posttrain.algorithms.aggregate import MODES, aggregate, normaliser, row_sum, zero_masked
from posttrain.config.registry import KL_ESTIMATORS, LABEL_LOSSES, PAIR_LOSSES, POLICY_LOSSES, resolve
from tests.properties.cases import Minibatch, minibatches, settings_for

VALUE_LOSS = "posttrain.algorithms.value_loss:clipped_value_loss"
BRADLEY_TERRY = "posttrain.algorithms.preference.bradley_terry:bradley_terry"
NEGATIVE = ("simpo", "orpo")  # take mean log-probabilities, which are below 0

Values = dict[str, Tensor]
Losses = Callable[[Values], Values]
"""A micro-batch -> the loss and its statistics, [b] or [b, R]."""


def by_token(entry: str, settings: dict[str, Any]) -> Losses:
    def losses(x: Values) -> Values:
        loss, stats = resolve(entry)(x["log_probs"], x["old"], x["advantages"], x["mask"], **settings)
        return {"loss": loss, **stats}

    return losses


def of_kl(entry: str, settings: dict[str, Any]) -> Losses:
    return lambda x: {"loss": resolve(entry)(x["log_probs"], x["reference"], x["mask"], **settings)}


def of_values(entry: str, settings: dict[str, Any]) -> Losses:
    return lambda x: {"loss": resolve(entry)(x["log_probs"], x["old_values"], x["returns"], x["mask"], **settings)}


def of_pairs(entry: str, settings: dict[str, Any], *, negative: bool = False) -> Losses:
    """Two numbers for each row that both hang on its tokens."""

    def losses(x: Values) -> Values:
        tokens = zero_masked(x["log_probs"], x["mask"])
        first = tokens.sum(-1) - row_sum(x["reference"], x["mask"])
        second = tokens.square().sum(-1) - 1
        if negative:
            first, second = -first.square() - 0.01, -second.square() - 0.01
        gap = [torch.full_like(first, 0.3)] if entry == BRADLEY_TERRY else []
        loss, stats = resolve(entry)(first, second, *gap, **settings)
        return {"loss": loss, **stats}

    return losses


def of_labels(entry: str, settings: dict[str, Any]) -> Losses:
    def losses(x: Values) -> Values:
        ratios = row_sum(x["log_probs"], x["mask"]) - row_sum(x["reference"], x["mask"])
        loss, stats = resolve(entry)(ratios, x["labels"], torch.tensor(0.3, dtype=torch.float64), **settings)
        return {"loss": loss, **stats}

    return losses


CASES: dict[str, tuple[str, Callable[[str, dict[str, Any]], Losses]]] = {
    **{name: (entry, by_token) for name, entry in POLICY_LOSSES.items()},
    **{name: (entry, of_kl) for name, entry in KL_ESTIMATORS.items()},
    **{
        name: (entry, functools.partial(of_pairs, negative=name in NEGATIVE))
        for name, entry in [*PAIR_LOSSES.items(), ("bradley_terry", BRADLEY_TERRY)]
    },
    **{name: (entry, of_labels) for name, entry in LABEL_LOSSES.items()},
    "value_loss": (VALUE_LOSS, of_values),
}


def total(losses: Losses, x: Values, mode: str, count: dict[int, float]) -> Values:
    """A micro-batch's share of the loss and of all metrics; count: of values per row (1) and per token (2)."""
    found = {}
    for name, values in losses(x).items():
        mask = x["mask"] if values.dim() == 2 else torch.ones(len(values), dtype=torch.bool)
        by = mode if name == "loss" or values.dim() == 1 else "token-mean"
        found[name] = aggregate(values, mask, by, count=count[values.dim()] if by == mode else count[0])
    return found


def whole_and_parts(losses: Losses, batch: Minibatch, mode: str) -> tuple[tuple[Values, Tensor], tuple[Values, Tensor]]:
    """(loss and metrics, gradient) of the minibatch at once, and of its micro-batches added up."""
    mask = batch.values["mask"]
    count = {0: normaliser(mask, "token-mean"), 1: float(len(mask)), 2: normaliser(mask, mode)}
    leaf = batch.values["log_probs"].clone().requires_grad_()
    whole = total(losses, {**batch.values, "log_probs": leaf}, mode, count)
    (wanted,) = torch.autograd.grad(whole["loss"], leaf)

    own = batch.values["log_probs"].clone().requires_grad_()
    dealt = Minibatch({**batch.values, "log_probs": own}, batch.parts, batch.wider, batch.garbage)
    parts = [total(losses, dealt.part(number), mode, count) for number in range(len(dealt.parts))]
    for part in parts:
        part["loss"].backward()
    sums = {name: torch.stack([part[name].detach() for part in parts]).sum() for name in whole}
    return ({name: value.detach() for name, value in whole.items()}, wanted), (sums, own.grad)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data(), batch=minibatches(), mode=st.sampled_from(MODES))
def test_micro_batches_add_up(name: str, data: st.DataObject, batch: Minibatch, mode: str) -> None:
    entry, make = CASES[name]
    losses = make(entry, data.draw(settings_for(entry)))
    (whole, wanted), (sums, gradient) = whole_and_parts(losses, batch, mode)
    for key, value in whole.items():
        size = 1 + value.abs() + max(abs(sums["loss"]), wanted.abs().max())  # terms may cancel
        torch.testing.assert_close(sums[key], value, rtol=1e-9, atol=1e-12 * float(size))
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)
    assert (gradient[~batch.values["mask"]] == 0).all()


def test_a_mean_of_means_is_found() -> None:
    """The property can fail: with a count of its own for each micro-batch it does."""

    @settings(phases=[Phase.generate])
    @given(batch=minibatches())
    def wrong(batch: Minibatch) -> None:
        def own_mean(x: Values) -> Values:
            mine = max(normaliser(x["mask"], "token-mean"), 1)
            return {"loss": -zero_masked(x["log_probs"], x["mask"]) / mine}

        (whole, _), (sums, _) = whole_and_parts(own_mean, batch, "token-mean")
        torch.testing.assert_close(sums["loss"], whole["loss"], rtol=1e-9, atol=1e-12)

    with pytest.raises(AssertionError, match="are not close"):
        wrong()
