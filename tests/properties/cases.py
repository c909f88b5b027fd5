"""What the properties are generated from: ragged masks with holes, settings of any part, rows that share prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from posttrain.config.registry import settings_of
from posttrain.model.packing import Packing, Row

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30, 7.0)
VOCABULARY = 300
SEEDS = st.integers(0, 2**32)

PACKINGS = st.sampled_from([None, Packing(0.0, 0.0), Packing(1 / 800, 1 / 1600), Packing(0.0, 0.0, widest=12)])

# Of every setting that a part reads: its range in the configuration.
SETTINGS: Mapping[str, st.SearchStrategy[Any]] = {
    "beta": st.floats(0.01, 3),
    "label_smoothing": st.floats(0, 0.45),
    "target_margin": st.floats(0, 2),
    "dpop_lambda": st.floats(0, 50),
    "desirable_weight": st.floats(0.1, 5),
    "undesirable_weight": st.floats(0.1, 5),
    "clip_low": st.floats(1e-4, 1),
    "clip_high": st.floats(1e-4, 4),
    "dual_clip": st.none() | st.floats(1.1, 5),
    "value_clip": st.floats(0.01, 2),
    "centre_coef": st.floats(0, 1),
    "scale_by_std": st.booleans(),
    "gamma": st.floats(0.1, 1),
}


def settings_for(entry: str) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of a registry entry, "module:function"."""
    return st.fixed_dictionaries({name: SETTINGS[name] for name in sorted(settings_of(entry))})


def normal(seed: int, *shape: int) -> Tensor:
    """Float64 normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def masks(draw: st.DrawFn, most_rows: int = 6, most_tokens: int = 5) -> Tensor:
    """Bool [N, R], at least one token; rows may have holes or no token at all."""
    rows, width = draw(st.integers(1, most_rows)), draw(st.integers(1, most_tokens))
    bits = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    mask = torch.tensor(bits).view(rows, width)
    mask[draw(st.integers(0, rows - 1)), draw(st.integers(0, width - 1))] = True
    return mask


@dataclass(frozen=True)
class Minibatch:
    """Tensors [N, ...] of one optimiser step, and how its rows are dealt into micro-batches.

    values: tensors [N, R] or [N], by name. parts: row numbers of each micro-batch, some of them empty. wider: columns
    of padding that each micro-batch gets.
    """

    values: dict[str, Tensor]
    parts: list[list[int]]
    wider: list[int]
    garbage: float

    def part(self, number: int) -> dict[str, Tensor]:
        """One micro-batch; all masked places hold garbage."""
        index = torch.tensor(self.parts[number], dtype=torch.int64)
        found = {name: value[index] for name, value in self.values.items()}
        return padded(found, self.wider[number], self.garbage)


def padded(values: Mapping[str, Tensor], wider: int, garbage: float) -> dict[str, Tensor]:
    """Wider by columns that nobody is to look at."""
    mask = torch.nn.functional.pad(values["mask"], (0, wider))
    found = {"mask": mask}
    for name, value in values.items():
        if value.dim() == 2 and name != "mask":
            found[name] = torch.where(mask, torch.nn.functional.pad(value, (0, wider)), garbage)
        elif name != "mask":
            found[name] = value
    return found


@st.composite
def minibatches(draw: st.DrawFn) -> Minibatch:
    """Any policy near or far from the old one, any order and number of micro-batches."""
    mask = draw(masks())
    rows = len(mask)
    distance = draw(st.sampled_from([0.0, 0.1, 1.0, 12.0]))
    names = ("log_probs", "old", "reference", "advantages", "old_values", "returns")
    values = dict(zip(names, normal(draw(SEEDS), len(names), *mask.shape), strict=True))
    values["old"] = values["log_probs"] + distance * values["old"]
    values["labels"] = torch.tensor(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    hand = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    order = draw(st.permutations(range(rows)))
    parts = [[row for row in order if hand[row] == number] for number in range(4)]
    wider = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    return Minibatch({"mask": mask, **values}, parts, wider, draw(st.sampled_from(GARBAGE)))


def tokens(most: int, least: int = 0) -> st.SearchStrategy[list[int]]:
    """Token ids, among them those of padding, beginning and end (0, 1, 2) more often than others."""
    return st.lists(st.integers(0, 4) | st.integers(0, VOCABULARY - 1), min_size=least, max_size=most)


@st.composite
def families(draw: st.DrawFn) -> list[Row]:
    """Rows of which some share a prompt; completions may be empty, equal, or one the beginning of another."""
    prompts = draw(st.lists(tokens(6, 1), min_size=1, max_size=3))
    completions = draw(st.lists(tokens(6), min_size=1, max_size=6))
    return [(draw(st.sampled_from(prompts)), completion) for completion in completions]
