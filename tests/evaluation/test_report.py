"""The comparison's files: table, pictures, page."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.evaluation import compare_command
from posttrain.evaluation.entries import Entry, read_curves, read_entries, read_records
from posttrain.evaluation.plots import draw_all
from posttrain.evaluation.report import Material, findings, write_report
from posttrain.evaluation.summary import write_summary
from posttrain.tracking.metrics_file import MetricsFile
from tests.evaluation import fake

RUNS = {"ppo": ("ppo", 1.0), "dpo": ("dpo", -1.0), "kto": ("kto", 0.02)}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "quick"
    fake.experiment(root, RUNS)
    return root


@pytest.fixture(scope="module")
def entries(experiment: Path) -> list[Entry]:
    evaluations = {name: experiment / "eval" / name for name in ("ppo", "sft", "dpo", "kto")}
    return read_entries(evaluations, {name: experiment / "runs" / name for name in RUNS}, 200, 0)


def test_the_baseline_is_first_and_has_no_pairs(entries: list[Entry]) -> None:
    assert [(entry.name, entry.method, entry.seed) for entry in entries] == [
        ("sft", "sft", None),
        ("ppo", "ppo", 7),
        ("dpo", "dpo", 7),
        ("kto", "kto", 7),
    ]
    assert ["eval/win_rate" in entry.metrics for entry in entries] == [False, True, True, True]


def test_the_table_holds_values_and_intervals(entries: list[Entry], tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.csv", entries)
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["sft", "ppo", "dpo", "kto"]
    own, theirs = fake.rows(128, 1.0, 3 + sum(map(ord, "ppo"))), fake.rows(128, 0.0, 3 + sum(map(ord, "sft")))
    gain = sum(a["reward"] - b["reward"] for a, b in zip(own, theirs, strict=True)) / 128
    wins = sum(a["judge"] > b["judge"] for a, b in zip(own, theirs, strict=True)) / 128
    assert float(rows[1]["reward_gain"]) == pytest.approx(gain, rel=1e-4)
    assert float(rows[1]["win_rate"]) == pytest.approx(wins, rel=1e-4)
    assert float(rows[1]["win_rate_low"]) < wins < float(rows[1]["win_rate_high"])
    assert rows[0]["win_rate"] == rows[0]["reward_gain_low"] == ""
    assert rows[0]["prompts"] == "128"


def test_equal_entries_give_equal_files(entries: list[Entry], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_summary(tmp_path / name / "summary.csv", entries)
        draw_all(tmp_path / name, entries)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["curves.png", "lengths.png", "reward.png", "reward_kl.png", "summary.csv", "win_rate.png"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_the_intervals_allow_to_say(entries: list[Entry]) -> None:
    assert findings(entries) == [
        "ppo: better than SFT by the reward model (95 % paired interval of the gain).",
        "dpo: worse than SFT by the reward model (95 % paired interval of the gain).",
        "kto: not told apart from SFT (95 % paired interval of the gain).",
    ]


class Page(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_alone_and_escaped(entries: list[Entry], experiment: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = {"name": "<i>a.tsv</i>", "form": "ratings", "read": 7, "dropped": {"empty text": 2}}
    kept = {"kept": {"train": 3, "validation": 1, "test": 1}}
    card = {"sources": [{**source, **kept}], "tables": {"sft": {"train": 3, "validation": 1, "test": 1}}}
    (data / "card.json").write_text(json.dumps(card))
    plots = draw_all(tmp_path, entries)
    records = read_records(experiment, ["sft", *RUNS])
    write_report(tmp_path / "report.html", Material("quick", entries, plots, records, data))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("h1") == 1 and page.tags.count("img") == len(plots) == 5
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "script" not in page.tags and "b" not in page.tags and "i" not in page.tags
    assert "<script>alert(1)</script>" in page.text and "<b>&" in page.text and "<i>a.tsv</i>" in page.text
    for expected in (
        "2 empty text",
        "evaluate ppo",
        "post_train kto",
        "torch 2.13.0",
        "git checkout abc",
        "7 min 10 s",
    ):
        assert expected in page.text
    assert {entry.name for entry in entries} <= set(page.text.split())


def test_the_page_does_without_data_records_and_curves(entries: list[Entry], tmp_path: Path) -> None:
    plots = draw_all(tmp_path, entries[:1])
    assert [plot.name for plot in plots] == ["reward.png", "reward_kl.png", "lengths.png"]
    write_report(tmp_path / "report.html", Material("only <sft>", entries[:1], plots, [], None))
    assert "only <sft>" in Page((tmp_path / "report.html").read_text(encoding="utf-8")).text


def test_only_stages_of_this_comparison_are_told(experiment: Path) -> None:
    found = {record.manifest["run"] for record in read_records(experiment, ["sft", "ppo"])}
    assert found == {"sft", "ppo"}


def test_curves_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (3, 1, 2):
        file.log(step, {"loss": step * 10})
    file.summary({"loss": 99})
    assert read_curves(tmp_path / "metrics.jsonl") == {"loss": ([1, 2, 3], [10.0, 20.0, 30.0])}


def test_other_prompts_and_missing_files_are_refused(experiment: Path, tmp_path: Path) -> None:
    fake.evaluation(tmp_path / "eval/few", "few", 0.0, count=5)
    sft = experiment / "eval/sft"
    with pytest.raises(UserError, match=r"few .* different prompts"):
        read_entries({"sft": sft, "few": tmp_path / "eval/few"}, {}, 10, 0)
    with pytest.raises(UserError, match="SFT model is missing"):
        read_entries({"ppo": sft}, {}, 10, 0)
    (tmp_path / "eval/few/metrics.json").unlink()
    with pytest.raises(UserError, match=r"metrics\.json cannot be read"):
        read_entries({"sft": tmp_path / "eval/few"}, {}, 10, 0)


def test_the_command_compares_across_experiments(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    fake.experiment(other, {"grpo": ("grpo", 0.8)}, count=40)
    assert compare_command.main([str(experiment), str(other), "--output", str(tmp_path / "both")]) == 0
    with (tmp_path / "both" / "summary.csv").open(newline="") as file:
        names = [row["run"] for row in csv.DictReader(file)]
    assert names == ["quick/sft", "quick/dpo", "quick/kto", "quick/ppo", "other/sft", "other/grpo"]
    assert "other/grpo" in capsys.readouterr().out
    with pytest.raises(UserError, match="no finished evaluation"):
        compare_command.main([str(tmp_path / "nowhere")])
