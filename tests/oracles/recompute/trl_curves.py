"""Whole trainings by TRL's trainers: the loss of each step, as they log it.

Run it in an environment of its own (trl.txt) with `--write` or without, see vectors.py. The trainers get texts whose
words are the ids, in the order of our trainings, and go through them without shuffling.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import datasets
import torch
import trl
from curves import COMMON, EOS, MINIBATCH, MODEL, PAD, ROWS, SEED, SETTINGS, STEPS, UNKNOWN, VOCABULARY, examples, fill
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
)
from vectors import main

sys.path.append(str(Path(__file__).resolve().parents[3]))
from posttrain.trainer.order import Order  # that needs torch alone

# Float32 on other processors rounds otherwise.
TOLERANCE = 1e-5

SPECIAL = {PAD: "<pad>", EOS: "<eos>", UNKNOWN: "<unk>"}
TRAINERS = {
    "sft": (trl.SFTTrainer, trl.SFTConfig),
    "reward_model": (trl.RewardTrainer, trl.RewardConfig),
    "dpo": (trl.DPOTrainer, trl.DPOConfig),
    "kto": (trl.KTOTrainer, trl.KTOConfig),
}


def curve(kind: str) -> list[float]:
    """The loss of each of STEPS optimiser steps."""
    trainer_class, config = TRAINERS[kind]
    reference = {"ref_model": network(kind)} if kind in ("dpo", "kto") else {}
    trainer = trainer_class(
        model=network(kind),
        args=config(**SETTINGS[kind], **arguments()),
        train_dataset=datasets.Dataset.from_list([row(kind, i) for i in seen()]),
        processing_class=tokenizer(),
        **reference,
    )
    if kind == "kto":
        pair_over_all_rows(trainer)
    check(kind, trainer.train_dataset)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def arguments() -> dict[str, Any]:
    """Of every trainer's config: AdamW as in torch, all of it in float32."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "num_train_epochs": 1,
        "per_device_train_batch_size": MINIBATCH,
        "train_sampling_strategy": "sequential",
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": COMMON["weight_decay"],
        "max_grad_norm": COMMON["max_grad_norm"],
        "lr_scheduler_type": COMMON["schedule"],
        "warmup_steps": 0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def network(kind: str) -> PreTrainedModel:
    cls = LlamaForSequenceClassification if kind == "reward_model" else LlamaForCausalLM
    model = cls(LlamaConfig(**MODEL, num_labels=1))
    fill(model)
    return model


def seen() -> list[int]:
    """Row numbers as our trainings come to them."""
    order = Order(SEED, ROWS, MINIBATCH)
    return [i for step in range(1, STEPS + 1) for i in order.rows(step)]


def row(kind: str, number: int) -> dict[str, Any]:
    """The texts of a row, with the columns that the trainer knows."""
    example = examples()[number]
    prompt = {"prompt": text(example.prompt) + " "}
    if kind == "sft":
        return {**prompt, "completion": text(example.chosen)}
    if kind == "kto":
        completion, label = example.labelled(number)
        return {**prompt, "completion": text(completion), "label": label}
    return {**prompt, "chosen": text(example.chosen), "rejected": text(example.rejected)}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word(i): i for i in range(VOCABULARY)}, unk_token=SPECIAL[UNKNOWN]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": SPECIAL[PAD], "eos_token": SPECIAL[EOS], "unk_token": SPECIAL[UNKNOWN]}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def word(number: int) -> str:
    return SPECIAL.get(number, f"w{number}")


def text(ids: list[int]) -> str:
    return " ".join(map(word, ids))


def pair_over_all_rows(trainer: trl.KTOTrainer) -> None:
    """Gives each prompt the completion of the next row of the table, as ours does, for the baseline.

    TRL pairs within a batch, each prompt with the completion of the row before it.
    """
    completions = [example.labelled(i)[0] for i, example in enumerate(examples())]
    rotated = [completions[(i + 1) % ROWS] for i in seen()]
    kept = trainer.train_dataset.remove_columns("KL_completion_ids")
    trainer.train_dataset = kept.add_column("KL_completion_ids", rotated)


def check(kind: str, dataset: datasets.Dataset) -> None:
    """Refuses rows whose ids are not the ones that ours get."""
    for number, found in zip(seen(), dataset, strict=True):
        example = examples()[number]
        if kind == "sft":
            same = found["input_ids"] == example.prompt + example.chosen
        elif kind == "reward_model":
            ids = (found["chosen_ids"], found["rejected_ids"])
            same = ids == (example.prompt + example.chosen, example.prompt + example.rejected)
        elif kind == "dpo":
            ids = (found["prompt_ids"], found["chosen_ids"], found["rejected_ids"])
            same = ids == (example.prompt, example.chosen, example.rejected)
        else:
            same = (found["prompt_ids"], found["completion_ids"]) == (example.prompt, example.labelled(number)[0])
        if not same:
            raise SystemExit(f"{kind}: row {number} became {found}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    versions = {"peer": "trl", "version": trl.__version__, "torch": torch.__version__.partition("+")[0]}
    main("trl_curves.json", {**versions, "losses": {kind: curve(kind) for kind in TRAINERS}}, TOLERANCE)
