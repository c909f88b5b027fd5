"""What a row is: one record type for all forms, and the validation that makes records of raw rows.

| form              | columns (ours)                                                            |
|-------------------|---------------------------------------------------------------------------|
| ratings           | text, rating (a number between -1e9 and 1e9)                              |
| prompt_completion | prompt, completion                                                        |
| messages          | messages: list of {role, content}, the assistant's last                   |
| preference        | chosen, rejected, and prompt (else: their longest common opening)         |
| kto               | prompt, completion, label (a boolean)                                     |

An `id` column is used if it is there. A prompt is a text or a list of messages; a completion is a text or the
assistant's one message. Texts are taken as they are: no space is put between prompt and completion.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Union

from posttrain.config.schema import Form
from posttrain.data.opening import common_opening, opening_words
from posttrain.errors import UserError

Message = dict[str, str]
Prompt = Union[str, list[Message]]

WANTED: dict[Form, tuple[str, ...]] = {
    "ratings": ("text", "rating"),
    "prompt_completion": ("prompt", "completion"),
    "messages": ("messages",),
    "preference": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
}
OPTIONAL: dict[Form, tuple[str, ...]] = {
    "ratings": ("id",),
    "prompt_completion": ("id",),
    "messages": ("id",),
    "preference": ("id", "prompt"),
    "kto": ("id",),
}
ROLES = ("system", "user", "assistant", "tool")
LARGEST_RATING = 1e9  # a histogram of such numbers still has edges that differ
_TRUE = {"true", "t", "yes", "y", "1", "1.0"}
_FALSE = {"false", "f", "no", "n", "0", "0.0"}


@dataclass(frozen=True)
class Record:
    """One validated row.

    Attributes:
        id: unique within the experiment: source name, then the row's own id or its place.
        source: the source's name.
        where: the row's place for messages to the user.
        prompt: a text, or the messages before the answer; never empty.
        answers: the completion; or chosen and rejected. Of a rated text, what follows its opening words.
        rating: of a rated text, else None.
        label: of a kto row, else None.
    """

    id: str
    source: str
    where: str
    form: Form
    prompt: Prompt
    answers: tuple[str, ...]
    rating: float | None = None
    label: bool | None = None


def plain_text(prompt: Prompt) -> str:
    """The prompt for a reader, and the default template of tokenizers that bring none."""
    if isinstance(prompt, str):
        return prompt
    return "".join(f"{message['role'].capitalize()}: {message['content']}\n" for message in prompt) + "Assistant:"


class Dropped(Exception):  # noqa: N818 (a verdict, not an error)
    """The row is well-formed and yet of no use; the argument is the reason, to be counted in the data card."""


class RowError(ValueError):
    """What is wrong with a row and how to mend it, without the place, which the caller adds."""


def select(form: Form, columns: dict[str, str], where: str, values: dict[str, Any]) -> dict[str, Any]:
    """The row's values under our names.

    Args:
        columns: our column name -> the source's.

    Raises:
        UserError: `columns` has a name that this form lacks, or the row lacks a wanted column.
    """
    known = (*WANTED[form], *OPTIONAL[form])
    unknown = [ours for ours in columns if ours not in known]
    if unknown:
        raise UserError(
            f"data.sources: columns.{unknown[0]}: a {form} source has {', '.join(known)}: map one of these."
        )
    needed = {ours: columns.get(ours, ours) for ours in known if ours in WANTED[form] or ours in columns}
    if any(theirs not in values for theirs in needed.values()):
        found, wanted = sorted(str(name) for name in values), sorted(needed.values())
        raise UserError(
            f"{where}: found columns {found}, wanted {wanted} for form {form}: set columns: {{ours: theirs}}."
        )
    return {ours: values[columns.get(ours, ours)] for ours in known if columns.get(ours, ours) in values}


def make_record(form: Form, source: str, where: str, values: dict[str, Any], prompt_words: int) -> Record:
    """Validate one row (`values` under our names).

    Args:
        source: the name that goes before the row's id.
        prompt_words: opening words of a rated text that make its prompt.

    Raises:
        UserError: a value is missing, empty or of the wrong kind.
        Dropped: nothing to learn from: chosen equals rejected, or no word is left after the prompt.
    """
    given = values.get("id")
    own = where.rsplit(", ", 1)[-1] if _missing(given) or given == "" else str(given)
    try:
        parts = _MAKERS[form](values, prompt_words)
    except RowError as fault:
        raise UserError(f"{where}: {fault}.") from None
    return Record(id=f"{source}/{own}", source=source, where=where, form=form, **parts)


def _ratings(values: dict[str, Any], prompt_words: int) -> dict[str, Any]:
    text, rating = _text(values, "text").strip(), _number(values["rating"])
    prompt, rest = opening_words(text, prompt_words)
    if not rest.strip():
        raise Dropped("no word left after the prompt")
    return {"prompt": prompt, "answers": (rest,), "rating": rating}


def _prompt_completion(values: dict[str, Any], _: int) -> dict[str, Any]:
    return {"prompt": _prompt(values["prompt"]), "answers": (_completion(values, "completion"),)}


def _messages(values: dict[str, Any], _: int) -> dict[str, Any]:
    messages = _conversation(values["messages"], "messages")
    if messages[-1]["role"] != "assistant":
        raise RowError(
            f"the last message is the {messages[-1]['role']}'s: end the conversation with the assistant's answer"
        )
    if len(messages) == 1:
        raise RowError("the prompt is empty, there is one message alone: put the user's message before it")
    return {"prompt": messages[:-1], "answers": (_filled(messages[-1]["content"], "the last message"),)}


def _kto(values: dict[str, Any], _: int) -> dict[str, Any]:
    return {**_prompt_completion(values, 0), "label": _boolean(values["label"])}


def _preference(values: dict[str, Any], _: int) -> dict[str, Any]:
    chosen, rejected = (_decoded(values[name]) for name in ("chosen", "rejected"))
    if isinstance(chosen, list) != isinstance(rejected, list):
        raise RowError("chosen and rejected are of two kinds: give two texts or two lists of messages")
    given = _prompt(values["prompt"]) if "prompt" in values else None
    if isinstance(chosen, list):
        parts = _preferred_messages(chosen, rejected, given)
    elif given is not None:
        parts = {"prompt": given, "answers": (_text(values, "chosen"), _text(values, "rejected"))}
    else:
        parts = _preferred_texts(_text(values, "chosen"), _text(values, "rejected"))
    if parts["answers"][0] == parts["answers"][1]:
        raise Dropped("chosen equals rejected")
    return parts


def _preferred_texts(chosen: str, rejected: str) -> dict[str, Any]:
    if chosen == rejected:
        raise Dropped("chosen equals rejected")
    prompt = common_opening(chosen, rejected)
    if not prompt.strip():
        raise RowError("the prompt is empty, chosen and rejected have no common opening: add a prompt column")
    answers = (chosen[len(prompt) :], rejected[len(prompt) :])
    if not all(answer.strip() for answer in answers):
        raise Dropped("one answer is only the common opening")
    return {"prompt": prompt, "answers": answers}


def _preferred_messages(chosen: Any, rejected: Any, given: Prompt | None) -> dict[str, Any]:
    pair = [_conversation(value, name) for value, name in ((chosen, "chosen"), (rejected, "rejected"))]
    opening, other = pair[0][:-1], pair[1][:-1]
    if opening != other:
        raise RowError("chosen and rejected differ before their last message: they must answer the same conversation")
    if any(messages[-1]["role"] != "assistant" for messages in pair):
        raise RowError("the last message of chosen and of rejected must be the assistant's: end both with an answer")
    if opening and given is not None and given != opening and given != opening[-1]["content"]:
        raise RowError("the prompt column and the conversations' own opening differ: leave one of the two out")
    prompt = opening or ([{"role": "user", "content": given}] if isinstance(given, str) else given)
    if not prompt:
        raise RowError("the prompt is empty: give chosen and rejected the user's message, or add a prompt column")
    return {"prompt": prompt, "answers": tuple(_filled(m[-1]["content"], "the last message") for m in pair)}


_MAKERS = {
    "ratings": _ratings,
    "prompt_completion": _prompt_completion,
    "messages": _messages,
    "preference": _preference,
    "kto": _kto,
}


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _filled(value: Any, name: str) -> str:
    if _missing(value):
        raise RowError(f"{name} is missing: fill it in or delete the row")
    if not isinstance(value, str):
        raise RowError(f"{name} is of type {type(value).__name__}, wanted text: mend the row")
    if not value.strip():
        raise RowError(f"{name} is empty: fill it in or delete the row")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise RowError(f"{name} holds half of a surrogate pair, which is not text: mend the row")
    return value


def _text(values: dict[str, Any], name: str) -> str:
    return _filled(values[name], name)


def _decoded(value: Any) -> Any:
    """A list of messages written as JSON in a cell of text becomes the list."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _prompt(value: Any) -> Prompt:
    value = _decoded(value)
    return _conversation(value, "prompt") if isinstance(value, list) else _filled(value, "prompt")


