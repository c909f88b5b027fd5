"""Rates, ratios and utilisation, against arithmetic by hand."""

import pytest

from bench.figures import ratio, summarise
from bench.report import cells
from bench.work import Work


def result(seconds, tokens, once=0.0, **more):
    reference = {"reference": once} if once else {}
    return {"seconds": seconds, "tokens": tokens, "once": reference, "peak_mib": 100.0, "imports_mib": 50.0, **more}


def test_a_one_off_pass_is_spread_over_steps_and_epochs():
    """10 s over 5 steps of each of 2 epochs are 1 s a step."""
    work = Work("row", "dpo", 8, 5, 3, epochs=2, steps=3, warmup=2)
    found = summarise(work, [{"ours": result([1.0, 1.0, 3.0], [100, 100, 100], once=10.0)}])
    assert found["ours"]["tokens_per_cpu_second"] == pytest.approx(50)
    assert found["ours_to_trl"] is None and found["ours_to_floor"] is None


def test_ratios_are_of_steps_of_one_turn():
    """The machine is half as fast in the second half, which a ratio of medians would not see through."""
    assert ratio([2, 2, 1, 1, 1], [1, 1, 0.5, 0.5, 0.5]) == 2


def test_the_fastest_of_trls_settings_counts():
    work = Work("row", "sft", 8, 5, 3, steps=2)
    sides = {
        "ours": result([1.0, 1.0], [64, 64]),
        "trl:": result([2.0, 2.0], [64, 64]),
        "trl:packed": result([1.6, 1.6], [64, 64]),
        "floor": result([0.8, 0.8], [0, 0], parts=[{"flops": 4e9}], matmul_rate=10e9),
    }
    found = summarise(work, [sides])
    assert found["trl_settings"] == "packed"
    assert found["ours_to_trl"] == pytest.approx(1.6)
    assert found["ceiling"] == pytest.approx(2)
    assert found["ours_to_floor"] == pytest.approx(0.8)
    assert found["floor"]["utilisation"] == pytest.approx(0.5)
    assert found["ours"]["utilisation"] == pytest.approx(0.4)
    assert cells(found)[:7] == ["row", "64", "40", "80", "1.60", "2.00", "0.80"]


def test_a_side_that_fails_has_no_figure():
    work = Work("row", "sft", 8, 5, 3, steps=2)
    found = summarise(work, [{"ours": result([1.0, 1.0], [64, 64]), "trl:": {"failed": "out of memory"}}])
    assert found["failed"] == {"trl:": "out of memory"}
    assert "trl" not in found and cells(found)[2] == "-"
