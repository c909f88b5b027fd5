import shutil

import pytest
import torch

from posttrain.errors import UserError
from posttrain.trainer.objectives.labels import mismatch
from tests.model.tiny import tiny_model
from tests.trainer.harness import make_stage, run_stage
from tests.trainer.test_online import job_of


def test_mismatched_rows_have_a_foreign_completion():
    rows = [([1], [10]), ([1], [11]), ([2], [20]), ([3], [30]), ([3], [31])]
    assert [completion for _, completion in mismatch(rows)] == [[20], [20], [30], [10], [10]]
    assert [prompt for prompt, _ in mismatch(rows)] == [prompt for prompt, _ in rows]


def test_mismatched_rows_of_a_single_prompt_are_the_next_ones():
    assert mismatch([([1], [10]), ([1], [11]), ([1], [12])]) == [([1], [11]), ([1], [12]), ([1], [10])]
    assert mismatch([([1], [10])]) == [([1], [10])]


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_reference_sums_are_those_of_the_sft_model_row_by_row(kind, world, tmp_path):
    job = job_of(kind, world, tmp_path)
    model = tiny_model("llama", seed=1)
    rows = [row for pair in job.pairs for row in pair] if kind == "dpo" else job.rows
    found = job.reference.flatten().tolist()
    assert len(found) == len(rows)
    for value, (prompt, completion) in list(zip(found, rows, strict=True))[:10]:
        with torch.no_grad():
            table = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
        alone = sum(float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(completion))
        assert value == pytest.approx(alone, abs=1e-4)


def test_another_model_or_other_rows_have_another_cache(world, tmp_path):
    first = job_of("dpo", world, tmp_path)
    changed = tmp_path / "changed"
    shutil.copytree(world, changed)
    (changed / "sft" / "manifest.json").write_text("{}")
    job_of("dpo", changed, tmp_path)
    job_of("kto", world, tmp_path)
    assert len(list((tmp_path / "state").glob("reference-*"))) == 3
    assert first.reference.shape == (40, 2)


def test_pairs_that_no_source_gives(world, tmp_path):
    with pytest.raises(UserError, match=r"preferences/pairs\.parquet does not exist"):
        stage = make_stage("dpo", world, tmp_path, preferences="ranked")
        stage.inputs["preferences"] = tmp_path / "preferences"
        run_stage(stage)


def test_label_counts_are_logged(world, tmp_path, caplog):
    caplog.set_level("INFO")
    job_of("kto", world, tmp_path)
    assert "40 desirable and 40 undesirable completions" in caplog.text
