"""A GGUF file's tokenizer gives the ids of BPE by its definition, under `tokenizers` and under transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from posttrain.data.gguf_tokenizer import write_tokenizer
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from tests.data.bpe import Reference
from tests.model.gguf_file import MERGES, SPECIAL, TEMPLATE, TOKENS, TYPES

TEXTS = (
    "",
    "the film, the the film",
    " the  film\n\n the\tfilm \r\n end  ",
    "in 1923: 12 123 1234½²٣ 4x12y",
    "it's what's they'll I'd 's 'S don't",
    "naïve café — “quoted” 日本語 дом",
    "😀👍🏽 👩‍👩‍👧 ok",
    "a<|im_end|>b <user> c",
)
FACTS: dict[str, Any] = {
    "llama.context_length": 128,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": list(TOKENS),
    "tokenizer.ggml.token_type": list(TYPES),
    "tokenizer.ggml.merges": list(MERGES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": TEMPLATE,
}


def written(folder: Path, **changes: Any) -> Path:
    facts = FACTS | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    write_tokenizer({key: value for key, value in facts.items() if value is not None}, "a.gguf", folder)
    return folder


@pytest.mark.parametrize(("pre", "digits_alone"), [("smollm", True), ("gpt-2", False)])
def test_ids_are_those_of_the_definition(pre: str, digits_alone: bool, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(written(tmp_path, pre=pre))
    reference = Reference(TOKENS, MERGES, digits_alone)
    for text in (text.replace("<user>", "") for text in TEXTS):
        assert tokenizer.encode([text])[0] == reference.encode(text), text
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text
    assert (TOKENS.index("123") in tokenizer.encode(["1234"])[0]) != digits_alone


def test_special_tokens_are_read_in_markup_alone_and_own_tokens_always(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(written(tmp_path))
    assert tokenizer.special_tokens == SPECIAL
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.encode(["<|im_end|>"], markup=True) == [[2]]
    assert tokenizer.encode(["<|im_end|>"]) == [[TOKENS.index(letter) for letter in "<|im_end|>"]]
    assert tokenizer.encode(["<user>"]) == [[3]]


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(written(tmp_path))
    reference = Reference(TOKENS, MERGES, digits_alone=True)
    assert theirs(TEXTS[3])["input_ids"] == reference.encode(TEXTS[3])
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, theirs.model_max_length) == (1, 2, 2, 128)
    chat = [{"role": "user", "content": "the film"}]
    text = theirs.apply_chat_template(chat, tokenize=False)
    assert text == "<|im_start|>user\nthe film<|im_end|>\n"
    assert load_tokenizer(tmp_path).chat_prompt(chat) == theirs(text)["input_ids"]


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (True, True), (False, True), (False, False)])
def test_what_the_file_adds_to_each_text(bos: bool, eos: bool, tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(written(tmp_path, add_bos_token=bos, add_eos_token=eos))
    text = Reference(TOKENS, MERGES, digits_alone=True).encode("the film")
    assert theirs("the film")["input_ids"] == [*([1] if bos else []), *text, *([2] if eos else [])]


def test_an_id_that_no_token_has_is_no_special_token(tmp_path: Path) -> None:
    ids = write_tokenizer(FACTS | {"tokenizer.ggml.padding_token_id": 2**32 - 1}, "a.gguf", tmp_path)
    assert ids == {"bos_token_id": 1, "eos_token_id": 2}
    assert "pad_token" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


def test_equal_facts_give_equal_bytes(tmp_path: Path) -> None:
    found = []
    for name in "ab":
        (tmp_path / name).mkdir()
        written(tmp_path / name, add_bos_token=True, add_eos_token=True)
        found.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"pre": "llama-bpe"}, "'gpt2' with the splitter 'llama-bpe'"),
        ({"model": "llama"}, "its tokenizer is 'llama'"),
        ({"tokens": [*TOKENS[:-1], "t"]}, "a token twice"),
        ({"token_type": list(TYPES[:-1])}, "without a type"),
        ({"merges": ["Ġ zz"]}, "do not fit its tokens"),
        ({"merges": ["a b c"]}, "do not fit its tokens"),
        ({"eos_token_id": None}, "names no eos token"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        written(tmp_path, **changes)
    assert wanted in str(caught.value) and "a.gguf" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
