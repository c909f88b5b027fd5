"""Floating-point operations of the models, for the share of the machine's matrix-multiply rate that a row reaches.

Matrix products alone count (Kaplan et al. 2020, arXiv:2001.08361, section 2.1, and attention's own two products); a
multiplication with its addition is two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.work import Part, Shape, Work


@dataclass(frozen=True)
class Facts:
    """A model: weights of its trunk's matrices, width of all heads together, layers, hidden size, vocabulary."""

    matrices: int
    attention: int
    layers: int
    hidden: int
    vocabulary: int

    def forward(self, shape: Shape, head: str) -> float:
        """Operations of a forward pass: two products per (query, key) pair of a layer, the head where logits count."""
        width = self.vocabulary * (head in ("lm", "both")) + (head != "lm")
        trunk = 2 * self.matrices * shape.tokens + 4 * self.attention * self.layers * shape.pairs
        return trunk + 2 * self.hidden * width * shape.logits


def part_flops(part: Part, facts: Facts, work: Work) -> float:
    """Operations of a part in one step. A backward pass is two forward passes; one, where the weights are frozen."""
    if part.kind == "optimise":
        return 0.0
    if part.kind == "train":
        return part.times * facts.forward(part.shape, part.head) * (2 if work.lora else 3)
    return part.times * facts.forward(part.shape, part.head)
