from posttrain.trainer.rows import VALIDATION_ROWS, validation_rows


def test_few_rows_are_all_measured_in_their_order():
    assert validation_rows(["b", "a", "c"], seed=1) == ["b", "a", "c"]
    assert validation_rows([], seed=1) == []


def test_many_rows_are_chosen_by_the_seed():
    rows = list(range(5000))
    first, again, other = (validation_rows(rows, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == VALIDATION_ROWS and first == sorted(first) and max(first) > 4000
