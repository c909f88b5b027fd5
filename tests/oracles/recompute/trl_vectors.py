"""Vectors of TRL's trainers: their own loss methods, called on float64 toy models with ragged completions.

Run it in an environment of its own (trl.txt) with `--write` or without, see vectors.py.
"""

from __future__ import annotations

import math
import warnings

import datasets
import torch
import trl
from trl_offline import cpo, dpo, kto, orpo, reward, sft
from trl_online import grpo, grpo_advantages, rloo, rloo_advantages
from vectors import main

MIXED = [True, False, True, True, False, False]
SCORES = [1.0, 0.25, -0.5, 1.0, 2.0, 0.0, 0.0, -3.0]
FLAT = [*SCORES[:4], 0.3, 0.3, 0.3, 0.3]
HOLES = [1.0, math.nan, -0.5, 1.0, math.nan, 0.0, math.nan, math.nan]
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    main(
        "trl.json",
        {
            "peer": "trl",
            "version": trl.__version__,
            "torch": torch.__version__.partition("+")[0],
            "sft": [sft(0, 1), sft(1, 3)],
            "reward": [reward(0, False, None), reward(1, True, None), reward(2, False, 0.01), reward(3, True, 0.1)],
            "pairs": [
                dpo(0, loss_type="sigmoid", beta=0.1),
                dpo(1, loss_type="sigmoid", beta=0.7),
                dpo(2, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.3], beta=0.1),
                dpo(3, loss_type="robust", beta=0.3, label_smoothing=0.1),
                dpo(4, loss_type="ipo", beta=0.1),
                dpo(5, loss_type="hinge", beta=0.9),
                dpo(6, loss_type="sigmoid_norm", beta=2.0),
                dpo(7, loss_type="aot_unpaired", beta=0.3, label_smoothing=0.1, pairs=1),
                cpo(8, loss_type="sigmoid", beta=0.1, label_smoothing=0.2, cpo_alpha=1.0),
                cpo(9, loss_type="sigmoid", beta=0.3, cpo_alpha=0.5),
                cpo(10, loss_type="hinge", beta=0.2, cpo_alpha=0.0),
                cpo(11, loss_type="ipo", beta=0.5, cpo_alpha=0.0),
                cpo(12, loss_type="simpo", beta=2.0, simpo_gamma=0.5, cpo_alpha=0.0),
                cpo(13, loss_type="simpo", beta=2.5, simpo_gamma=1.375, cpo_alpha=0.2),
                orpo(14, beta=0.1),
                orpo(15, beta=1.5),
            ],
            "bco_pair": [dpo(16, loss_type="bco_pair", beta=0.4)],
            "kto": [
                kto(0, MIXED, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0),
                kto(4, MIXED, beta=0.5, desirable_weight=1.33, undesirable_weight=0.8),
                kto(7, [True] * 3, beta=0.3, desirable_weight=1.0, undesirable_weight=1.0),
                kto(9, [False] * 3, beta=0.3, desirable_weight=1.0, undesirable_weight=2.0),
            ],
            "grpo": [
                grpo(0, loss_type="grpo", **CLIP),
                grpo(1, loss_type="grpo", beta=0.3, **CLIP),
                grpo(2, loss_type="dapo", beta=0.3, **CLIP),
                grpo(3, loss_type="bnpo", epsilon=0.1),
                grpo(4, loss_type="dr_grpo", beta=0.1, epsilon=0.2),
                grpo(5, loss_type="luspo", importance_sampling_level="sequence", epsilon=0.02),
                grpo(6, loss_type="cispo", epsilon_high=1.5),
                grpo(7, loss_type="grpo", noise=1.5, delta=2.0, **CLIP),
                grpo(8, loss_type="dapo", noise=1.5, delta=1.6, beta=0.2, **CLIP),
                grpo(9, loss_type="grpo", importance_sampling_level="sequence", epsilon=0.02, epsilon_high=0.04),
            ],
            "rloo": [rloo(0, epsilon=0.2), rloo(1, **CLIP)],
            "grpo_advantages": [
                grpo_advantages(0, SCORES, scale_rewards="group"),
                grpo_advantages(1, HOLES, scale_rewards="group"),
                grpo_advantages(2, FLAT, scale_rewards="group"),
                grpo_advantages(3, SCORES, scale_rewards="none"),
            ],
            "rloo_advantages": [rloo_advantages(0, SCORES, 0.0), rloo_advantages(1, SCORES, 0.05)],
        },
    )
