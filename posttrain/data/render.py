"""THE one function that turns a record into token ids: every form, every stage that ever sees text.

- Prompt and completion are tokenised apart: the prompt's ids are a prefix of the sequence by construction.
- A plain prompt begins with one start token (the BOS; the eos where the tokenizer has no BOS). A conversation is
  rendered by the tokenizer's chat template; without one, as lines "System: ...", "User: ...", "Assistant: ..." that end
  with "Assistant:", the answer after a space.
- A completion ends with exactly one eos, unless it is cut by the length limit: then with none.
- Names of special tokens inside a user's text are text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.data.records import Message, Record, plain_text
from posttrain.data.tokenizer import Tokenizer
from posttrain.errors import UserError

WINDOW_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length", "max_seq_len")

TOO_LONG = "the prompt is longer than max_prompt_tokens"
EQUAL = "chosen equals rejected after the cut"
MARKUP = "a message holds the name of a special token"


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens, start token and eos included; `window` is the model's context, None if it is not known."""

    prompt: int
    completion: int
    too_long_prompt: Literal["error", "drop", "truncate_left"]
    window: int | None = None


@dataclass(frozen=True)
class Rendered:
    """Token ids of a record, or the reason why it was dropped.

    Attributes:
        id: the record's.
        prompt_ids: never empty, unless dropped.
        answers: ids of each answer, with the final eos unless cut.
        cut_prompt: the prompt lost its beginning.
        cut_answers: how many answers lost their end.
    """

    id: str
    prompt_ids: list[int]
    answers: list[list[int]]
    cut_prompt: bool = False
    cut_answers: int = 0
    dropped: str | None = None


def render(records: Sequence[Record], tokenizer: Tokenizer, limits: Limits) -> list[Rendered]:
    """Render and tokenise `records`, in their order.

    Raises:
        UserError: naming the row: a prompt over `limits.prompt` under the policy "error", or as long as the window;
            a prompt or completion without a token; a conversation that the chat template refuses.
    """
    prompts = _prompt_ids(records, tokenizer)
    answers = iter(tokenizer.encode_continuations([text for record in records for text in _answers(record, tokenizer)]))
    rows = []
    for record, prompt in zip(records, prompts, strict=True):
        ids = [next(answers) for _ in record.answers]
        rows.append(_row(record, prompt, ids, tokenizer, limits))
    return rows


def context_window(model: Path) -> int | None:
    """The number of positions that `model`/config.json names, None if it names none or is not there.

    Raises:
        UserError: config.json is not JSON.
    """
    path = model / "config.json"
    if not path.is_file():
        return None
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise UserError(f"{path} is not JSON ({fault}): fetch the model again.") from None
    for part in (config, config.get("text_config") or {}):
        for key in WINDOW_KEYS:
            if isinstance(part.get(key), int):
                return int(part[key])
    return None


def _is_chat(record: Record, tokenizer: Tokenizer) -> bool:
    return not isinstance(record.prompt, str) and tokenizer.has_chat_template


def _answers(record: Record, tokenizer: Tokenizer) -> list[str]:
    """The answers as they continue the prompt: after the default template's "Assistant:" comes a space."""
    space = "" if isinstance(record.prompt, str) or tokenizer.has_chat_template else " "
    return [space + answer for answer in record.answers]


def _prompt_ids(records: Sequence[Record], tokenizer: Tokenizer) -> list[list[int] | None]:
    """Ids of each prompt, None where a message holds markup."""
    plain = iter(tokenizer.encode([plain_text(r.prompt) for r in records if not _is_chat(r, tokenizer)]))
    rows: list[list[int] | None] = []
    for record in records:
        if _is_chat(record, tokenizer):
            rows.append(_chat_ids(record, tokenizer))
            continue
        ids = next(plain)
        if not ids:
            raise UserError(f"{record.where}: the prompt has no tokens: fill it in or delete the row.")
        rows.append([tokenizer.start_id, *ids])
    return rows


def _chat_ids(record: Record, tokenizer: Tokenizer) -> list[int] | None:
    messages: list[Message] = record.prompt  # type: ignore[assignment]
    if any(token in message["content"] for message in messages for token in tokenizer.special_tokens):
        return None
    try:
        return tokenizer.chat_prompt(messages)
    except ValueError as fault:
        raise UserError(f"{record.where}: {fault}: mend the row, or the template.") from None


def _row(
    record: Record, prompt: list[int] | None, answers: list[list[int]], tokenizer: Tokenizer, limits: Limits
) -> Rendered:
    if prompt is None:
        return Rendered(record.id, [], [], dropped=MARKUP)
    if not all(answers):
        raise UserError(f"{record.where}: a completion has no tokens: fill it in or delete the row.")
    kept = _within(record, prompt, limits, tokenizer.start_id)
    if kept is None:
        return Rendered(record.id, [], [], dropped=TOO_LONG)
    if limits.window is not None and len(kept) >= limits.window:
        raise UserError(
            f"{record.where}: the prompt has {len(kept)} tokens and the model's context {limits.window}: lower "
            "data.max_prompt_tokens and set data.too_long_prompt to drop or truncate_left, or shorten the row."
        )
    room = limits.completion if limits.window is None else min(limits.completion, limits.window - len(kept))
    whole = [[*ids, tokenizer.eos_id] for ids in answers]
    cut = [ids[:room] for ids in whole]
    if len(cut) == 2 and cut[0] == cut[1]:
        return Rendered(record.id, [], [], dropped=EQUAL)
    lost = sum(len(ids) > room for ids in whole)
    return Rendered(record.id, kept, cut, cut_prompt=len(kept) < len(prompt), cut_answers=lost)


def _within(record: Record, prompt: list[int], limits: Limits, start_id: int) -> list[int] | None:
    """The prompt within its limit; None if it is to be dropped. A start token stays in front of what is left."""
    if len(prompt) <= limits.prompt:
        return prompt
    if limits.too_long_prompt == "drop":
        return None
    if limits.too_long_prompt == "truncate_left":
        head = prompt[:1] if prompt[0] == start_id else []
        return head + prompt[len(prompt) - (limits.prompt - len(head)) :]
    raise UserError(
        f"{record.where}: the prompt has {len(prompt)} tokens, data.max_prompt_tokens is {limits.prompt}: raise it, or "
        "set data.too_long_prompt to drop or truncate_left."
    )
