import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.config.schema import Model
from posttrain.data.tables import SFT, read_table, write_table
from posttrain.errors import UserError
from tests.trainer.harness import make_stage, run_stage


def with_rows(world, place, change):
    """A stage whose data folder is a copy of the world's with other rows."""
    stage = make_stage("sft", world, place / "stage")
    rows = read_table(world / "data" / "sft.parquet").to_dict("records")
    (place / "data").mkdir()
    (place / "data" / "tokenizer").symlink_to(world / "data" / "tokenizer")
    write_table(place / "data" / "sft.parquet", change(rows), SFT)
    stage.inputs["data"] = place / "data"
    return stage


def test_validation_loss_is_the_mean_over_tokens(world, tmp_path):
    stage = run_stage(make_stage("sft", world, tmp_path))
    model = AutoModelForCausalLM.from_pretrained(stage.out / "model").eval()
    total, tokens = 0.0, 0
    table = read_table(world / "data" / "sft.parquet")
    for row in table[table["split"] == "validation"].to_dict("records"):
        ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        with torch.no_grad():
            found = model(ids).logits[0].log_softmax(-1)
        start = len(row["prompt_ids"])
        total -= sum(float(found[start - 1 + i, token]) for i, token in enumerate(row["completion_ids"]))
        tokens += len(row["completion_ids"])
    assert stage.tracker.final["eval/loss"] == pytest.approx(total / tokens, rel=1e-4)


def test_first_and_last_completion_token_are_trained_and_no_prompt_token(world, tmp_path):
    """FIELD_RULES 3: the loss of one row, by hand."""
    stage = with_rows(world, tmp_path, lambda rows: rows[:1])
    stage.config.sft = stage.config.sft.model_copy(update={"minibatch": 1, "steps": 1})
    row = read_table(tmp_path / "data" / "sft.parquet").to_dict("records")[0]
    run_stage(stage)
    model = AutoModelForCausalLM.from_pretrained(world / "sft" / "model").eval()
    ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    labels = torch.tensor([[-100] * len(row["prompt_ids"]) + row["completion_ids"]])
    with torch.no_grad():
        expected = float(model(ids, labels=labels).loss)
    assert stage.metric("train/loss") == [pytest.approx(expected, rel=1e-4)]


def test_the_built_in_base_is_made_for_the_tokenizer(world, tmp_path):
    stage = make_stage("sft", world, tmp_path, steps=1)
    stage.config.model = Model(base="built-in: tiny")
    run_stage(stage)
    config = json.loads((stage.out / "model" / "config.json").read_text())
    assert config["hidden_size"] == 256 and config["model_type"] == "llama"


def test_a_base_that_could_not_go_through_all_stages_is_refused_before_the_first_step(world, tmp_path, monkeypatch):
    def refuse(model):
        raise UserError("unfit")

    monkeypatch.setattr("posttrain.stages.sft.check_base", refuse)
    stage = make_stage("sft", world, tmp_path)
    with pytest.raises(UserError, match="unfit"):
        run_stage(stage)
    assert not stage.tracker.steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [{**rows[0], "completion_ids": []}, *rows[1:]], "row row0 has no token in completion_ids"),
        (lambda rows: [{**rows[3], "completion_ids": [5] * 140}, *rows], r"row row3 has 14\d tokens .* context of 128"),
        (lambda rows: [{**row, "split": "test"} for row in rows], "no row in the split 'train'"),
    ],
)
def test_rows_that_cannot_be_trained_on(change, message, world, tmp_path):
    with pytest.raises(UserError, match=message):
        run_stage(with_rows(world, tmp_path, change))


def test_without_validation_rows_there_is_no_validation_loss(world, tmp_path):
    stage = run_stage(with_rows(world, tmp_path, lambda rows: [row for row in rows if row["split"] == "train"]))
    assert stage.tracker.final == {}
