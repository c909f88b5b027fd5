"""The models of the bench, as folders in transformers' form: a tiny Llama, SmolLM2-135M, and a reward model of each.

Their end token is one that they never write: samples then have the full length on every side, with no setting of either
trainer. Everything here runs in our own environment, once.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers
import torch
import yaml
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM

from posttrain.config.schema import Model
from posttrain.stages import fetch_model

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<0>", "<1>", "<2>", "<3>")
NEVER_WRITTEN = "<jupyter_script>"  # of SmolLM2's vocabulary: a mark of its training data that no plain text leads to
PUSH = 1.0


def make_models(name: str, folder: Path) -> None:
    """`folder`/policy/model and `folder`/judge/model with their tokenizer; nothing where they are there already.

    policy/ has a manifest too, since stages know a model by it.
    """
    if (folder / "judge" / "model" / "config.json").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    policy = folder / "policy"
    policy.mkdir(parents=True)
    (_tiny if name == "tiny" else _smollm2)(policy)
    (policy / "manifest.json").write_text(json.dumps({"stage": name}))
    judge = AutoModelForSequenceClassification.from_pretrained(policy / "model", num_labels=1, dtype=torch.float32)
    judge.save_pretrained(folder / "judge" / "model")
    for path in (policy / "model").glob("tokenizer*"):
        shutil.copyfile(path, folder / "judge" / "model" / path.name)


def _tiny(policy: Path) -> None:
    """4.86 M parameters with random weights, a vocabulary of 256 bytes and 8 special tokens."""
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=256,
        intermediate_size=1280,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    _never(model, 2)
    model.save_pretrained(policy / "model")
    _byte_tokenizer(policy / "model")


@torch.no_grad()
def _never(model: LlamaForCausalLM, token: int) -> None:
    """One direction that all hidden states share, and against it the output row of `token`: its logit is about -14."""
    direction = torch.zeros(model.config.hidden_size)
    direction[0] = PUSH
    model.model.embed_tokens.weight += direction
    model.lm_head.weight[token] = -direction


def _byte_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate((*SPECIALS, *alphabet))}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(list(SPECIALS))
    fast.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIALS, strict=False))
    _write_tokenizer_config(folder, {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **names})


def _smollm2(policy: Path) -> None:
    """The base of config.yaml, by its own stage; float32."""
    settings = yaml.safe_load(Path("config.yaml").read_text())["model"]
    model = Model(base=settings["base"], revision=settings["revision"])
    stage: Any = SimpleNamespace(config=SimpleNamespace(model=model), out=policy, log=logging.getLogger("bench"))
    fetch_model.run(stage)
    folder = policy / "model"
    known = json.loads((folder / "tokenizer_config.json").read_text())
    _write_tokenizer_config(folder, {**known, "eos_token": NEVER_WRITTEN, "pad_token": "<|endoftext|>"})
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id
    config = json.loads((folder / "config.json").read_text())
    config.update(eos_token_id=ids(NEVER_WRITTEN), pad_token_id=ids("<|endoftext|>"))
    (folder / "config.json").write_text(json.dumps(config))


def _write_tokenizer_config(folder: Path, content: dict[str, object]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
