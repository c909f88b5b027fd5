"""The independent judge: scores of completions by something that no training stage sees, in neither code nor config.

`vader`: the compound score, in [-1, 1], of the completion's text alone; the prompt is the same for all models that are
compared. Hutto & Gilbert 2014, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text".
`FILE.py:FUNCTION`: the user's own `def judge(prompts: list[str], completions: list[str]) -> list[float]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import UserError
from posttrain.runtime.user_code import short, user_function

VADER = "vader"
KEY = "evaluation.judge"

Judge = Callable[[Sequence[str], Sequence[str]], list[float]]
"""From the prompts' and the completions' texts to one finite score for each; more is better."""


def judge_file(judge: str | None) -> Path | None:
    """The file that `evaluation.judge` names, None where it names none. Raises UserError where it is not there."""
    if judge is None or judge == VADER:
        return None
    path = Path(judge.rpartition(":")[0])
    if not path.is_file():
        raise UserError(f"{KEY}: {judge}: there is no file {path}; give FILE.py:FUNCTION, FILE from this folder on")
    return path


def open_judge(judge: str, file: Path | None) -> Judge:
    """The judge that `evaluation.judge` names; `file` is where the user's own one stands.

    Raises:
        UserError: it cannot be imported, or the file has no such function.
    """
    return _vader() if file is None else _UserJudge(judge, user_function(KEY, judge, file))


def _vader() -> Judge:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise UserError(f"{KEY}: {VADER}: the package vaderSentiment is missing; install it with pip") from None
    analyzer = SentimentIntensityAnalyzer()

    def score(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        return [float(analyzer.polarity_scores(text)["compound"]) for text in completions]

    return score


class _UserJudge:
    """Calls the user's function and checks what it returns."""

    def __init__(self, judge: str, function: Callable[..., Any]) -> None:
        self.judge = judge
        self.function = function

    def __call__(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        try:
            found = self.function(list(prompts), list(completions))
        except (Exception, SystemExit) as error:
            raise UserError(f"{KEY}: {self.judge} raised {short(error)}; mend the function") from error
        try:
            if isinstance(found, (str, bytes)):  # its characters may be digits
                raise TypeError
            scores = [float(value) for value in found]
        except (TypeError, ValueError, OverflowError):
            raise self._fault(f"{_show(found)}, which is no list of numbers") from None
        if len(scores) != len(completions):
            raise self._fault(f"{len(scores)} scores for {len(completions)} completions")
        for score, completion in zip(scores, completions, strict=True):
            if not math.isfinite(score):
                raise self._fault(f"{score} for the completion {_show(completion)}")
        return scores

    def _fault(self, returned: str) -> UserError:
        return UserError(f"{KEY}: {self.judge} returned {returned}; return one finite number for each completion")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
