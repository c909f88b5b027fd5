"""The comparison's files: tables, pictures, page."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from posttrain.config.schema import Flags
from posttrain.evaluation.comparison import Comparison, Experiment, compare
from posttrain.evaluation.files import write_all
from posttrain.evaluation.findings import accuracy_sentence, findings
from posttrain.evaluation.plots import draw_all
from posttrain.evaluation.report import CAPTIONS, write_report
from posttrain.evaluation.summary import write_summary
from tests.evaluation import fake
from tests.workflow.project import REPOSITORY

RUNS = {"ppo": ("ppo", 1.0), "dpo": ("dpo", -1.0), "kto": ("kto", -0.1)}
# The samples of `fake` are noise: only what the reward does is looked at.
LIMITS = Flags(least_distinct_2=None, most_perplexity=None, most_repetition=None, most_length=None, most_kl=2.0)
VOID = {"meta", "img", "br"}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "quick"
    fake.experiment(root, RUNS)
    fake.record(root / "reward_model", "reward_model", None, attempts=2, resumed_at=[30])
    accuracy = {"value": 0.8712, "low": 0.8563, "high": 0.8857, "n": 1842}
    (root / "reward_model" / "metrics.json").write_text(json.dumps({"eval/test_accuracy": accuracy}))
    source = {"name": "<i>a.tsv</i>", "form": "ratings", "read": 7, "dropped": {"empty text": 2}}
    kept = {"kept": {"train": 3, "validation": 1, "test": 1}}
    card = {"sources": [{**source, **kept}], "tables": {"sft": {"train": 3, "validation": 1, "test": 1}}}
    fake.record(root / "data", "prepare", None)
    (root / "data" / "card.json").write_text(json.dumps(card))
    return root


@pytest.fixture(scope="module")
def comparison(experiment: Path) -> Comparison:
    return fake.comparison(experiment, limits=LIMITS)


class Page(HTMLParser):
    """Tags, addresses and text of a page; fails where a tag is closed that is not the last open one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.anchors |= {f"#{value}" for name, value in attrs if name == "id"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data


def written(comparison: Comparison, folder: Path) -> Page:
    folder.mkdir(exist_ok=True)
    write_all(folder, "quick", comparison)
    return Page(folder / "report.html")


def test_the_table_holds_values_intervals_and_flags(comparison: Comparison, tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.csv", comparison.entries, comparison.flags)
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["sft", "dpo", "kto", "ppo"]
    own, theirs = fake.rows(128, 1.0, 3 + sum(map(ord, "ppo"))), fake.rows(128, 0.0, 3 + sum(map(ord, "sft")))
    gain = sum(a["reward"] - b["reward"] for a, b in zip(own, theirs, strict=True)) / 128
    wins = sum(a["judge"] > b["judge"] for a, b in zip(own, theirs, strict=True)) / 128
    assert float(rows["ppo"]["reward_gain"]) == pytest.approx(gain, rel=1e-4)
    assert float(rows["ppo"]["win_rate"]) == pytest.approx(wins, rel=1e-4)
    assert float(rows["ppo"]["win_rate_low"]) < wins < float(rows["ppo"]["win_rate_high"])
    assert float(rows["ppo"]["kl_error"]) == pytest.approx(
        comparison.entries[3].metrics["eval/kl_error"].value, rel=1e-4
    )
    assert rows["sft"]["win_rate"] == rows["sft"]["judge_gain_low"] == rows["sft"]["flags"] == ""
    assert (rows["ppo"]["flags"], rows["kto"]["flags"]) == ("most_kl", "none")
    assert rows["sft"]["prompts"] == "128"


def test_two_flags_are_joined(experiment: Path, tmp_path: Path) -> None:
    strict = LIMITS.model_copy(update={"least_distinct_2": 2.0})
    comparison = fake.comparison(experiment, limits=strict)
    write_summary(tmp_path / "summary.csv", comparison.entries, comparison.flags)
    with (tmp_path / "summary.csv").open(newline="") as file:
        flags = {row["run"]: row["flags"] for row in csv.DictReader(file)}
    assert flags["ppo"] == "least_distinct_2;most_kl"


def test_columns_that_no_model_has_are_left_out(tmp_path: Path) -> None:
    fake.experiment(tmp_path / "x", {"ppo": ("ppo", 1.0)}, count=20, judge=None)
    page = written(fake.comparison(tmp_path / "x", resamples=20), tmp_path / "out")
    header = (tmp_path / "out" / "summary.csv").read_text().splitlines()[0].split(",")
    assert "judge" not in header and {"reward_gain", "win_rate", "perplexity"} <= set(header)
    assert "x has no independent judge" in page.text
    assert "judged by" not in page.text and "by the reward model" in page.text


def test_equal_entries_give_equal_files(comparison: Comparison, tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(comparison, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted([*CAPTIONS, "report.html", "seeds.csv", "summary.csv"])
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_the_intervals_allow_to_say(comparison: Comparison) -> None:
    said = findings(comparison)
    assert [re.sub(r" [-+]\d.*?\]", "", str(finding)) for finding in said[:3]] == [
        "Better than SFT by the independent judge (vader): ppo (flagged).",
        "Worse than SFT by the independent judge (vader): dpo (flagged).",
        "Not told apart from SFT by the independent judge (vader): kto.",
    ]
    gain = next(entry for entry in comparison.entries if entry.name == "ppo").metrics["eval/judge_gain"]
    assert f"ppo {gain.value:+.3f} [{gain.low:.3f}, {gain.high:.3f}]" in said[0].text
    assert [(finding.head, finding.flagged) for finding in said[3:]] == [
        ("dpo is flagged", True),
        ("ppo is flagged", True),
    ]


def test_that_nothing_is_flagged_is_said(experiment: Path) -> None:
    off = LIMITS.model_copy(update={"most_kl": None, "judge_follows": False})
    assert str(findings(fake.comparison(experiment, limits=off))[-1]) == "Flags: none of the runs is flagged."


def test_a_group_is_told_once_with_its_seeds(tmp_path: Path) -> None:
    seeds = {"ppo-0": 0, "ppo-1": 1}
    fake.experiment(tmp_path / "x", dict.fromkeys(seeds, ("ppo", 1.0)), seeds=seeds)
    said = findings(fake.comparison(tmp_path / "x", limits=LIMITS))
    assert "(mean of 2 seeds; its paired interval above 0 in 2 of them; flagged in 2)" in said[0].text
    assert [finding.head for finding in said[1:]] == ["ppo-0 is flagged", "ppo-1 is flagged"]


def test_a_run_without_a_judge_is_told_by_the_reward_model(comparison: Comparison, tmp_path: Path) -> None:
    fake.experiment(tmp_path / "other", {"ppo": ("ppo", 1.0)}, judge=None)
    both = compare([comparison.experiments[0], fake.read(tmp_path / "other", prefix="other/", limits=Flags())])
    heads = {finding.head: finding.text for finding in findings(both)}
    assert heads["Better than SFT by the reward model"].startswith("other/ppo +")


def test_the_page_is_whole_alone_and_escaped(comparison: Comparison, tmp_path: Path) -> None:
    page = written(comparison, tmp_path)
    assert page.tags.count("h1") == 1 and page.tags.count("img") == len(CAPTIONS)
    inner = {address for address in page.addresses if address.startswith("#")}
    assert inner and inner <= page.anchors
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses if address not in inner)
    assert not re.search(r"https?:|//cdn|url\(|@import|javascript:| on\w+=", page.source)
    assert not {"script", "i", "link", "iframe", "object"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.text and "<b>&" in page.text and "<i>a.tsv</i>" in page.text
    for expected in (
        "judged by vader",
        "2 empty text",
        "87.1% [85.6%, 88.6%] of 1,842 held-out pairs",
        "evaluate ppo",
        "post_train kto",
        "torch 2.13.0",
        "git checkout abc",
        "9 min 14 s",
        "ppo is flagged: KL is",
    ):
        assert expected in page.text, expected
    assert {entry.name for entry in comparison.entries} <= set(page.text.split())


def test_every_sample_has_its_numbers(comparison: Comparison, tmp_path: Path) -> None:
    text = " ".join(written(comparison, tmp_path).text.split())
    for entry in comparison.entries:
        row = entry.rows[0]
        shown = f"judge {row['judge']:.2f} reward {row['reward']:.2f} KL {row['kl']:.1f}"
        assert shown.replace("-", "\N{MINUS SIGN}") in text


def test_uncommitted_changes_are_told(experiment: Path, comparison: Comparison, tmp_path: Path) -> None:
    assert "not committed" not in written(comparison, tmp_path / "clean").text
    records = [*comparison.experiments[0].records]
    records[2].facts["dirty"] = True
    try:
        assert "not committed" in written(comparison, tmp_path / "dirty").text
    finally:
        records[2].facts["dirty"] = False


def test_groups_of_seeds_are_in_the_page(tmp_path: Path) -> None:
    seeds = {"ppo-0": 0, "ppo-1": 1, "ppo-2": 2}
    fake.experiment(tmp_path / "x", dict.fromkeys(seeds, ("ppo", 1.0)), count=40, seeds=seeds)
    comparison = fake.comparison(tmp_path / "x", resamples=100)
    page = written(comparison, tmp_path / "out")
    assert "Over seeds" in page.text and "> 0 in 3 of 3" in page.text and "Student\u2019s t" in page.text
    assert "of runs that differ by their seed, the first" in page.text


def test_the_page_does_without_data_records_and_curves(comparison: Comparison, tmp_path: Path) -> None:
    alone = compare([Experiment("x", comparison.entries[:1], Flags())])
    plots = draw_all(tmp_path, alone)
    assert [plot.name for plot in plots] == ["reward_kl.png", "lengths.png"]
    write_report(tmp_path / "report.html", "only <sft>", alone, plots)
    assert "only <sft>" in Page(tmp_path / "report.html").text


def test_snakemake_s_report_has_the_same_captions() -> None:
    folder = REPOSITORY / "workflow" / "report"
    for name, caption in CAPTIONS.items():
        assert (folder / name).with_suffix(".rst").read_text().strip() == caption


def _small(comparison: Comparison, folder: Path, experiment: Experiment | None = None) -> Page:
    """The page without pictures."""
    folder.mkdir(exist_ok=True)
    write_report(folder / "report.html", "x", compare([experiment]) if experiment else comparison, [])
    return Page(folder / "report.html")


def test_times_of_several_attempts_are_not_all_the_work(comparison: Comparison, tmp_path: Path) -> None:
    whole = comparison.experiments[0]
    text = " ".join(_small(comparison, tmp_path / "a").text.split())
    assert "9 min 14 s without earlier attempts" in text and "of work in all" not in text
    assert text.count("1 min 02 s*") == 1
    once = [record for record in whole.records if record.facts["attempts"] == 1]
    text = " ".join(_small(comparison, tmp_path / "b", dataclasses.replace(whole, records=once)).text.split())
    assert "of work in all" in text and "earlier attempts" not in text


def test_odd_completions_are_shown(comparison: Comparison, tmp_path: Path) -> None:
    sft = comparison.entries[0]
    odd = [{**sft.rows[0], "text": " ", "kl": -0.01, "reward": -0.001}, {**sft.rows[1], "text": "a\x1b[1m\tb\r\nc\x00"}]
    changed = Experiment("x", [dataclasses.replace(sft, rows=[*odd, *sft.rows[2:]])], Flags())
    page = _small(comparison, tmp_path, changed)
    assert '<p class="soft">(empty)</p>' in page.source and "KL 0.0" in page.text and "reward 0.00" in page.text
    assert "a\ufffd[1m\tb\ufffd\nc\ufffd" in page.text


def test_the_pairs_margin_is_named(comparison: Comparison, tmp_path: Path) -> None:
    experiment = comparison.experiments[0]
    assert experiment.folders is not None
    for margin, said in ((0.5, "differ by more than 1)"), (2.5, "differ by at least 2.5)")):
        fake.record(tmp_path, "prepare", None, {"data": {"rating_pairs": {"margin": margin}}})
        other = dataclasses.replace(experiment, folders={**experiment.folders, "data": tmp_path})
        assert said in (accuracy_sentence(other) or "")
