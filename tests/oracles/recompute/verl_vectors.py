"""Vectors of verl's `trainer/ppo/core_algos`: its functions on the fixed float64 inputs that are stored beside them.

Run it in an environment of its own (verl.txt) with `--write` or without, see vectors.py. The inputs are eight ragged
rows of six tokens; `hole` is a mask with gaps in two rows, as a tool's answer leaves them; `far` is a policy so far
from `old` that all bounds of the policy losses, the dual clip's included, are passed. `group` has two groups of four,
`uneven` groups of three and five whose rows are mixed, `single` one group of seven and one of one.
"""

from __future__ import annotations

import json
from typing import Any

import numpy
import torch
import verl
from torch import Tensor
from vectors import FOLDER, main
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

CLIP_LOW, CLIP_HIGH, DUAL_CLIP, VALUE_CLIP, KL_COEF, GAMMA, LONGEST = 0.2, 0.28, 3.0, 0.2, 0.05, 0.9, 16
CASES = {"mask": ("mask", "group"), "hole": ("hole", "uneven"), "single": ("mask", "single")}


def with_gradient(value: Tensor, leaf: Tensor) -> dict[str, Any]:
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return {"value": value.tolist(), "gradient": gradient.tolist()}


def gae(x: dict[str, Tensor]) -> dict[str, Any]:
    result = {}
    for name, gamma, lam in [("mask", 1.0, 0.95), ("hole", 0.99, 1.0)]:
        found = core_algos.compute_gae_advantage_return(x["kl_rew"], x["values"], x[name], gamma, lam)
        result[name] = {"whitened": found[0].tolist(), "returns": found[1].tolist(), "gamma": gamma, "lam": lam}
    return result


def advantages(rewards: Tensor, mask: Tensor, groups: Tensor, baselines: Tensor) -> dict[str, Any]:
    """Every estimator without a critic; verl adds rewards at masked tokens to a row's score, so none stand there."""
    index, config = groups.numpy().astype(numpy.int64), AlgoConfig(gamma=GAMMA)

    def of(function: Any, **settings: Any) -> Any:
        return function((rewards * mask).clone(), response_mask=mask, **settings)[0].tolist()

    return {
        "grpo": of(core_algos.compute_grpo_outcome_advantage, index=index),
        "dr_grpo": of(core_algos.compute_grpo_outcome_advantage, index=index, norm_adv_by_std_in_grpo=False),
        "grpo_vectorized": of(core_algos.compute_grpo_vectorized_outcome_advantage, index=index),
        "rloo": of(core_algos.compute_rloo_outcome_advantage, index=index),
        "rloo_vectorized": of(core_algos.compute_rloo_vectorized_outcome_advantage, index=index),
        "opo": of(core_algos.compute_opo_outcome_advantage, index=index),
        "reinforce++": of(core_algos.compute_reinforce_plus_plus_outcome_advantage, config=config),
        "reinforce++_baseline": of(core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage, index=index),
        "remax": of(core_algos.compute_remax_outcome_advantage, reward_baselines=baselines),
    }


def kl(x: dict[str, Tensor]) -> dict[str, Any]:
    policy = x["logp"].clone().requires_grad_()
    names = ["k1", "k2", "k3", "k3+"]
    return {name: with_gradient(core_algos.kl_penalty(policy, x["ref"], name), policy) for name in names}


def adaptive_kl() -> list[dict[str, float]]:
    """The controller's coefficient after each of five steps, the target met, missed a little and by far."""
    controller = core_algos.AdaptiveKLController(init_kl_coef=0.2, target_kl=6.0, horizon=10000)
    steps = []
    for found, samples in [(6.0, 256), (6.5, 256), (60.0, 512), (5.1, 64), (-1.0, 1024)]:
        controller.update(found, samples)
        steps.append({"kl": found, "samples": samples, "coef": float(controller.value)})
    return steps


def aggregates(values: Tensor, mask: Tensor) -> dict[str, float]:
    plain = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]
    result = {mode: core_algos.agg_loss(values, mask, mode).item() for mode in plain}
    scaled = core_algos.agg_loss(values, mask, "seq-mean-token-sum-norm", loss_scale_factor=LONGEST)
    return {**result, "seq-mean-token-sum-norm": scaled.item()}


def policy_losses(x: dict[str, Tensor], mask: Tensor) -> dict[str, Any]:
    """Each loss near the old policy and far from it, token-mean except where verl has another default."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=CLIP_LOW,
        clip_ratio_high=CLIP_HIGH,
        clip_ratio_c=DUAL_CLIP,
    )
    functions = {
        "clipped": core_algos.compute_policy_loss_vanilla,
        "gspo": core_algos.compute_policy_loss_gspo,
        "cispo": core_algos.compute_policy_loss_cispo,
        "reinforce": core_algos.compute_policy_loss_gpg,
    }
    result = {}
    for name, function in functions.items():
        for policy in ["logp", "far"]:
            leaf = x[policy].clone().requires_grad_()
            loss, metrics = function(x["old"], leaf, x["adv"], mask, config=config)
            result[f"{name}.{policy}"] = with_gradient(loss, leaf) | metrics
    return result


def value_loss(x: dict[str, Tensor]) -> dict[str, Any]:
    values = x["vpred"].clone().requires_grad_()
    loss, fraction = core_algos.compute_value_loss(values, x["ret"], x["values"], x["mask"], VALUE_CLIP)
    return with_gradient(loss, values) | {"clipfrac": fraction.item()}


def outputs(x: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "gae": gae(x),
        "advantages": {
            name: advantages(x["kl_rew"], x[mask], x[group], x["baseline"]) for name, (mask, group) in CASES.items()
        },
        "compute_rewards": core_algos.compute_rewards(x["rew"], x["old"], x["ref"], KL_COEF).tolist(),
        "kl_penalty": kl(x),
        "adaptive_kl": adaptive_kl(),
        "agg_loss": {name: aggregates(x["adv"], x[name]) for name in ["mask", "hole"]},
        "policy": {name: policy_losses(x, x[name]) for name in ["mask", "hole"]},
        "value": value_loss(x),
    }


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
            "source": "verl.trainer.ppo.core_algos in float64",
            "settings": {
                "clip_low": CLIP_LOW,
                "clip_high": CLIP_HIGH,
                "dual_clip": DUAL_CLIP,
                "value_clip": VALUE_CLIP,
                "kl_coef": KL_COEF,
                "gamma": GAMMA,
                "longest": LONGEST,
            },
            "inputs": inputs,
            "outputs": outputs(tensors),
        },
    )
