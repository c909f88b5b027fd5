"""Our side: the stages themselves, from their inputs to the end of the last measured step.

usage: python -m bench.workers.ours TASK.json
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from posttrain.runtime.imports import without_scipy
from posttrain.runtime.threads import apply_threads, set_thread_environment

set_thread_environment(1)
without_scipy()

import torch  # noqa: E402
import transformers  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

import posttrain  # noqa: E402
from bench.meter import FinishedError, Meter, read_task, write_result  # noqa: E402
from bench.work import ONLINE, Work  # noqa: E402
from posttrain.config.schema import SFT, Model, RewardModel, Run  # noqa: E402
from posttrain.roles.reference import Reference  # noqa: E402
from posttrain.roles.reward_model import RewardModel as Judge  # noqa: E402
from posttrain.runtime.seeds import deterministic, seed_all  # noqa: E402
from posttrain.stages import post_train, reward_model, sft  # noqa: E402

FOREVER = 1_000_000


@dataclass
class MeterTracker:
    """Takes the metrics of each step, and the time at which they came."""

    meter: Meter
    work: Work

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Ends the stage after the last step that is measured."""
        tokens = metrics["perf/tokens_per_second"] * metrics["perf/step_seconds"]
        if self.work.method in ONLINE:
            tokens = metrics["rollout/length"] * self.work.rows
        elif self.work.method == "kto":
            tokens = self.work.rows * (self.work.prompt + self.work.completion)
        self.meter.end_step(tokens, metrics.get("train/loss"))
        if step == self.work.total_steps:
            raise FinishedError

    def summary(self, values: dict[str, float]) -> None:
        """What comes after the last step; none does here."""


def settings_of(work: Work) -> dict[str, Any]:
    """The section of the configuration that a user would write."""
    found: dict[str, Any] = {
        "steps": work.total_steps,
        "learning_rate": 1e-5,
        "minibatch": work.rows,
        "checkpoint_every": FOREVER,
        **work.ours,
    }
    if work.lora:
        found["lora"] = {"rank": 8, "alpha": 16}
    if work.method in ("dpo", "kto"):
        found["preferences"] = "data"
    if work.method in ONLINE:
        found.update(
            prompts_per_step=work.rows // work.group,
            samples_per_prompt=work.group,
            max_new_tokens=work.completion,
            epochs=work.epochs,
            kl_coef=work.kl,
        )
    if work.method == "grpo":
        found["aggregation"] = "token-mean"
    if work.shared_trunk:
        found["shared_trunk"] = True
    return found


def stage_of(work: Work, tracker: MeterTracker, inputs: Path, models: Path, place: Path) -> Any:
    """What the stage's body sees in place of the runner's stage."""
    settings = settings_of(work)
    config: dict[str, Any] = {"model": Model(base="of the bench")}
    if work.method == "sft":
        config["sft"] = SFT(**settings)
    elif work.method == "reward_model":
        config["reward_model"] = RewardModel(**settings)
    else:
        config["run"] = TypeAdapter(Run).validate_python({"method": work.method, **settings})
    for name in ("out", "state"):
        (place / name).mkdir(parents=True)
    policy = models / "policy"
    return SimpleNamespace(
        name=work.name,
        run_name=None,
        config=SimpleNamespace(**config),
        inputs={"data": inputs, "model": policy, "sft": policy, "reward_model": models / "judge"},
        out=place / "out",
        state=place / "state",
        seed=0,
        device="cpu",
        log=logging.getLogger("posttrain"),
        tracker=tracker,
        interrupted=lambda: False,
    )


@contextmanager
def python_reward() -> Iterator[None]:
    """In place of the reward model's scores: the share of one token in each completion, as on TRL's side."""

    def score(_: Judge, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> torch.Tensor:
        return torch.tensor([sum(token % 7 == 0 for token in completion) / 8 for _, completion in rows])

    with mock.patch.object(Judge, "score", score):
        yield


@contextmanager
def timed_reference(meter: Meter) -> Iterator[None]:
    """Counts the CPU time of all that a reference is asked, as done once."""
    whole = Reference.log_probs

    def timed(self: Reference, *args: Any, **kwargs: Any) -> Any:
        with meter.one_off("reference"):
            return whole(self, *args, **kwargs)

    with mock.patch.object(Reference, "log_probs", timed):
        yield


def around(work: Work, meter: Meter) -> AbstractContextManager[None]:
    """What this row changes in the stage."""
    if work.method in ONLINE:
        return nullcontext() if work.judge else python_reward()
    return timed_reference(meter)


def body_of(work: Work) -> Callable[[Any], None]:
    """The stage of this row."""
    bodies: dict[str, Any] = {"sft": sft.run, "reward_model": reward_model.run}
    return bodies.get(work.method, post_train.run)


def run(task: Mapping[str, Any], tracker: type[MeterTracker]) -> dict[str, Any]:
    """Runs the stage of a task up to the last measured step."""
    work = Work(**task["work"])
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    apply_threads(1)
    deterministic("cpu")
    seed_all(0)
    meter = Meter()
    stage = stage_of(work, tracker(meter, work), Path(task["data"]), Path(task["models"]), Path(task["place"]))
    with around(work, meter), suppress(FinishedError):
        body_of(work)(stage)
    versions = {
        "posttrain": posttrain.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return meter.result(work.warmup, versions)


def main() -> None:
    """One process of the bench."""
    task = read_task()
    write_result(task, run(task, MeterTracker))


if __name__ == "__main__":
    main()
