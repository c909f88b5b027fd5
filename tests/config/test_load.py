"""The config: every refusal names the key and the mend, and every stage's slice holds only what it may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import (
    SECTIONS,
    json_schema,
    load_config,
    parse_config,
    resolved_yaml,
    stage_slice,
)
from posttrain.config.schema import Config
from posttrain.errors import UserError

BASE = """
experiment: x
data: {sources: [{file: a.txt, form: ratings}]}
model: {base: "built-in: tiny"}
runs:
  ppo: {method: ppo, kl_coef: 0.1, seed: 7}
  dpo: {method: dpo}
"""


def message(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_config(path)
    found = str(caught.value)
    assert len(found.splitlines()) <= 5
    assert "experiment.yaml" in found
    return found


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(BASE)
    config = load_config(path)
    assert config.runs["ppo"].kl_coef == 0.1 and config.runs["dpo"].beta == 0.1


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("kl_coef", "kl_coeff", ["runs.ppo.kl_coeff", "nearest is runs.ppo.kl_coef"]),
        ("experiment: x", "experiment: x\nsead: 3", ["sead", "nearest is seed"]),
        ("form: ratings", "form: ratings, fyle: b", ["data.sources.0.fyle", "nearest is data.sources.0.file"]),
        ("method: dpo", "method: dpo, zzz: 1", ["runs.dpo.zzz", "the keys here are", "beta"]),
        ("method: dpo", "method: dpoo", ["runs.dpo.method", "'dpoo'", "did you mean 'dpo'", "ppo, grpo, dr_grpo"]),
        ("{method: dpo}", "{beta: 1}", ["runs.dpo.method is missing", "ppo, grpo, dr_grpo", "kto, bco"]),
        ("dpo: {method: dpo}", "dpo:", ["runs.dpo", "mapping"]),
        ("kl_coef: 0.1", "kl_coef: -1", ["runs.ppo.kl_coef is -1", "greater than or equal to 0"]),
        ("kl_coef: 0.1", "kl_coef: .inf", ["runs.ppo.kl_coef is inf", "finite"]),
        ("kl_coef: 0.1", "steps: yes", ["runs.ppo", "steps is true", "number"]),
        ("form: ratings", "form: rating", ["data.sources.0.form is 'rating'", "'ratings'", "'kto'"]),
        ("file: a.txt", "file: a.txt, hub: b", ["data.sources.0", "exactly one of 'file' and 'hub'"]),
        ("form: ratings", "form: ratings, hub_split: test", ["data.sources.0", "hub_split does nothing"]),
        ("file: a.txt", "hub: a/b, format: csv", ["data.sources.0", "format does nothing"]),
        ("kl_coef: 0.1", "steps: 5, warmup_steps: 6", ["runs.ppo", "warmup_steps 6 is more than steps 5"]),
        ('tiny"', 'tiny", attention: flash_attention_2', ["model.attention", "needs resources.device: cuda"]),
        ("data: {", "resources: {gpus: 2}\ndata: {", ["resources.gpus is for resources.device: cuda"]),
        ('tiny"', 'tiny", revision: v2', ["model.revision is for a base from the hub"]),
        ('"built-in: tiny"', '"built-in:tiny"', ["model", "'built-in:tiny'", "'built-in: tiny'"]),
        ('"built-in: tiny"', '"Wheel: a==1"', ["model", "'Wheel: a==1'", "'wheel: NAME==VERSION'"]),
        ("experiment: x", "experiment: x\nevaluation: {judge: vadr}", ["evaluation", "'vadr'", "'vader'", "FILE.py:"]),
        ("method: dpo", "method: dpo, kl_probe: {every: 2}", ["runs.dpo", "kl_probe is for kl_budget"]),
        ("method: dpo", "method: dpo, kl_budget: 1, steps: 6", ["runs.dpo", "never measured", "kl_probe.every is 10"]),
        ("experiment: x", "experiment: x\nsft: 3", ["sft is 3", "a mapping"]),
        ("experiment: x", "seed: 1", ["experiment is missing"]),
        ("experiment: x", "experiment: a/b", ["experiment is 'a/b'"]),
        ("experiment: x", "experiment: mlflow", ["experiment", "another"]),
        ("experiment: x", "experiment: 5", ["experiment is 5", "quotes"]),
        ("experiment: x", "experiment:", ["experiment is empty"]),
        ("  dpo:", "  7:", ["runs.7", "quotes"]),
        ("experiment: x", "experiment: x\nseed: -1", ["seed is -1", "greater than or equal to 0"]),
        ("experiment: x", f"experiment: x\nseed: {2**63}", ["seed is", "less than"]),
        ("seed: 7", f"seed: {2**63}", ["runs.ppo.seed is", "less than"]),
        ("[{file: a.txt, form: ratings}]", "[]", ["data.sources is []; it should have at least 1 item"]),
        ("sources:", "path: '', sources:", ["data: path is ''", "folder"]),
        ("sources:", "path: ., sources:", ["data: path is '.'", "folder"]),
        ("sources:", "split: {test: 0}, sources:", ["data.split.test is 0", "give it a share"]),
        ("sources:", "split: {test: 0.6, validation: 0.4}, sources:", ["data.split", "less than 1"]),
        ('"built-in: tiny"', '""', ["model.base is ''", "at least 1 character"]),
        ("experiment: x", "experiment: x\n? [a, b]\n: c", ["line 3", "a key must be"]),
        ("form: ratings", "form: preference", ["data.sources: sft needs", "is preference; add"]),
        (
            "form: ratings}]}",
            "form: ratings}, {file: b.jsonl, form: preference}]}\nreward_model: {margin: true}",
            ["reward_model.margin is the gap", "set it to false"],
        ),
        (
            "experiment: x",
            "experiment: x\nsft: {neftune_alpha: 5, train_layers: 2}",
            ["neftune_alpha needs all layers"],
        ),
        ("experiment: x", "experiment: x\nreward_model: {label_smoothing: 0.5}", ["label_smoothing", "less than 0.5"]),
        ("form: ratings", "form: messages", ["data.sources: reward_model needs", "ratings or preference"]),
        ("method: dpo", "method: kto, preferences: data", ["data.sources: runs.dpo needs a source of form kto"]),
        ("method: dpo", "method: bco, preferences: data", ["data.sources: runs.dpo needs a source of form kto"]),
        ("method: dpo", "method: kto, loss: bco", ["runs.dpo: loss bco", "use method: bco"]),
        ("method: dpo", "method: bco, loss: kto", ["runs.dpo: loss kto", "use method: kto"]),
        ("method: dpo", "method: dpo, loss: orpo", ["runs.dpo: loss orpo", "set reference_free: true"]),
        ("method: dpo", "method: online_dpo, loss: orpo", ["runs.dpo: loss orpo", "set reference_free: true"]),
        ("method: dpo", "method: orpo, reference_free: false", ["runs.dpo: loss orpo", "set reference_free: true"]),
        ("method: dpo", "method: dpop, reference_free: true", ["runs.dpo: loss dpop", "set reference_free: false"]),
        ("kl_coef: 0.1", "kl_in: loss", ["runs.ppo: kl_estimator k1", "k2 or k3"]),
        ("method: dpo", "method: grpo, kl_estimator: k1", ["runs.dpo: kl_estimator k1", "or kl_in: reward"]),
        ("kl_coef: 0.1", "kl_target: 2, kl_horizon: 6", ["runs.ppo: kl_horizon is 6", "32 samples", "more than 6.4"]),
        ("method: dpo", "method: reinforce++, most_batches: 2", ["runs.dpo: most_batches", "samples_per_prompt is 1"]),
        (
            "method: dpo",
            "method: dpo, lora: {targets: q_proj}",
            ["runs.dpo.lora.targets is 'q_proj'; it should be 'all-linear', or be a valid list"],
        ),
        ("method: dpo", "method: dpo, lora: {targets: [1]}", ["runs.dpo.lora.targets", "'all-linear'"]),
        ("method: dpo", "method: dpo, options: {a: [1]}", ["runs.dpo.options.a is [1]; it should be"]),
        ("  dpo:", "  sft:", ["runs.sft", "another"]),
        ("  dpo:", "  d p o:", ["runs.d p o", "letters, digits"]),
        ("experiment: x", "experiment: x\nseed: 1\nseed: 2", ["line 4", "'seed'", "twice"]),
        ('"built-in: tiny"', "a: b: c", ["line 4"]),
    ],
)
def test_a_wrong_file_names_key_and_mend(tmp_path: Path, old: str, new: str, wanted: list[str]) -> None:
    assert old in BASE
    found = message(tmp_path, BASE.replace(old, new))
    for part in wanted:
        assert part in found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"data": {"vocabulary": 300}}, "data.vocabulary is for the built-in base"),
        ({"data": {"prompt_words": 2}}, "data.prompt_words is for sources of form ratings"),
        ({"data": {"rating_pairs": {"margin": 2}}}, "data.rating_pairs is for sources of form ratings"),
        ({"model": {"attention": "flash_attention_2"}, "resources": {"device": "cuda"}}, "needs model.dtype: bfloat16"),
    ],
)
def test_keys_that_would_do_nothing(content: dict[str, Any], said: str) -> None:
    sources = [{"file": "a.json", "form": "messages"}, {"file": "b.json", "form": "preference"}]
    base = {"experiment": "x", "runs": {"p": {"method": "ppo"}}}
    base |= {"data": {"sources": sources}, "model": {"base": "org/name", "revision": "v2"}}
    parse_config(base, "test")
    parse_config(yaml.safe_load(resolved_yaml(parse_config(base, "test"))), "resolved")
    for section, values in content.items():
        base[section] = {**base.get(section, {}), **values}
    with pytest.raises(UserError, match=said):
        parse_config(base, "test")


def test_a_run_may_have_any_other_name(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    for name in ("data", "run-dpo", "eval-sft", "image"):
        path.write_text(BASE.replace("  ppo:", f"  {name}:"))
        assert name in load_config(path).runs


def test_many_faults_stay_short(tmp_path: Path) -> None:
    found = message(tmp_path, BASE + "a1: 1\na2: 2\na3: 3\na4: 4\na5: 5\n")
    assert "and 2 more" in found


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "holds nothing"),
        (b"- a\n", "holds a list"),
        (b"experiment: caf\xe9\n", "line 1: not UTF-8 (byte 0xe9)"),
        (b"experiment: [x\n", "line 2"),
        (b"!!python/object/apply:os.getcwd []\n", "line 1"),
    ],
)
def test_other_content(tmp_path: Path, content: bytes, wanted: str) -> None:
    assert wanted in message(tmp_path, content)


def test_absent_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing.yaml does not exist"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(UserError, match="is a folder"):
        load_config(tmp_path)


def test_windows_byte_order_mark_and_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_config(path).experiment == "x"


def test_resolved_yaml_loads_to_the_same_config() -> None:
    config = parse_config(yaml.safe_load(BASE), "test")
    text = resolved_yaml(config)
    assert parse_config(yaml.safe_load(text), "test") == config
    assert "checkpoint_every" in text


def config_with(change: str = "", new: str = "") -> Config:
    return parse_config(yaml.safe_load(BASE.replace(change, new)), "test")


def test_slices_hold_their_sections_only() -> None:
    config = config_with()
    for stage, names in SECTIONS.items():
        part = stage_slice(config, stage, "ppo")
        assert set(part.as_dict()) == set(names)
        json.dumps(part.as_dict())
    with pytest.raises(AttributeError, match="outside this stage's slice"):
        _ = stage_slice(config, "sft").data


def test_a_runs_seed_wins_and_concerns_only_its_run() -> None:
    config = config_with()
    assert stage_slice(config, "post_train", "ppo").seed == 7
    assert stage_slice(config, "post_train", "dpo").seed == 0
    other = config_with("seed: 7", "seed: 8")
    assert stage_slice(config, "post_train", "dpo").as_dict() == stage_slice(other, "post_train", "dpo").as_dict()
    assert stage_slice(config, "post_train", "ppo").as_dict() != stage_slice(other, "post_train", "ppo").as_dict()


def test_threads_of_single_stages() -> None:
    config = config_with("runs:", "resources: {threads: 3, stage_threads: {sft: 2}}\nruns:")
    assert {name: stage_slice(config, name, "ppo").as_dict().get("threads") for name in SECTIONS} == {
        **dict.fromkeys(("fetch_model", "prepare", "compare")),
        **dict.fromkeys(("reward_model", "sample", "rank", "post_train", "evaluate"), 3),
        "sft": 2,
    }
    with pytest.raises(UserError, match=r"resources\.stage_threads\.stf"):
        config_with("runs:", "resources: {stage_threads: {stf: 2}}\nruns:")


def test_compare_reads_only_the_bootstrap() -> None:
    one = stage_slice(config_with("runs:", "evaluation: {prompts: 3}\nruns:"), "compare")
    assert one.as_dict() == stage_slice(config_with(), "compare").as_dict()
    assert one.evaluation.bootstrap == 1000


def test_unknown_run_and_stage() -> None:
    with pytest.raises(UserError, match="no run 'grpo'"):
        stage_slice(config_with(), "post_train", "grpo")
    with pytest.raises(UserError, match="no stage 'train'"):
        stage_slice(config_with(), "train")


def test_the_committed_schema_is_the_generated_one() -> None:
    """`posttrain schema --output workflow/schemas/config.schema.json` writes it."""
    path = Path(__file__).parents[2] / "workflow" / "schemas" / "config.schema.json"
    assert json.loads(path.read_text()) == json_schema()


def test_the_schema_accepts_a_good_file_and_refuses_an_unknown_key() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(yaml.safe_load(BASE), json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(BASE.replace("kl_coef", "kl_coeff")), json_schema())
