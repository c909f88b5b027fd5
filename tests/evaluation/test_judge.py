"""The independent judge: VADER's own values, a user's function with every fault it can have, and who may see it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from posttrain.cli import STAGES
from posttrain.config.load import SECTIONS
from posttrain.config.registry import METHODS, entries
from posttrain.errors import UserError
from posttrain.evaluation.judge import judge_file, open_judge
from posttrain.provenance.code_slice import ROOT, code_slice
from tests.config.sections import run_of

SENTENCES = ["The film is great!", "A dull, terrible mess.", "It was not good.", "the the the", ""]


def test_vader_is_the_packages_compound_score_of_the_completion_alone() -> None:
    analyzer = SentimentIntensityAnalyzer()
    judge = open_judge("vader", None)
    found = judge(["great " * 9] * len(SENTENCES), SENTENCES)
    assert found == [analyzer.polarity_scores(text)["compound"] for text in SENTENCES]
    # The paper's form, sum / sqrt(sum^2 + 15), on the lexicon's valences (great 3.1, its mark 0.292; dull -1.7,
    # terrible -2.1, mess -1.5; good 1.9, times -0.74 where it is negated).
    by_hand = [value / math.sqrt(value**2 + 15) for value in (3.1 + 0.292, -1.7 - 2.1 - 1.5, 1.9 * -0.74, 0.0, 0.0)]
    assert found == pytest.approx(by_hand, abs=5e-5)


def user_judge(folder: Path, source: str) -> tuple[str, Path]:
    file = folder / "mine.py"
    file.write_text(source)
    return f"{file}:score", file


def test_a_users_function_sees_prompts_and_completions(tmp_path: Path) -> None:
    source = """
from dataclasses import dataclass

@dataclass
class Score:
    value: float

def score(prompts: list[str], completions: list[str]) -> list[float]:
    assert type(prompts) is list and type(completions) is list
    return [Score(len(a) - len(b)).value for a, b in zip(prompts, completions)]
"""
    judge, file = user_judge(tmp_path, source)
    assert judge_file(judge) == file
    assert open_judge(judge, file)(("abc", ""), ("d", "ef")) == [2.0, -2.0]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    source = "import numpy as np\ndef score(p, c): return np.array([len(x) for x in c], dtype=np.float32)"
    found = open_judge(*user_judge(tmp_path, source))(["", ""], ["a", "bc"])
    assert found == [1.0, 2.0] and all(type(value) is float for value in found)


def test_an_edited_file_is_what_runs(tmp_path: Path) -> None:
    """Same size and time stamp: a cached byte code would be taken for the file's."""
    judge, file = user_judge(tmp_path, "def score(p, c): return [1.0 for _ in c]")
    assert open_judge(judge, file)([""], [""]) == [1.0]
    user_judge(tmp_path, "def score(p, c): return [2.0 for _ in c]")
    assert open_judge(judge, file)([""], [""]) == [2.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def other(p, c): ...", "has no function score; define it there"),
        ("score = 3", "has no function score"),
        ("def score(p, c) return 1", "cannot be imported (SyntaxError"),
        ("import no_such_package", "cannot be imported (ModuleNotFoundError: No module named 'no_such_package')"),
        ("def score(p, c): return 1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def score(texts): return [0]", "raised TypeError: score() takes 1 positional argument but 2 were given"),
        ("def score(p, c): return [0.5]", "returned 1 scores for 2 completions"),
        ("def score(p, c): return [0.5, float('nan')]", "returned nan for the completion 'good film'"),
        ("def score(p, c): return [float('inf'), 0]", "returned inf for the completion 'bad'"),
        ("def score(p, c): return '12'", "returned '12', which is no list of numbers"),
        ("def score(p, c): return [1, 10**400]", "which is no list of numbers"),
        ("def score(p, c): raise SystemExit(0)", "raised SystemExit: 0"),
        ("raise SystemExit", "cannot be imported (SystemExit"),
        ("def score(p, c): return None", "returned None, which is no list of numbers"),
        ("def score(p, c): return ['good', 'bad']", "returned ['good', 'bad'], which is no list of numbers"),
    ],
)
def test_faults_name_file_and_function_in_one_sentence(source: str, words: str, tmp_path: Path) -> None:
    judge, file = user_judge(tmp_path, source)
    with pytest.raises(UserError) as caught:
        open_judge(judge, file)(["p", "p"], ["bad", "good film"])
    text = str(caught.value)
    assert words in text and text.startswith("evaluation.judge: ") and judge in text
    assert "\n" not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    judge = f"{tmp_path}/none.py:score"
    with pytest.raises(UserError) as caught:
        judge_file(judge)
    assert judge in str(caught.value) and "there is no file" in str(caught.value)
    assert judge_file(None) is None and judge_file("vader") is None


def test_without_the_package_vader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vaderSentiment.vaderSentiment", None)
    with pytest.raises(UserError, match="the package vaderSentiment is missing"):
        open_judge("vader", None)


# --- nothing that trains can see it ---------------------------------------------------------------------------------

TRAINING = [(stage, None) for stage in STAGES if stage not in ("post_train", "evaluate", "compare")]
TRAINING += [("post_train", method) for method in METHODS]


def sightings(stage: str, method: str | None, root: Path = ROOT) -> list[str]:
    """Modules of a stage's slice that are the judge, or that name its package at any place."""
    modules = code_slice(stage, entries(run_of(method)) if method else {}, root).modules
    judge = "posttrain.evaluation.judge"
    return [name for name, path in modules.items() if name == judge or "vaderSentiment" in path.read_text()]


@pytest.mark.parametrize(("stage", "method"), TRAINING)
def test_no_training_stage_sees_the_judge(stage: str, method: str | None) -> None:
    assert {"sft", "reward_model", "sample", "rank"} <= {name for name, _ in TRAINING}
    assert sightings(stage, method) == []
    assert "evaluation" not in SECTIONS[stage], "neither its setting"


def test_the_stage_that_asks_the_judge_is_seen() -> None:
    assert sightings("evaluate", None) == ["posttrain.evaluation.judge"]


@pytest.mark.parametrize(
    ("module", "line", "stages"),
    [
        ("trainer/trainer.py", "from posttrain.evaluation import judge", {"sft", "reward_model", "post_train"}),
        ("stages/rank.py", "def late():\n    import vaderSentiment", {"rank"}),
        ("algorithms/preference/kto.py", "NAME = 'posttrain.evaluation.judge:open_judge'", {"post_train"}),
    ],
)
def test_a_look_at_the_judge_is_noticed(module: str, line: str, stages: set[str], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "posttrain", tmp_path / "posttrain", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "posttrain" / module).open("a") as file:
        file.write(f"\n{line}\n")
    assert {stage for stage, method in TRAINING if sightings(stage, method, tmp_path)} == stages
