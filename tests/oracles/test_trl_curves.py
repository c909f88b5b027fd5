"""Whole trainings against TRL's: 50 steps each of SFT, reward model, DPO and KTO, loss by loss.

The same weights, rows, order of rows and settings (recompute/curves.py), AdamW, float32; TRL's losses are stored
(recompute/trl_curves.py made them with its trainers).

Known differences, each undone where the settings or the data are made:
- TRL shuffles by its own random numbers: its rows stand in our order, and `train_sampling_strategy` is `sequential`.
- TRL's KTO estimates the KL from completions rotated within a batch, each prompt with the completion of the row before
  it; ours from each prompt with the completion of the next row of the whole table. TRL gets our pairs.
- Warm-up of transformers begins with a rate of 0; ours reaches the peak at step `warmup_steps`. There is none here.
- transformers trains in bfloat16 with checkpoints of activations unless it is told otherwise.
- transformers decays all but biases and norms, ours all matrices: the same parameters of a Llama. There is none here.
The rest is the same: AdamW's betas 0.9 and 0.999 and its epsilon 1e-8, the clipping by the norm of all gradients, the
linear rate (the peak at step 1, zero one step after the last), and the mean over a minibatch's tokens or rows.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.our_curves import CSV, curve
from tests.oracles.recompute.curves import SEED, STEPS
from tests.oracles.stored import vectors

STORED = vectors("trl_curves")
LOSSES: dict[str, list[float]] = STORED["losses"]
# Measured: 5.2e-6 for SFT, under 5e-7 for the others. Other processors have other kernels, whose roundings add up.
MOST = 1e-4


def deviation(ours: list[float], theirs: list[float]) -> float:
    """The largest absolute difference of two curves."""
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def test_version() -> None:
    assert (STORED["peer"], STORED["version"]) == ("trl", "1.16.0")
    assert {kind: len(losses) for kind, losses in LOSSES.items()} == dict.fromkeys(
        ("sft", "reward_model", "dpo", "kto"), STEPS
    )


@pytest.mark.parametrize("kind", LOSSES)
def test_the_curves_are_the_same(kind: str, tmp_path: Path) -> None:
    assert deviation(curve(kind, tmp_path), LOSSES[kind]) < MOST


@pytest.mark.parametrize("kind", LOSSES)
def test_the_model_learns(kind: str) -> None:
    """A curve that stays where it was would say little."""
    losses = LOSSES[kind]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("sft", {"seed": SEED + 1}),
        ("sft", {"schedule": "constant"}),
        ("sft", {"max_grad_norm": 2.0}),
        ("reward_model", {"weight_decay": 0.1}),
        ("reward_model", {"learning_rate": 2.02e-3}),
        ("dpo", {"beta": 0.21}),
        ("dpo", {"label_smoothing": 0.01}),
        ("kto", {"beta": 0.21}),
        ("kto", {"undesirable_weight": 1.51}),
    ],
)
def test_a_wrong_setting_shows(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    """Within the first steps already, and far over what is allowed."""
    first = 12
    assert deviation(curve(kind, tmp_path, first=first, **changed), LOSSES[kind][:first]) > 10 * MOST


def test_the_picture_shows_these_curves() -> None:
    """docs/results/curves.csv, which the picture is drawn from, has TRL's losses, and ours as they were then."""
    with CSV.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for kind, losses in LOSSES.items():
        shown = [row for row in rows if row["training"] == kind]
        assert [float(row["trl"]) for row in shown] == losses
        assert deviation([float(row["posttrain"]) for row in shown], losses) < MOST