def _completion(values: dict[str, Any], name: str) -> str:
    value = _decoded(values[name])
    if not isinstance(value, list):
        return _filled(value, name)
    messages = _conversation(value, name)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise RowError(f"{name} is a conversation, wanted text or the assistant's one message: mend the row")
    return _filled(messages[0]["content"], name)


def _conversation(value: Any, name: str) -> list[Message]:
    value = _decoded(value)
    if not isinstance(value, list) or not value:
        raise RowError(f"{name} must be a list of {{role, content}} with at least one message: mend the row")
    return [_message(entry, f"{name}[{index}]") for index, entry in enumerate(value)]


def _message(entry: Any, name: str) -> Message:
    if not isinstance(entry, dict) or not {"role", "content"} <= entry.keys():
        found = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise RowError(f"{name}: found {found}, wanted {{role, content}}: mend the message")
    if entry["role"] not in ROLES:
        raise RowError(f"{name}: the role is {entry['role']!r}, wanted one of {', '.join(ROLES)}: mend the message")
    return {"role": entry["role"], "content": _filled(entry["content"], f"{name}.content")}


def _number(value: Any) -> float:
    if _missing(value) or value == "":
        raise RowError("the rating is missing: fill it in or delete the row")
    try:
        number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RowError(f"the rating {value!r} is not a finite number: mend the row")
    if abs(number) > LARGEST_RATING:
        raise RowError(f"the rating {value!r} is beyond {LARGEST_RATING:.0e}: mend the row, or scale all ratings")
    return number


def _boolean(value: Any) -> bool:
    if _missing(value) or value == "":
        raise RowError("the label is missing: fill it in or delete the row")
    word = str(value).strip().lower() if isinstance(value, (bool, int, float, str)) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise RowError(f"the label {value!r} is not a boolean: write true or false")
