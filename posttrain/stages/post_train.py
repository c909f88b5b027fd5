"""One run of `runs:`, by the method that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.config.registry import entries, resolve
from posttrain.model.export import export_model
from posttrain.trainer.parts import parts_of
from posttrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage


def run(stage: Stage) -> None:
    """Builds the method's job from its parts, trains, exports the policy."""
    settings = stage.config.run
    job = resolve(entries(settings)["job"])(stage, parts_of(settings, stage.inputs))
    Trainer(stage, settings, job).run()
    export_model(job.actor.model, stage.inputs["sft"] / "model", stage.out / "model")
