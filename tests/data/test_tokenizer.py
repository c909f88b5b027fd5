"""The tokenizer on disk and in memory: equal bytes, no invented tokens, transformers reads the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.data.tokenizer import Tokenizer, copy_tokenizer, fingerprint, load_tokenizer, train_tokenizer
from posttrain.errors import UserError
from tests.data.conftest import TEXTS

STRANGE = [
    "caf\u00e9 \U0001f600",
    " leading",
    "trailing ",
    "two\n\nlines\r\n",
    "<|eos|> in a text",
    "\x00\x7f",
    "\u6f22\u5b57",
]


def test_specials_and_round_trip(built_in: Tokenizer) -> None:
    assert (built_in.pad_id, built_in.bos_id, built_in.eos_id, built_in.start_id) == (0, 1, 2, 1)
    for text, ids in zip(STRANGE, built_in.encode(STRANGE), strict=True):
        assert built_in.decode(ids) == text
        assert not {0, 1, 2} & set(ids)


def test_digits_stand_alone(built_in: Tokenizer) -> None:
    (ids,) = built_in.encode(["1234"])
    assert [built_in.decode([token]) for token in ids] == ["1", "2", "3", "4"]


def test_size_is_as_asked_where_the_texts_suffice(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, 290, tmp_path)
    assert len(load_tokenizer(tmp_path)) == 290


def test_equal_texts_give_equal_bytes_in_other_processes(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from posttrain.data.tokenizer import train_tokenizer;"
        "from tests.data.conftest import TEXTS;"
        "train_tokenizer(TEXTS, 320, pathlib.Path(sys.argv[1]))"
    )
    train_tokenizer(iter(TEXTS), 320, tmp_path / "here")
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed, "PYTHONPATH": "."}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / seed)], env=environment, check=True)
        for file in (tmp_path / "here").iterdir():
            assert file.read_bytes() == (tmp_path / seed / file.name).read_bytes(), file.name


def test_transformers_reads_the_same(any_tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(any_tokenizer.folder)
    for text in ("the film number 12", " is good"):
        assert theirs(text, add_special_tokens=False).input_ids == any_tokenizer.encode([text])[0]
    assert (theirs.eos_token_id, theirs.bos_token_id) == (any_tokenizer.eos_id, any_tokenizer.bos_id)
    if theirs.pad_token_id is not None:
        assert theirs.pad_token_id == any_tokenizer.pad_id


def test_transformers_puts_one_bos_before_a_text(built_in: Tokenizer) -> None:
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(built_in.folder)("film").input_ids == [1, *built_in.encode(["film"])[0]]


def test_continuations_carry_no_invented_space(any_tokenizer: Tokenizer) -> None:
    """Against the one tokenisation of the whole text, for a cut before a space."""
    for text in ("the film number 12 is good", "the film is a film"):
        (whole,), (first,) = any_tokenizer.encode([text]), any_tokenizer.encode([text[:8]])
        assert first + any_tokenizer.encode_continuations([text[8:]])[0] == whole


@pytest.mark.parametrize("text", ["abc", " abc", "\nabc", "\n\nabc", "\u2400abc", "7", "!?", "\u6f22\u5b57"])
def test_every_continuation_decodes_to_itself_alone(any_tokenizer: Tokenizer, text: str) -> None:
    (first,), (ids,) = any_tokenizer.encode(["the film"]), any_tokenizer.encode_continuations([text])
    assert any_tokenizer.decode(first + ids) == any_tokenizer.decode(first) + text


def test_a_tokenizer_without_padding_token_pads_with_eos(tokenizer_kinds: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizer_kinds["gpt2"]
    assert tokenizer.pad_id == tokenizer.eos_id == tokenizer.start_id == tokenizer.bos_id


def test_without_bos_sequences_start_with_eos(tokenizer_kinds: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizer_kinds["qwen"]
    assert tokenizer.bos_id is None and tokenizer.start_id == tokenizer.eos_id != tokenizer.pad_id


def test_copies_are_byte_for_byte_and_nothing_else(any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = tmp_path / "model"
    copy_tokenizer(any_tokenizer.folder, model)
    (model / "model.safetensors").write_bytes(b"w")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    copy_tokenizer(model, tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {path.name for path in model.iterdir()} - {"model.safetensors"}
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (model / name).read_bytes()


def test_fingerprint_ignores_layout_and_sees_every_rule(tokenizer_kinds: dict[str, Tokenizer], tmp_path: Path) -> None:
    source = tokenizer_kinds["qwen"].folder
    base = fingerprint(source)

    def changed(name: str, file: str, old: str, new: str) -> str:
        folder = tmp_path / name
        copy_tokenizer(source, folder)
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))
        return fingerprint(folder)

    rules = json.dumps(json.loads((source / "tokenizer.json").read_text()))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "tokenizer.json").write_text(rules)
    (tmp_path / "plain" / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    assert fingerprint(tmp_path / "plain") == base
    others = {
        changed("eos", "tokenizer_config.json", '"eos_token": "<|im_end|>"', '"eos_token": "<|endoftext|>"'),
        changed("template", "tokenizer_config.json", "assistant", "bot"),
        changed("prefix", "tokenizer.json", '"add_prefix_space": false', '"add_prefix_space": true'),
    }
    assert base not in others and len(others) == 3


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer.json": "{"}, "cannot be read"),
    ],
)
def test_broken_folders_are_named(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=words):
        load_tokenizer(tmp_path)


def test_no_eos_is_an_error(built_in: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((built_in.folder / "tokenizer.json").read_bytes())
    with pytest.raises(UserError, match="eos_token"):
        load_tokenizer(tmp_path)


def test_copying_from_a_model_without_fast_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="save_pretrained"):
        copy_tokenizer(tmp_path, tmp_path / "copy")


def test_loading_imports_neither_torch_nor_transformers(built_in: Tokenizer) -> None:
    program = (
        "import sys, pathlib; from posttrain.data.tokenizer import load_tokenizer; import posttrain.data.render;"
        f"load_tokenizer(pathlib.Path({str(built_in.folder)!r})).encode(['x']);"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
