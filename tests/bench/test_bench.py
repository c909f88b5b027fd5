"""A step of our side and of the floor, as processes that take turns; TRL is not needed."""

import math
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.figures import summarise
from bench.flops import part_flops
from bench.measure import Row
from bench.work import Part, Work, sequence
from bench.workers.floor import Role, facts_of
from bench.workers.prepare import prepare


@pytest.fixture(scope="module")
def row(tmp_path_factory) -> Row:
    found = Row(Work("sft", "sft", 2, 4, 12, steps=1, warmup=1), tmp_path_factory.mktemp("bench"))
    prepare(found.work, Path(found.task["models"]), Path(found.task["data"]))
    return found


def test_one_step_of_ours_and_the_floor(row):
    found = row.measure(["ours", "floor"], 0, None)
    figures = summarise(row.work, [found])
    assert figures["failed"] == {}
    assert found["ours"]["tokens"] == pytest.approx([32])
    assert len(found["ours"]["seconds"]) == len(found["floor"]["seconds"]) == 1
    assert found["ours"]["losses"][0] == pytest.approx(math.log(264), rel=0.4), "the tiny model knows nothing"
    assert figures["ours_to_floor"] > 0 and figures["ours_to_trl"] is None
    assert 100 < figures["ours"]["peak_mib"] < 4000
    assert 0 < figures["floor"]["utilisation"] < 1


def test_operations_are_those_that_torch_counts(row):
    """torch counts attention over the whole square, we count what is not masked."""
    role = Role(Path(row.task["models"]) / "policy" / "model", trains=True, lora=False)
    facts, length = facts_of(role.model), 16
    with FlopCounterMode(display=False) as counter:
        role.train([torch.zeros(2, length, dtype=torch.int64)], 12, "lm")
    shape = sequence(4, 12).times(2)
    ours = part_flops(Part("train", "policy", shape), facts, row.work)
    square = 4 * facts.attention * facts.layers * (2 * length**2 - shape.pairs) * 3
    # Its count of attention's backward pass has the recomputed forward pass in it: five products for two.
    again = 4 * facts.attention * facts.layers * 2 * length**2 / 2
    assert counter.get_total_flops() == pytest.approx(ours + square + again, rel=0.01)
