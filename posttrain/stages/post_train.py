"""One run of `runs:`, by the method that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.algorithms.registry import METHODS, resolve
from posttrain.model.export import export_model
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage


def run(stage: Stage) -> None:
    """Builds the method's job from its parts, trains, exports the policy."""
    settings = stage.config.run
    method = METHODS[settings.method]
    parts = {name: resolve(entry) for name, entry in method.parts.items()}
    job = resolve(method.trainer)(stage, parts)
    Trainer(stage, settings, job).run()
    export_model(job.actor.model, stage.inputs["sft"] / "model", stage.out / "model")
