"""What a row counts as its least work, against counting by hand."""

from itertools import product

import pytest

from bench.texts import make_rows
from bench.work import ROWS, Work, floor_parts, sequence, tree


def count(prompt: int, completions: list[int]) -> tuple[int, int]:
    """Tokens and (query, key) pairs of a prompt with its completions, one by one."""
    tokens = [("prompt", i) for i in range(prompt)]
    tokens += [(number, i) for number, length in enumerate(completions) for i in range(length)]

    def sees(query, key):
        if key[0] == "prompt":
            return query[0] != "prompt" or key[1] <= query[1]
        return query[0] == key[0] and key[1] <= query[1]

    return len(tokens), sum(sees(query, key) for query, key in product(tokens, tokens))


@pytest.mark.parametrize(("prompt", "completions"), [(1, [1]), (3, [4]), (5, [2, 7]), (4, [3, 3, 3])])
def test_a_tree_counts_a_shared_prompt_once(prompt, completions):
    shape = tree(prompt, completions)
    assert (shape.tokens, shape.pairs) == count(prompt, completions)
    assert shape.logits == sum(completions)


def test_equal_rows_are_their_own_block():
    shape = sequence(1, 256).times(8)
    assert shape.block == (8, 257, 256)


def test_a_block_has_the_tokens_pairs_and_logits_of_ragged_rows():
    rows = [(8, 30), (20, 100), (64, 400), (13, 60), (40, 250)]
    shapes = [sequence(*row) for row in rows]
    whole = sum(shapes[1:], shapes[0])
    count, length, places = whole.block
    assert count * length == pytest.approx(whole.tokens, rel=0.01)
    assert count * length * (length + 1) / 2 == pytest.approx(whole.pairs, rel=0.25)
    assert count * places == pytest.approx(whole.logits, rel=0.01)


def test_parts_of_each_method():
    """Tokens of each part of a step, by hand: 8 rows, a prompt of 5, completions of 3."""

    def parts(method, **changes):
        work = Work("row", method, 8, 5, 3, **changes)
        return [(p.kind, p.role, p.shape.tokens, p.times) for p in floor_parts(work, [(5, 3)] * 8)]

    optimise = ("optimise", "policy", 0, 1.0)
    assert parts("sft") == [("train", "policy", 64, 1.0), optimise]
    assert parts("reward_model") == [("train", "policy", 88, 1.0), optimise]
    assert parts("dpo", epochs=2) == [("train", "policy", 88, 1.0), ("forward", "reference", 88, 0.5), optimise]
    assert parts("kto", epochs=2) == [
        ("train", "policy", 64, 1.0),
        ("forward", "policy", 24, 1.0),
        ("forward", "reference", 88, 0.5),
        optimise,
    ]
    assert parts("grpo", group=4) == [("generate", "policy", 34, 1.0), ("train", "policy", 34, 1.0), optimise]
    with_both = [kind_and_role[:2] for kind_and_role in parts("rloo", group=4, judge=True, kl=0.1)]
    assert with_both[:3] == [("generate", "policy"), ("forward", "judge"), ("forward", "reference")]
    ppo = parts("ppo", epochs=4, kl=0.1)
    assert ("train", "critic", 64, 4) in ppo and ("optimise", "critic", 0, 4) in ppo
    shared = parts("ppo", epochs=4, kl=0.1, shared_trunk=True)
    assert [part for part in shared if part[0] == "train"] == [("train", "policy", 64, 4)]


@pytest.mark.parametrize("work", ROWS, ids=lambda work: work.name)
def test_rows_have_enough_texts(work):
    rows = make_rows(work)
    assert len(rows) * work.group == work.total_steps * work.rows or work.method not in ("grpo", "rloo", "ppo")
    assert len({row["id"] for row in rows}) == len(rows)
    assert make_rows(work) == rows, "the same in every process"
