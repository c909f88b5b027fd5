"""Vectors of verl's `trainer/ppo/core_algos`: its functions on the fixed float64 inputs that are stored beside them.

Run it in an environment of its own (verl.txt) with `--write` or without, see vectors.py. The inputs are eight ragged
rows of six tokens; `hole` is a mask with gaps in two rows, as a tool's answer leaves them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy
import torch
import verl
from torch import Tensor
from vectors import FOLDER, main
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

CLIP_LOW, CLIP_HIGH, VALUE_CLIP, KL_COEF = 0.2, 0.28, 0.2, 0.05


def with_gradient(value: Tensor, leaf: Tensor) -> dict[str, Any]:
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return {"value": value.tolist(), "gradient": gradient.tolist()}


def outputs(x: dict[str, Tensor]) -> dict[str, Any]:
    mask, result = x["mask"], {}
    for name, token_mask, gamma, lam in [("gae", mask, 1.0, 0.95), ("gae_hole", x["hole"], 0.99, 1.0)]:
        advantages, returns = core_algos.compute_gae_advantage_return(x["kl_rew"], x["values"], token_mask, gamma, lam)
        result[name] = {"whitened": advantages.tolist(), "returns": returns.tolist(), "gamma": gamma, "lam": lam}
    groups = x["group"].numpy().astype(numpy.int64)
    for name, scale in [("grpo", True), ("grpo_unscaled", False)]:
        group = core_algos.compute_grpo_outcome_advantage(x["rew"].clone(), mask, groups, norm_adv_by_std_in_grpo=scale)
        result[name] = group[0].tolist()
    result["compute_rewards"] = core_algos.compute_rewards(x["rew"], x["old"], x["ref"], KL_COEF).tolist()
    policy = x["logp"].clone().requires_grad_()
    for name in ["k1", "k2", "k3"]:
        result[f"kl_penalty.{name}"] = with_gradient(core_algos.kl_penalty(policy, x["ref"], name), policy)
    result["kl_penalty.k3+"] = with_gradient(core_algos.kl_penalty(policy, x["ref"], "k3+"), policy)
    for mode in ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]:
        result[f"agg_loss.{mode}"] = core_algos.agg_loss(x["adv"], mask, mode).item()
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_low=CLIP_LOW, clip_ratio_high=CLIP_HIGH
    )
    loss, metrics = core_algos.compute_policy_loss_vanilla(
        x["old"], policy, x["adv"], mask, loss_agg_mode="token-mean", config=config
    )
    result["policy"] = with_gradient(loss, policy) | metrics
    values = x["vpred"].clone().requires_grad_()
    loss, fraction = core_algos.compute_value_loss(values, x["ret"], x["values"], mask, VALUE_CLIP)
    result["value"] = with_gradient(loss, values) | {"clipfrac": fraction.item()}
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    inputs = json.loads((FOLDER / "verl.json").read_text())["inputs"]
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in inputs.items()}
    main(
        "verl.json",
        {
            "peer": "verl",
            "version": verl.__version__,
            "torch": torch.__version__.partition("+")[0],
            "source": "verl.trainer.ppo.core_algos in float64; clip 0.2 / 0.28, dual clip 3, value clip 0.2, KL 0.05",
            "inputs": inputs,
            "outputs": outputs(tensors),
        },
    )
