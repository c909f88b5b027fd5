"""Reads exported folders with another transformers; run by test_export.py as `PYTHON read_back.py FOLDER ...`.

Prints one JSON line per folder: its logits (or its score) for fixed ids, its dtype, the ids of a fixed text and, where
there is a template, a fixed chat. Imports nothing of ours, as the other environment holds torch and transformers alone.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

IDS = [1, 5, 9, 200, 7, 33, 8, 120, 4, 77, 61, 2]  # longer than the tiny models' window
TEXT = "the film's 12 prizes in 1987:  not\n\ngood 👍 naïve"
CHAT = [{"role": "user", "content": "the film"}, {"role": "assistant", "content": "good"}]


def read(folder: str) -> dict[str, object]:
    """What transformers makes of the folder."""
    classifier = AutoConfig.from_pretrained(folder).architectures[0].endswith("SequenceClassification")
    auto = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    # The dtype that the folder names is the default since 5.
    named = {"torch_dtype": "auto"} if transformers.__version__.startswith("4.") else {}
    model = auto.from_pretrained(folder, **named).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0]
    return {
        "transformers": transformers.__version__,
        "dtype": str(model.dtype),
        "logits": logits.float().tolist(),
        "ids": tokenizer(TEXT)["input_ids"],
        "chat": tokenizer.apply_chat_template(CHAT, tokenize=False) if tokenizer.chat_template else None,
    }


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(read(path)))
