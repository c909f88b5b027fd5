"""Training on stored preferences: a policy against the frozen copy of its own beginning."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.checkpoint.shards import Shards
from posttrain.config.runs import Offline
from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.batch import Row
from posttrain.model.load import load_causal_lm
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward
from posttrain.roles.learner import Metrics
from posttrain.roles.reference import Reference
from posttrain.trainer.context import Context
from posttrain.trainer.distance import Probe, over_budget
from posttrain.trainer.frozen import keep_frozen
from posttrain.trainer.order import Order, data_digest
from posttrain.trainer.parts import Parts
from posttrain.trainer.progress import ProgressReport
from posttrain.trainer.rows import read_rows
from posttrain.trainer.trainer import Job

REFERENCE_ROWS = 256


class PreferenceJob(Job):
    """The policy, its order of the data, and the log-probabilities that the reference gives to whole completions.

    The reference is the policy before its first step. So its log-probabilities are taken from the policy's own model,
    once, before a checkpoint is loaded, and there is never a second model in memory.
    """

    def __init__(self, context: Context, parts: Parts) -> None:
        self.context, self.parts = context, parts
        self.settings: Offline = context.config.run
        folder = context.inputs["sft"] / "model"
        self.forward = Forward(load_tokenizer(folder).pad_id, self.settings.microbatch_tokens, context.device)
        model = load_causal_lm(folder, context.config.model, context.device)
        self.actor = Actor(model, self.settings, self.forward, context.seed)
        self.learners = {"actor": self.actor.learner}
        budgeted = self.settings.kl_budget is not None
        self.probe = Probe(context, self.settings, self.actor) if budgeted else None

    def step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step; where there is a KL budget, now and then the distance from the SFT model."""
        metrics, tokens = self.train_step(step)
        if self.probe is not None and step % self.settings.kl_probe.every == 0:
            metrics["rollout/kl"] = self.probe.distance()
            self.ended = over_budget(self.context, step, metrics["rollout/kl"], self.settings.kl_budget)
        return metrics, tokens

    @abstractmethod
    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step: its metrics, and the number of tokens that it worked on."""

    def rows_of(self, table: str, completions: Sequence[str]) -> list[dict[str, Any]]:
        """Training rows of `pairs` or `labels`, made by `rank` or given in the data, whichever the run names."""
        source = "preferences" if self.settings.preferences == "ranked" else "data"
        return read_rows(self.context.inputs[source] / f"{table}.parquet", "train", completions, self.actor.model)

    def begin(self, total: int, rows: Sequence[Row]) -> None:
        """Sets up the order of `total` samples, and keeps the work of frozen layers for all `rows`."""
        self.order = Order(self.context.seed, total, self.settings.minibatch)
        self.all_rows, self.data = rows, data_digest(rows)
        model = self.actor.model
        self.forward = keep_frozen(self.context, self.forward, model, self.actor.frozen_layers, rows)
        self.actor.forward = self.forward

    def reference_sums(self) -> Tensor:
        """The reference's log-probability of each whole completion that `begin` was given, [N], nats."""
        reference = Reference(self.actor.model, self.forward)
        return reference_log_probs(self.context, reference, self.all_rows, self.data)


def reference_log_probs(context: Context, reference: Reference, rows: Sequence[Row], data: str) -> Tensor:
    """Log-probability of each whole completion under the reference, [N] float32, nats.

    Computed once: kept in the state folder under a digest of the rows, the model and its tokenizer, in parts, so that a
    killed stage goes on with the part that it was at.
    """
    key = hashlib.sha256(f"{data} {model_digest(context.inputs['sft'])}".encode()).hexdigest()[:16]
    parts = [rows[i : i + REFERENCE_ROWS] for i in range(0, len(rows), REFERENCE_ROWS)]
    with ProgressReport(context.log, "reference", len(parts), "batches") as progress:

        def work(number: int) -> list[dict[str, Any]]:
            sums = reference.log_probs(parts[number]).sum(-1)
            progress.advance(number + 1)
            return [{"log_prob": value} for value in sums.tolist()]

        def resumed(number: int) -> None:
            context.log.info("resumed at batch %d of the reference's log-probabilities", number)

        found = Shards(context.state / f"reference-{key}").run(len(parts), work, context.interrupted, resumed)
    return torch.tensor([row["log_prob"] for row in found], dtype=torch.float32, device=context.device)


def model_digest(stage: Path) -> str:
    """sha256 of the manifest of the stage folder that holds `model/`: it lists the digests of weights and tokenizer."""
    return hashlib.sha256((stage / "manifest.json").read_bytes()).hexdigest()
