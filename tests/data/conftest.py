"""Tokenizers of the kinds that models bring, small and made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from posttrain.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

TEXTS = [f"the film number {n} is a good film with {n * 7} jokes, and User: and Assistant: too\n" for n in range(50)]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}"
    "[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
)


def _save(folder: Path, fast: tokenizers.Tokenizer, **settings: Any) -> Tokenizer:
    folder.mkdir()
    fast.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder)


def _byte_level(*specials: str) -> tokenizers.Tokenizer:
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    fast.train_from_iterator(TEXTS, trainer)
    return fast


def _built_in(folder: Path) -> Tokenizer:
    train_tokenizer(TEXTS, 320, folder)
    return load_tokenizer(folder)


def _gpt2(folder: Path) -> Tokenizer:
    """BOS is eos, no padding token, nothing added by itself."""
    end = "<|endoftext|>"
    return _save(folder, _byte_level(end), bos_token=end, eos_token={"__type": "AddedToken", "content": end})


def _qwen(folder: Path) -> Tokenizer:
    """No BOS; a chat template."""
    fast = _byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _save(folder, fast, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML)


def _llama(folder: Path) -> Tokenizer:
    """A space put before every beginning; adds its BOS itself; its chat template writes the BOS too."""
    fast = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*specials, *pieces], show_progress=False)
    fast.train_from_iterator([word for text in TEXTS for word in text.split()], trainer)
    model = json.loads(fast.to_str())
    model["added_tokens"] = [token for token in model["added_tokens"] if token["content"] in specials]
    fast = tokenizers.Tokenizer.from_str(json.dumps(model))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _save(folder, fast, bos_token="<s>", eos_token="</s>", chat_template=LLAMA)


def _spaced(folder: Path, words: bool) -> Tokenizer:
    """A space put before every beginning by the pre-tokenizer; line ends join what is before and after them.

    With `words` they join the space before; without, each other.
    """
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=words)
    fast.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    alphabet, end = sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator(["\n \n", "\n", "\n\n\n\n"] * 9, trainer)
    return _save(folder, fast, bos_token=end, eos_token=end)


KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "built-in": _built_in,
    "gpt2": _gpt2,
    "qwen": _qwen,
    "llama": _llama,
    "spaced": lambda folder: _spaced(folder, words=False),
    "spaced words": lambda folder: _spaced(folder, words=True),
}


@pytest.fixture(scope="session")
def tokenizer_kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {name: make(folder / name) for name, make in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def any_tokenizer(request: pytest.FixtureRequest, tokenizer_kinds: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizer_kinds[request.param]


@pytest.fixture
def built_in(tokenizer_kinds: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizer_kinds["built-in"]
