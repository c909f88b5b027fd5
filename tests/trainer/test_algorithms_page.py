"""docs/algorithms.md is what the code does: its presets, the metrics that it names, and the file that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.registry import METHODS
from posttrain.config.runs import Online, PairRun, Sampled
from tests.config.sections import run_of
from tests.trainer.harness import make_stage, run_stage

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")

COMMON = {"train/loss", "train/grad_norm", "train/learning_rate", "perf/step_seconds", "perf/tokens_per_second"}
PAIRS = {"train/chosen_reward", "train/rejected_reward", "train/margin", "train/accuracy"}
LABELS = {"train/reward", "train/margin", "train/accuracy", "train/baseline", "train/desirable"}
SAMPLES = {"rollout/reward", "rollout/length", "rollout/truncated", "rollout/excluded", "rollout/entropy"}
REFERENCE = {"rollout/kl", "train/kl"}
POLICY = {"train/ratio", "train/clipped_low", "train/clipped_high", "rollout/logprob_gap"}
LOGGED: list[tuple[str, dict[str, Any], set[str]]] = [
    ("dpo", {}, PAIRS),
    ("cpo", {}, PAIRS | {"train/nll"}),
    ("kto", {}, LABELS),
    ("bco", {}, LABELS),
    ("ppo", {}, SAMPLES | REFERENCE | POLICY | {"train/value_loss", "train/critic_grad_norm"}),
    ("ppo", {"shared_trunk": True}, SAMPLES | REFERENCE | POLICY | {"train/value_loss"}),
    ("grpo", {"entropy_coef": 0.1}, SAMPLES | REFERENCE | POLICY | {"train/entropy", "rollout/equal_groups"}),
    ("dapo", {}, SAMPLES | POLICY | {"rollout/equal_groups", "rollout/batches"}),
    ("remax", {"policy_loss": "reinforce", "kl_target": 3.0},
     SAMPLES | REFERENCE | {"train/ratio", "rollout/logprob_gap", "train/kl_coef"}),
    ("raft", {}, SAMPLES | {"train/ratio", "rollout/logprob_gap", "train/best_reward"}),
    ("online_dpo", {}, SAMPLES | PAIRS | {"rollout/kl", "rollout/pairs"}),
]  # fmt: skip


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> dict[str, str]:
    """Method -> its row of a table."""
    return {name: row for name, row in re.findall(r"^\| `([\w+]+)` \|(.*)\|$", text, re.MULTILINE) if name in METHODS}


def stated(text: str) -> dict[str, Any]:
    """Of `key: value` between backticks."""
    return {key: yaml.safe_load(value) for key, value in re.findall(r"`([a-z_]+): ([^`]+)`", text)}


def defaults(method: str) -> dict[str, Any]:
    return {name: value for name, value in run_of(method) if name != "method"}


ROWS = {**rows(section("From pairs")), **rows(section("From labels"))}
ROWS.update(rows(section("From the policy's samples").partition("| policy loss | of a token")[0]))


def test_every_method_has_a_row() -> None:
    assert ROWS.keys() == METHODS.keys()


@pytest.mark.parametrize("method", METHODS)
def test_a_row_has_what_the_preset_sets(method: str) -> None:
    """Every key by which it differs from what the text says of all, and no other value."""
    own, said = defaults(method), stated(ROWS[method])
    for key, value in said.items():
        assert own[key] == value, key
    general: dict[str, Any] = {"label_smoothing": 0.0, "loss": "sigmoid", "beta": 0.1}
    base: type = PairRun
    if "policy_loss" in own or method in ("raft", "online_dpo"):
        base = Online if "policy_loss" in own else Sampled
        general.update(stated(section("From the policy's samples").partition("Where a row")[2].partition("\n")[0]))
    general = {
        **{name: field.get_default(call_default_factory=True) for name, field in base.model_fields.items()},
        **general,
    }
    general.update({"advantages": "grpo", "scale_by_std": True, "most_batches": 1})
    if method in ("kto", "bco"):
        said = {"loss": method, **said}
    for key, value in own.items():
        assert key not in general or value in (general[key], said.get(key)), f"{key} is {value}"


@pytest.mark.parametrize(("method", "settings", "wanted"), LOGGED)
def test_a_step_logs_what_the_page_says(
    method: str, settings: Any, wanted: set[str], world: Path, tmp_path: Path
) -> None:
    stage = run_stage(make_stage(method, world, tmp_path, steps=1, **settings))
    assert set(stage.tracker.steps[1]) == wanted | COMMON


def test_the_page_names_every_metric_and_no_other() -> None:
    known = COMMON.union(*(names for _, _, names in LOGGED))
    assert set(re.findall(r"`((?:train|rollout|perf)/[a-z_]+)`", section("What is logged"))) == known


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The file that the page shows."""
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


def test_the_file_of_ones_own_trains(mine: Path, world: Path, tmp_path: Path) -> None:
    (run,) = yaml.safe_load(re.findall(r"^```yaml\n(runs:\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0])[
        "runs"
    ].values()
    assert run.pop("method") == "grpo"
    own = {key: f"{mine}:{value.partition(':')[2]}" for key, value in run.items() if key != "options"}
    online = make_stage("grpo", world, tmp_path / "grpo", steps=1, options=run["options"], **own)
    pairs = make_stage("dpo", world, tmp_path / "dpo", steps=2, loss=f"{mine}:squared_hinge", options={"width": 2.0})
    online.inputs.update(dict.fromkeys(own, mine))
    pairs.inputs["loss"] = mine
    assert run_stage(online).metric("train/faded")[0] >= 0
    first, second = run_stage(pairs).metric("train/loss")
    assert first == pytest.approx(4.0, abs=1e-4), "the policy is the reference: width squared"
    assert second != first
