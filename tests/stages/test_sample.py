from posttrain.data.tables import read_table
from tests.trainer.harness import EOS, make_stage, run_stage


def samples_of(world, place, **settings):
    stage = run_stage(make_stage("sample", world, place, **settings))
    return read_table(stage.out / "samples.parquet").to_dict("records")


def test_every_chosen_prompt_has_its_samples_in_the_order_of_the_data(world, tmp_path):
    rows = samples_of(world, tmp_path)
    prompts = read_table(world / "data" / "prompts.parquet")
    order = prompts[prompts["split"] == "train"]["id"].tolist()
    chosen = [row["id"] for row in rows[::3]]
    assert chosen == sorted(chosen, key=order.index) and len(set(chosen)) == 20
    assert chosen != order[:20], "the seed chooses"
    assert [row["sample"] for row in rows] == [0, 1, 2] * 20
    ids = dict(zip(prompts["id"], prompts["prompt_ids"], strict=True))
    for row in rows:
        assert row["prompt_ids"] == ids[row["id"]]
        assert (row["completion_ids"][-1] == EOS) == (row["finish"] == "eos")
        assert row["finish"] == "eos" or len(row["completion_ids"]) == 6
    assert len({tuple(row["completion_ids"]) for row in rows}) > 50


def test_a_sample_does_not_depend_on_the_batch_it_was_made_in(world, tmp_path):
    found = [samples_of(world, tmp_path / str(size), generation_batch=size) for size in (1, 7, 60)]
    assert found[0] == found[1] == found[2]


def test_all_prompts_where_there_are_fewer_than_wanted(world, tmp_path, caplog):
    caplog.set_level("INFO")
    assert len(samples_of(world, tmp_path, prompts=1000)) == 40 * 3
    assert "40 training prompts, fewer than sample.prompts 1000" in caplog.text
