"""How the models of an evaluation read the completions: what their first layers have in common is computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from posttrain.data.tokenizer import load_tokenizer
from posttrain.evaluation.sampling import ids
from posttrain.model.frozen import FrozenLayers
from posttrain.model.layers import layer_digests
from posttrain.model.load import load_causal_lm, load_reward_module
from posttrain.roles.batches import Forward
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.trainer.frozen import keep_frozen

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

_SCORE_TOKENS = 8192  # of one forward pass, padding included


class Scoring:
    """The models that score `rows`, completions of the model in `policy`; each is loaded when it is asked for.

    Where only the last layers were trained, policy and reward model begin with the same layers. What these make of
    the rows is kept, and recalled for each model that has them too.
    """

    def __init__(self, stage: Stage, policy: Path, rows: Sequence[dict[str, Any]]) -> None:
        self._stage, self._policy, self._rows = stage, policy, rows
        pad_id = load_tokenizer(stage.inputs["sft"] / "model").pad_id
        self._forward = Forward(pad_id, _SCORE_TOKENS, stage.device)

    def language_model(self, folder: Path, temperature: float) -> Reference:
        """The model in `folder`, to ask for log-probabilities."""
        model = load_causal_lm(folder, self._stage.config.model, self._stage.device)
        return Reference(model, dataclasses.replace(self._forward, temperature=temperature, frozen=self._kept(model)))

    def reward_model(self) -> RewardModel:
        """The reward model."""
        module = self._judge()
        return RewardModel(module, dataclasses.replace(self._forward, frozen=self._kept(module)))

    def _judge(self) -> Any:
        folder = self._stage.inputs["reward_model"] / "model"
        return load_reward_module(folder, self._stage.config.model, self._stage.device)

    def _kept(self, module: nn.Module) -> FrozenLayers | None:
        depth, digest, frozen = self._common
        return frozen if depth and layer_digests(module)[depth - 1 : depth] == [digest] else None

    @cached_property
    def _common(self) -> tuple[int, str, FrozenLayers | None]:
        """How many first layers policy and reward model share, their digest, and what they make of all rows."""
        theirs = layer_digests(self._judge())
        policy = load_causal_lm(self._policy, self._stage.config.model, self._stage.device)
        ours = layer_digests(policy)
        depth = sum(a == b for a, b in zip(ours, theirs, strict=False))
        if depth == 0:
            return 0, "", None
        frozen = keep_frozen(self._stage, self._forward, policy, depth, ids(self._rows)).frozen
        assert frozen is not None
        frozen.let_go()
        return depth, ours[depth - 1], frozen
