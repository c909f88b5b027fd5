"""The stage compare on a made-up experiment."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from posttrain.config.schema import Flags
from posttrain.evaluation.report import CAPTIONS
from posttrain.provenance import manifest
from posttrain.stages import compare
from posttrain.tracking.metrics_file import read_lines
from posttrain.tracking.tracker import Tracker
from tests.evaluation import fake


def make_stage(inputs: dict[str, Path], place: Path) -> Any:
    for folder in ("out", "state"):
        (place / folder).mkdir(parents=True)
    return SimpleNamespace(
        config=SimpleNamespace(evaluation=SimpleNamespace(bootstrap=100), flags=Flags(most_kl=3.0)),
        inputs=inputs,
        out=place / "out",
        state=place / "state",
        seed=0,
        log=logging.getLogger("posttrain.compare"),
        tracker=Tags(place / "state"),
    )


class Tags(Tracker):
    """Remembers the tags instead of sending them."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.tags: dict[str, dict[str, str]] = {}

    def tag(self, values: Mapping[str, str], run: str) -> None:
        self.tags.setdefault(run, {}).update(values)


def test_all_files_and_the_headline_values_of_the_runs(tmp_path: Path) -> None:
    inputs = fake.experiment(tmp_path / "results/quick", {"ppo": ("ppo", 1.0), "dpo": ("dpo", 0.5)})
    stage = make_stage(inputs, tmp_path)
    compare.run(stage)
    names = {path.name for path in stage.out.iterdir()}
    assert names == {"summary.csv", "seeds.csv", "report.html", *CAPTIONS}
    with (stage.out / "summary.csv").open(newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["sft", "ppo", "dpo"]
    logged = {line.run: line.values for line in read_lines(stage.tracker.path)}
    assert logged.keys() == {"ppo", "dpo"}
    assert f"{logged['ppo']['eval/win_rate']:.6g}" == rows["ppo"]["win_rate"]
    assert f"{logged['ppo']['eval/judge_gain']:.6g}" == rows["ppo"]["judge_gain"]
    assert "most_kl" in rows["ppo"]["flags"] and "most_kl" not in rows["dpo"]["flags"]
    for name in ("ppo", "dpo"):
        assert stage.tracker.tags[name]["flags"] == rows[name]["flags"]
        assert logged[name]["eval/flags"] == len(rows[name]["flags"].split(";")) * (rows[name]["flags"] != "none")
    assert "<title>quick</title>" in (stage.out / "report.html").read_text()


def test_a_run_may_have_the_name_of_an_input(tmp_path: Path) -> None:
    names = ["data", "run-data", "eval-data"]
    inputs = fake.experiment(tmp_path / "results/quick", dict.fromkeys(names, ("dpo", 0.5)))
    experiment = compare.read(make_stage(inputs, tmp_path))
    assert [entry.name for entry in experiment.entries] == ["sft", *names]


def test_times_and_hosts_are_in_no_digest(tmp_path: Path) -> None:
    found = []
    for name, seconds in (("a", "61.5"), ("b", "99.5")):
        inputs = fake.experiment(tmp_path / name / "results/quick", {"ppo": ("ppo", 1.0)})
        for facts in (tmp_path / name).rglob("run.json"):
            facts.write_text(facts.read_text().replace("61.5", seconds).replace("<host>", f"host-{name}"))
        stage = make_stage(inputs, tmp_path / name)
        compare.run(stage)
        found.append((manifest.outputs(stage.out), (stage.out / "report.html").read_text()))
    assert found[0][0] == found[1][0] and "summary.csv" in found[0][0]
    assert "host-a" in found[0][1] and "host-b" in found[1][1]
