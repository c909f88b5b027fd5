"""TRL's side: its stable trainers, each a call of its constructor and of `train`.

usage, in TRL's environment: python -m bench.workers.trl_trainers TASK.json
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

warnings.filterwarnings("ignore")

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402

from bench.meter import FinishedError, Meter, read_task, write_result  # noqa: E402
from bench.work import ONLINE, PAIRS, Work  # noqa: E402

COLUMNS = {"sft": ("prompt", "completion"), "kto": ("prompt", "completion", "label")}
PRECOMPUTED = ("dpo", "kto")


class MeterCallback(transformers.TrainerCallback):
    """Ends the training after the last step that is measured."""

    def __init__(self, meter: Meter, work: Work) -> None:
        self.meter, self.work, self.counted = meter, work, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Tokens of the step: of samples by their number, of stored rows as they were counted."""
        known = self.work.rows * (self.work.completion if self.work.method in ONLINE else self.known_row())
        self.meter.end_step(self.counted if self.work.method == "sft" else known)
        self.counted = 0.0
        if state.global_step == self.work.total_steps:
            raise FinishedError

    def known_row(self) -> int:
        """Tokens of a pair or labelled completion, where all are alike."""
        return (self.work.prompt + self.work.completion) * (2 if self.work.method in PAIRS else 1)


class Side:
    """The models, data and trainer of one row."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.work, self.task = Work(**task["work"]), task
        models = Path(task["models"])
        self.policy, self.judge = models / "policy" / "model", models / "judge" / "model"
        self.tokenizer = AutoTokenizer.from_pretrained(self.policy)
        self.meter = Meter()
        self.callback = MeterCallback(self.meter, self.work)

    def model(self) -> Any:
        """The policy."""
        return AutoModelForCausalLM.from_pretrained(self.policy, dtype=torch.float32)

    def classifier(self) -> Any:
        """The reward model."""
        return AutoModelForSequenceClassification.from_pretrained(self.judge, num_labels=1, dtype=torch.float32)

    def rows(self) -> Any:
        """The texts of all rows, with the columns that the trainer knows."""
        names = COLUMNS.get(
            self.work.method, ("prompt", "chosen", "rejected") if self.work.method in PAIRS else ("prompt",)
        )
        rows = json.loads((Path(self.task["data"]) / "rows.json").read_text())
        return datasets.Dataset.from_list([{name: row[name] for name in names} for row in rows])

    def common(self) -> dict[str, Any]:
        """What every trainer gets; what only costs time (logging, checkpoints, bars) is off."""
        return {
            "output_dir": self.task["place"],
            "max_steps": self.work.total_steps,
            "per_device_train_batch_size": self.work.rows,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "constant",
            "logging_strategy": "no",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
            "seed": 0,
            **self.task["settings"],
        }

    def trainer(self) -> Any:
        """Ready to train."""
        known = {"train_dataset": self.rows(), "processing_class": self.tokenizer, "callbacks": [self.callback]}
        if self.work.method == "ppo":
            return self._ppo()
        if self.work.method in ONLINE:
            return self._online(known)
        if self.work.method == "sft":
            peft_config = self._lora() if self.work.lora else None
            return trl.SFTTrainer(
                model=self.model(), args=trl.SFTConfig(**self.common()), peft_config=peft_config, **known
            )
        if self.work.method == "reward_model":
            return trl.RewardTrainer(model=self.classifier(), args=trl.RewardConfig(**self.common()), **known)
        config, kind = (trl.DPOConfig, trl.DPOTrainer) if self.work.method == "dpo" else (trl.KTOConfig, trl.KTOTrainer)
        settings = {"precompute_ref_log_probs": True, **self.common()}
        with self.timed(kind, "_precompute_ref_logps"):
            return kind(model=self.model(), args=config(**settings), **known)

    def _online(self, known: dict[str, Any]) -> Any:
        config, kind = (
            (trl.GRPOConfig, trl.GRPOTrainer) if self.work.method == "grpo" else (trl.RLOOConfig, trl.RLOOTrainer)
        )
        settings = {
            "num_generations": self.work.group,
            "max_completion_length": self.work.completion,
            "temperature": 1.0,
            "beta": self.work.kl,
            **self.common(),
        }
        reward = self.classifier() if self.work.judge else python_reward
        return kind(model=self.model(), reward_funcs=reward, args=config(**settings), **known)

    def _ppo(self) -> Any:
        """Of the last TRL that has it, 1.12: whitened advantages, KL in the reward, never an end before the limit."""
        from trl.experimental.ppo import PPOConfig, PPOTrainer

        settings = {
            "total_episodes": self.work.rows * self.work.total_steps,
            "response_length": self.work.completion,
            "num_ppo_epochs": self.work.epochs,
            "kl_coef": self.work.kl,
            "temperature": 1.0,
            "num_sample_generations": 0,
            **self.common(),
        }
        settings.pop("max_steps")
        prompts = self.rows().map(lambda row: {"input_ids": self.tokenizer(row["prompt"])["input_ids"]})
        return PPOTrainer(
            args=PPOConfig(**settings),
            processing_class=self.tokenizer,
            model=self.model(),
            ref_model=self.model(),
            reward_model=self.classifier(),
            value_model=self.classifier(),
            train_dataset=prompts.remove_columns("prompt"),
            callbacks=[self.callback],
        )

    def _lora(self) -> Any:
        from peft import LoraConfig

        return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")

    @contextmanager
    def timed(self, kind: Any, method: str) -> Iterator[None]:
        """Counts the CPU time of a method as done once."""
        whole = getattr(kind, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.meter.one_off("reference"):
                return whole(*args, **kwargs)

        with mock.patch.object(kind, method, counted):
            yield

    def count_tokens(self, trainer: Any) -> None:
        """Counts what goes into each forward and backward pass, padding not."""
        whole = trainer.training_step

        def counted(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            mask = inputs.get("attention_mask")
            self.callback.counted += inputs["input_ids"].numel() if mask is None else int(mask.sum())
            return whole(model, inputs, *args, **kwargs)

        trainer.training_step = counted


def python_reward(completions: list[str], **_: Any) -> list[float]:
    """The share of one letter, as a reward that costs nothing."""
    return [text.count("e") / 8 for text in completions]


def main() -> None:
    """One process of the bench."""
    task = read_task()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    side = Side(task)
    trainer = side.trainer()
    if side.work.method == "sft":
        side.count_tokens(trainer)
    with suppress(FinishedError):
        trainer.train()
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    write_result(task, side.meter.result(side.work.warmup, versions))


if __name__ == "__main__":
    main()
