from posttrain.trainer.order import Order, data_digest, permutation


def test_each_pass_sees_every_row_once_in_an_order_of_its_own():
    order = Order(seed=3, total=10, minibatch=4)
    seen = [row for step in range(1, 6) for row in order.rows(step)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_a_step_does_not_depend_on_the_steps_before():
    fresh, used = Order(1, 7, 3), Order(1, 7, 3)
    for step in range(1, 20):
        used.rows(step)
    assert fresh.rows(20) == used.rows(20)
    assert used.rows(1) == Order(1, 7, 3).rows(1)


def test_a_minibatch_larger_than_the_data():
    rows = Order(0, 3, 7).rows(1)
    assert sorted(rows[:3]) == sorted(rows[3:6]) == [0, 1, 2] and len(rows) == 7


def test_position_counts_passes_and_rows():
    assert Order(0, 10, 4).position(0) == {"epoch": 0, "samples_seen": 0}
    assert Order(0, 10, 4).position(6) == {"epoch": 2, "samples_seen": 24}


def test_seeds_and_names_give_different_orders():
    assert len({tuple(permutation(50, seed, name)) for seed in (0, 1) for name in ("a", "b")}) == 4


def test_the_digest_knows_values_order_and_boundaries():
    rows = [[[1, 2], [3]], [[4], [5]]]
    others = [[[1], [2, 3]], [[4], [5]]], [[[4], [5]], [[1, 2], [3]]], [[[1, 2], [3]], [[4], [6]]]
    assert len({data_digest(r) for r in (rows, *others)}) == 4
    assert data_digest(rows) == data_digest([[(1, 2), (3,)], [(4,), (5,)]])
