"""The tokenizer of a GGUF file in transformers' form: byte-level BPE, its special tokens, its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from posttrain.errors import UserError

PREFIX = "tokenizer.ggml."
# What splits a text before the merges, by the file's name for it. Each is tested against a splitter of its own.
DIGITS_ALONE = {"gpt-2": False, "smollm": True}
# GGUF's token types.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
NAMED = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}


def write_tokenizer(facts: Mapping[str, Any], source: str, folder: Path) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json, which transformers 4.51 and 5 read alike; always the same bytes.

    The special tokens are the file's own. A chat model's eos is what ends a turn (ChatML's <|im_end|>), and plain text
    ends with it too: generation stops at one token, which SFT teaches for either, and a base's end of document
    (<|endoftext|>) would leave chat answers without an end.

    Args:
        facts: the GGUF file's metadata by key; one that is missing raises `UserError`.
        source: the file, for messages.
        folder: an existing folder.

    Returns:
        The special tokens' ids by their name in config.json (`eos_token_id`); an id that no token has is left out.

    Raises:
        UserError: another kind of tokenizer, tables that do not fit together, or no eos.
    """
    fast = _byte_level(facts, source)
    tokens: list[str] = facts[f"{PREFIX}tokens"]
    kinds: list[int] = facts[f"{PREFIX}token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (UNKNOWN, CONTROL)]
    fast.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    own = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    fast.add_tokens([AddedToken(token, normalized=False) for token in own])
    ids = {name: facts.get(PREFIX + key, len(tokens)) for name, key in NAMED.items()}
    names = {name: tokens[place] for name, place in ids.items() if place < len(tokens)}
    if "eos_token" not in names:
        raise UserError(f"{source} names no eos token, and completions must end; choose another model")
    fast.post_processor = _post_processor(facts, names, fast)
    fast.save(str(folder / "tokenizer.json"))
    settings = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": facts["llama.context_length"],
    }
    if "tokenizer.chat_template" in facts:
        settings["chat_template"] = facts["tokenizer.chat_template"]
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return {f"{name}_id": ids[name] for name in names}


def _byte_level(facts: Mapping[str, Any], source: str) -> tokenizers.Tokenizer:
    kind, pre = facts[f"{PREFIX}model"], facts[f"{PREFIX}pre"]
    if kind != "gpt2" or pre not in DIGITS_ALONE:
        raise UserError(
            f"{source}: its tokenizer is {kind!r} with the splitter {pre!r}; known are 'gpt2' with "
            f"{' or '.join(map(repr, DIGITS_ALONE))}, so give this model as a folder in transformers' form"
        )
    tokens: list[str] = facts[f"{PREFIX}tokens"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in facts[f"{PREFIX}merges"]]
    if not len(vocabulary) == len(tokens) == len(facts[f"{PREFIX}token_type"]):
        raise UserError(f"{source}: its tokenizer has a token twice, or one without a type; choose another file")
    try:
        fast = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception:  # tokenizers raises bare Exception
        raise UserError(f"{source}: its tokenizer's merges do not fit its tokens; choose another file") from None
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    fast.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if DIGITS_ALONE[pre] else byte_level
    fast.decoder = decoders.ByteLevel()
    return fast


def _post_processor(facts: Mapping[str, Any], names: Mapping[str, str], fast: tokenizers.Tokenizer) -> Any:
    """What the file says to put before and after each text, where it says so."""
    before = [names["bos_token"]] if facts.get(f"{PREFIX}add_bos_token") else []
    after = [names["eos_token"]] if facts.get(f"{PREFIX}add_eos_token") else []
    if not before and not after:
        return processors.ByteLevel(trim_offsets=True)
    added = [(token, fast.token_to_id(token)) for token in {*before, *after}]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", "$B", *after], special_tokens=added
    )
