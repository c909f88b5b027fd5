"""prepare as a whole: real snippets, every form together, a pretrained tokenizer, kills and errors."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.config.schema import Data, Model
from posttrain.data.tables import read_table
from posttrain.data.tokenizer import load_tokenizer, train_tokenizer
from posttrain.errors import Interrupted, UserError
from posttrain.stages import prepare

SNIPPETS = Path(__file__).parents[2] / ".dvc/remote/files/md5/0f/3af01bfd9659ccaff4195eb171511f"
WORDS = [
    "a",
    "film",
    "good",
    "bad",
    "slow",
    "bright",
    "plot",
    "actor",
    "scene",
    "joke",
    "music",
    "ending",
    "story",
    "light",
    "dark",
    "long",
    "short",
    "very",
    "not",
    "is",
    "was",
]


class Log(SimpleNamespace):
    """Keeps lines."""

    def __init__(self) -> None:
        super().__init__(lines=[])

    def info(self, message: str, *args: object) -> None:
        self.lines.append(message % args)


def sentence(number: int, words: int) -> str:
    return (
        " ".join(WORDS[(number * 7 + place * (number % 5 + 1)) % len(WORDS)] for place in range(words)) + f" {number}"
    )


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all_forms(data: Path, count: int = 120) -> list[dict[str, Any]]:
    numbers = range(count)

    def turn(role: str, text: str) -> dict[str, str]:
        return {"role": role, "content": text}

    files = {
        "ratings": [{"id": n, "text": sentence(n, 3 + n % 9), "rating": n % 9 - 4} for n in numbers],
        "prompt_completion": [{"prompt": f"q {sentence(n, 3)}", "completion": f" {sentence(n, 4)}"} for n in numbers],
        "messages": [
            {"messages": [turn("user", sentence(n, 4)), turn("assistant", sentence(n + 1, 3))]} for n in numbers
        ],
        "preference": [
            {"chosen": f"say {sentence(n, 3)} good", "rejected": f"say {sentence(n, 3)} bad"} for n in numbers
        ],
        "kto": [{"prompt": f"k {sentence(n, 3)}", "completion": " yes", "label": n % 2} for n in numbers],
    }
    for form, rows in files.items():
        write_rows(data / f"{form}.jsonl", rows)
    return [{"file": f"{form}.jsonl", "form": form} for form in files]


def make_stage(folder: Path, sources: list[dict[str, Any]], base: str = "built-in: tiny", **data: Any) -> Any:
    """What prepare sees of its runner; data in folder/raw, base model in folder/base."""
    split = {"validation": 0.1, "test": 0.2}
    settings = {
        "path": str(folder / "raw"),
        "sources": sources,
        "split": split,
        "vocabulary": 300,
        "prompt_words": 2,
        **data,
    }
    for name in ("out", "state", "base/model"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    summary: dict[str, float] = {}
    artifacts: list[Path] = []
    return SimpleNamespace(
        config=SimpleNamespace(data=Data(**settings), model=Model(base=base)),
        inputs={"model": folder / "base"},
        out=folder / "out",
        state=folder / "state",
        seed=0,
        log=Log(),
        interrupted=lambda: False,
        tracker=SimpleNamespace(summary=summary.update, final=summary, artifact=artifacts.append, artifacts=artifacts),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "BATCH", 50)


def test_all_forms_together(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, write_all_forms(tmp_path / "raw"))
    prepare.run(stage)
    tables = {name: read_table(stage.out / f"{name}.parquet") for name in ("sft", "prompts", "pairs", "labels")}
    sources = {name: set(table["id"].str.split("/").str[0]) for name, table in tables.items()}
    assert sources["sft"] == {"ratings", "prompt_completion", "messages"}
    assert sources["prompts"] == {"ratings", "prompt_completion", "messages", "preference", "kto"}
    assert sources["pairs"] == {"ratings", "preference"}
    assert sources["labels"] == {"kto"}
    tokenizer = load_tokenizer(stage.out / "tokenizer")
    for table in tables.values():
        assert set(table["split"]) == {"train", "validation", "test"}
        assert all(ids[0] == tokenizer.bos_id and tokenizer.bos_id not in ids[1:] for ids in table["prompt_ids"])
    for name, column in [("sft", "completion_ids"), ("pairs", "chosen_ids"), ("pairs", "rejected_ids")]:
        assert all(ids[-1] == tokenizer.eos_id and ids.count(tokenizer.eos_id) == 1 for ids in tables[name][column])


def test_the_card_adds_up(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, write_all_forms(tmp_path / "raw"))
    prepare.run(stage)
    card = json.loads((stage.out / "card.json").read_text())
    for source in card["sources"]:
        assert source["read"] == sum(source["kept"].values()) + sum(source["dropped"].values())
    for name, counts in card["tables"].items():
        rows = read_table(stage.out / f"{name}.parquet")["split"].value_counts()
        assert counts == {split: rows[split] for split in ("train", "validation", "test")}
        assert all(stage.tracker.final[f"data/{name}/{split}"] == count for split, count in counts.items())
    assert sum(card["tokens"]["prompt"]["histogram"]["counts"]) == card["tokens"]["prompt"]["count"]
    text = (stage.out / "card.md").read_text()
    assert "no word left" not in text and "| ratings | ratings | 120 |" in text
    for picture in ("lengths.png", "ratings.png"):
        assert picture in text and (stage.out / picture).stat().st_size > 5000
    assert [path.name for path in stage.tracker.artifacts] == ["card.md", "lengths.png", "ratings.png"]


def test_no_rated_source_no_rating_picture(tmp_path: Path) -> None:
    write_all_forms(tmp_path / "raw")
    stage = make_stage(tmp_path, [{"file": "messages.jsonl", "form": "messages"}])
    prepare.run(stage)
    names = {path.name for path in stage.out.iterdir()}
    assert names == {"sft.parquet", "prompts.parquet", "tokenizer", "card.json", "card.md", "lengths.png"}


def test_real_snippets(tmp_path: Path) -> None:
    """357 of the lines have four words or fewer; one of the others is there twice."""
    (tmp_path / "raw").mkdir()
    shutil.copyfile(SNIPPETS, tmp_path / "raw/movie.txt")
    source = {"file": "movie.txt", "form": "ratings", "format": "tsv", "header": ["id", "rating", "text"]}
    stage = make_stage(tmp_path, [source], prompt_words=4, max_completion_tokens=400, vocabulary=1000)
    prepare.run(stage)
    (card,) = json.loads((stage.out / "card.json").read_text())["sources"]
    assert card["read"] == 10605
    assert card["dropped"] == {"no word left after the prompt": 357, "repeats an earlier row": 1}
    sft = read_table(stage.out / "sft.parquet").set_index("id")
    tokenizer = load_tokenizer(stage.out / "tokenizer")
    row = sft.loc["movie/3"]
    assert tokenizer.decode(row["prompt_ids"]) == "Effective but too tepid"
    assert tokenizer.decode(row["completion_ids"]) == " biopic"


def test_two_runs_are_equal_byte_for_byte(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        stage = make_stage(tmp_path / name, write_all_forms(tmp_path / name / "raw"))
        prepare.run(stage)
        made.append(contents(stage.out))
    assert made[0] == made[1] and len(made[0]) == 11


def test_seed_moves_pairs_and_nothing_else(tmp_path: Path) -> None:
    made = []
    for seed in (0, 1):
        stage = make_stage(tmp_path / str(seed), write_all_forms(tmp_path / str(seed) / "raw"))
        stage.seed = seed
        prepare.run(stage)
        made.append(contents(stage.out))
    counts = {"card.json", "card.md"}  # of pairs, of which those drawn from both sides count once
    assert {name for name in made[0] if made[0][name] != made[1][name]} - counts == {"pairs.parquet"}


def test_interrupted_and_started_again(tmp_path: Path, small_batches: None) -> None:
    sources = write_all_forms(tmp_path / "raw")
    undisturbed = make_stage(tmp_path, sources)
    undisturbed.out = tmp_path / "undisturbed"
    undisturbed.out.mkdir()
    undisturbed.state = tmp_path / "other state"
    prepare.run(undisturbed)
    assert not any("resumed" in line for line in undisturbed.log.lines)

    asked = iter([False, False, False, True])
    first = make_stage(tmp_path, sources)
    first.interrupted = lambda: next(asked)
    with pytest.raises(Interrupted):
        prepare.run(first)
    second = make_stage(tmp_path, sources)
    prepare.run(second)
    assert "resumed at step 3" in second.log.lines
    assert contents(second.out) == contents(undisturbed.out)


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """SIGKILL at the fourth of twelve batches; the second attempt renders the other nine alone."""
    write_all_forms(tmp_path / "raw")
    program = (
        "import os, signal, sys, pathlib; from posttrain.stages import prepare;"
        "from tests.stages.test_prepare import make_stage, write_all_forms, counted;"
        "folder = pathlib.Path(sys.argv[1]); prepare.BATCH = 50;"
        "stage = make_stage(folder, write_all_forms(folder / 'raw'));"
        "stage.interrupted = counted(folder / 'batches', int(sys.argv[2])); prepare.run(stage);"
        "print(*stage.log.lines, sep='\\n')"
    )
    attempts = [
        subprocess.run([sys.executable, "-c", program, str(tmp_path), at], capture_output=True, text=True)
        for at in ("4", "0")
    ]
    assert [attempt.returncode for attempt in attempts] == [-signal.SIGKILL, 0], attempts[1].stderr
    assert "resumed at step 3" in attempts[1].stdout
    assert (tmp_path / "batches").read_text().count("\n") == 4 + 9


def counted(notes: Path, kill_at: int) -> Callable[[], bool]:
    """`interrupted` that notes each batch and kills the process before batch `kill_at` (counted from 1)."""
    number = 0

    def interrupted() -> bool:
        nonlocal number
        number += 1
        with notes.open("a") as file:
            file.write("batch\n")
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return interrupted


def test_a_pretrained_base_brings_its_tokenizer_and_window(tmp_path: Path) -> None:
    write_all_forms(tmp_path / "raw")
    stage = make_stage(tmp_path, [{"file": "messages.jsonl", "form": "messages"}], base="some/model")
    model = tmp_path / "base/model"
    train_tokenizer([sentence(n, 9) for n in range(50)], 300, model)
    (model / "config.json").write_text('{"max_position_embeddings": 64}')
    (model / "model.safetensors").write_bytes(b"weights")
    prepare.run(stage)
    copied = contents(stage.out / "tokenizer")
    assert copied == {
        name: data for name, data in contents(model).items() if name not in ("config.json", "model.safetensors")
    }
    (model / "config.json").write_text('{"max_position_embeddings": 8}')
    shutil.rmtree(stage.state)
    with pytest.raises(UserError, match=r"messages\.jsonl, line \d+: .*the model's context 8"):
        prepare.run(stage)


RATED = {"file": "d.jsonl", "form": "ratings"}


@pytest.mark.parametrize(
    ("content", "source", "data", "words"),
    [
        (b"", RATED, {}, "empty"),
        (
            b'{"text": "a b c", "stars": 1}\n',
            RATED,
            {},
            r"line 1: found columns \['stars', 'text'\], wanted \['rating', 'text'\]",
        ),
        (b'{"text": "caf\xe9", "rating": 1}\n', RATED, {}, "line 1, byte 14"),
        (b'{"text": "a b c", "rating": "x"}\n', RATED, {}, "line 1: the rating 'x'"),
        (b'{"text": "a b c", "rating": 1}\n', {**RATED, "file": "e.jsonl"}, {}, r"e\.jsonl does not exist.*d\.jsonl"),
        (b'{"text": "aa bb cc", "rating": 1}\n', RATED, {"max_prompt_tokens": 2}, "line 1: the prompt has . tokens"),
        (b'{"text": "a b c", "rating": 1}\n', RATED, {}, "margin"),
        (b'{"text": "a b", "rating": 1}\n', RATED, {}, "no row is left for training"),
    ],
)
def test_errors_are_one_sentence(
    content: bytes, source: dict[str, Any], data: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/d.jsonl").write_bytes(content)
    stage = make_stage(tmp_path, [source], split={"validation": 0, "test": 0}, **data)
    with pytest.raises(UserError, match=words) as fault:
        prepare.run(stage)
    assert "\n" not in str(fault.value)


def test_rows_over_the_limit_are_dropped_or_cut_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "1 2 3 4 5 6 7 8 9" if n == 5 else f"{n % 10}", "completion": f" {n} 1 2 3"} for n in range(40)]
    write_rows(tmp_path / "raw/d.jsonl", rows)
    source = {"file": "d.jsonl", "form": "prompt_completion"}
    limits = {"max_prompt_tokens": 4, "max_completion_tokens": 3, "split": {"validation": 0, "test": 0.2}}
    made = {}
    for policy in ("drop", "truncate_left"):
        stage = make_stage(tmp_path / policy, [source], too_long_prompt=policy, **limits, path=str(tmp_path / "raw"))
        prepare.run(stage)
        made[policy] = json.loads((stage.out / "card.json").read_text())
    assert made["drop"]["sources"][0]["dropped"] == {"the prompt is longer than max_prompt_tokens": 1}
    assert made["drop"]["cut"] == {"prompts": 0, "completions": 39}
    assert made["truncate_left"]["sources"][0]["dropped"] == {}
    assert made["truncate_left"]["cut"] == {"prompts": 1, "completions": 40}


def test_progress_is_said_in_plain_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = make_stage(tmp_path, write_all_forms(tmp_path / "raw"))
    stage.log = logging.getLogger("posttrain.prepare.test")
    with caplog.at_level(logging.INFO):
        prepare.run(stage)
    assert "kto (kto): 120 rows read, dropped: none" in caplog.messages
    assert any(message.startswith("sft: ") and message.endswith(" test") for message in caplog.messages)
