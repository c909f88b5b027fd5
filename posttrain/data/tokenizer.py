"""The tokenizer as the data stages see it: `tokenizers` alone, without the weight of transformers.

A folder in transformers' form is the only form on disk. transformers is imported for one thing: to run a chat template.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from posttrain.errors import UserError

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

# What a text is put behind to see its ids without a beginning's. A line end, where the tokenizer does not join it with
# the text; else a character that no text has.
ANCHORS = ("\n", "\u2400")

Message = dict[str, str]


class Tokenizer:
    """A fast tokenizer with the few facts that rendering and generating need.

    Attributes:
        bos_id, eos_id, pad_id: ids of the special tokens; `bos_id` may be None; `pad_id` is `eos_id` where the
            tokenizer has no padding token (padding is masked by length, never by id).
        start_id: what stands before a sequence that has no beginning of its own: the BOS, or the eos without one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fast = _read_fast(folder)
        self.fast.no_padding()
        self.fast.no_truncation()
        names = _special_tokens(folder)
        self.bos_id = self._id(names.get("bos_token"))
        eos_id = self._id(names.get("eos_token"))
        if eos_id is None:
            raise UserError(f"{folder} names no eos_token: set it in tokenizer_config.json, completions must end.")
        self.eos_id: int = eos_id
        pad_id = self._id(names.get("pad_token"))
        self.pad_id: int = eos_id if pad_id is None else pad_id
        self.start_id: int = eos_id if self.bos_id is None else self.bos_id

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self.fast.token_to_id(token)

    def __len__(self) -> int:
        return self.fast.get_vocab_size()

    def encode(self, texts: Sequence[str], *, markup: bool = False) -> list[list[int]]:
        """Ids of each text, with no special token added.

        Args:
            texts: any number of texts.
            markup: read names of special tokens inside a text as these tokens (for a rendered template), not as text.
        """
        self.fast.encode_special_tokens = not markup
        return [encoding.ids for encoding in self.fast.encode_batch(list(texts), add_special_tokens=False)]

    def encode_continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts that follow other text: without the space that some tokenizers put before a beginning.

        Raises:
            UserError: the tokenizer joins every character we try before a text with that text.
        """
        return self._after_anchors(texts) if self._opens_with_space else self.encode(texts)

    @cached_property
    def _opens_with_space(self) -> bool:
        return self._after_anchors(["a"]) != self.encode(["a"])

    def _after_anchors(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text after the first anchor that it leaves as it is, without the anchor's own."""
        found: dict[int, list[int]] = {}
        for anchor in ANCHORS:
            waiting = [place for place in range(len(texts)) if place not in found]
            start = self.encode([anchor])[0]
            for place, ids in zip(waiting, self.encode([anchor + texts[place] for place in waiting]), strict=True):
                if ids[: len(start)] == start:
                    found[place] = ids[len(start) :]
        if len(found) < len(texts):
            raise UserError(
                f"{self.folder}: this tokenizer joins a line end with the text after it; it cannot be used."
            )
        return [found[place] for place in range(len(texts))]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`."""
        return self.fast.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of all special tokens, which must not stand in a chat message."""
        return tuple(token.content for token in self.fast.get_added_tokens_decoder().values() if token.special)

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether the folder brings a chat template."""
        return _chat_template(self.folder) is not None

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to where the assistant is to answer, by the folder's own template.

        Exactly one BOS where the tokenizer itself begins with one, wherever it comes from.

        Raises:
            ValueError: the template refuses the conversation.
        """
        try:
            text = self._templated.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as fault:  # a template is a program of the model's author: it may raise anything
            raise ValueError(f"the tokenizer's chat template refuses the conversation ({fault})") from None
        ids = self.encode([str(text)], markup=True)[0]
        if self._adds_bos:
            while ids and ids[0] == self.bos_id:
                ids = ids[1:]
            ids = [self.start_id, *ids]
        return ids

    @cached_property
    def _templated(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def _adds_bos(self) -> bool:
        ids = self.fast.encode("a", add_special_tokens=True).ids
        return self.bos_id is not None and ids[:1] == [self.bos_id]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder` (transformers' form, with tokenizer.json).

    Raises:
        UserError: tokenizer.json is missing or broken, or there is no eos token.
    """
    return Tokenizer(Path(folder))


def train_tokenizer(texts: Iterable[str], vocabulary: int, folder: Path) -> None:
    """Train the built-in base's byte-level BPE and save it in transformers' form; equal texts give equal bytes.

    Digits stand alone, any text can be encoded, and decoding gives the text back exactly. <|pad|>, <|bos|> and <|eos|>
    are ids 0, 1, 2.

    Args:
        texts: the texts to learn from (the training split's).
        vocabulary: wanted size, special tokens included; a small corpus may give fewer.
        folder: made if missing.
    """
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    fast.train_from_iterator(texts, trainer)
    fast.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, fast.token_to_id(BOS))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    specials = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    settings = {
        **specials,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "special_tokens_map.json", specials)


def copy_tokenizer(model: Path, folder: Path) -> None:
    """Copy the tokenizer's files of a model folder, byte for byte.

    Raises:
        UserError: the model folder has no tokenizer.json.
    """
    if not (model / "tokenizer.json").is_file():
        raise UserError(
            f"{model} has no tokenizer.json: save its tokenizer there as a fast one (AutoTokenizer's save_pretrained)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)


def fingerprint(folder: Path) -> str:
    """sha256 of all that decides how text becomes ids: vocabulary, rules, special tokens, chat template.

    Raises:
        UserError: as `load_tokenizer`.
    """
    rules = json.loads(_read_fast(Path(folder)).to_str())
    rules.pop("padding", None)
    rules.pop("truncation", None)
    content = {"rules": rules, "special": _special_tokens(folder), "template": _chat_template(folder)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_fast(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{folder} has no tokenizer.json: this is not a folder with a fast tokenizer.")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as fault:  # tokenizers raises bare Exception
        raise UserError(f"{path} cannot be read ({fault}): fetch the model again.") from None


def _special_tokens(folder: Path) -> dict[str, str]:
    """Names of bos, eos and pad; tokenizer_config.json wins over special_tokens_map.json."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        entries = _read_json(folder / name)
        for key in ("bos_token", "eos_token", "pad_token"):
            token = entries.get(key)
            text = token.get("content") if isinstance(token, dict) else token
            if text is not None:
                found[key] = text
    return found


def _chat_template(folder: Path) -> Any:
    path = folder / "chat_template.jinja"
    return (
        path.read_text(encoding="utf-8")
        if path.is_file()
        else _read_json(folder / "tokenizer_config.json").get("chat_template")
    )


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
