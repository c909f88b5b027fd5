"""The step loop: run a step, log it, keep a checkpoint, stop when asked, continue where it stopped."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from posttrain.checkpoint.store import Checkpoints
from posttrain.config.sections import Training
from posttrain.errors import Interrupted, UserError
from posttrain.roles.learner import Learner, Metrics
from posttrain.runtime.seeds import derive, seed_all
from posttrain.trainer.context import Context
from posttrain.trainer.order import Order
from posttrain.trainer.progress import ProgressReport


class Job(ABC):
    """What one step is. The trainer keeps the state of its learners, its place in the data and its own counters."""

    learners: Mapping[str, Learner]
    """Everything that trains, by role."""
    order: Order
    data: str
    """Digest of the rows that `order` counts."""
    ended: bool = False
    """Set by a step after which no other is to come: a KL budget is spent."""

    @abstractmethod
    def step(self, step: int) -> tuple[Metrics, int]:
        """Does step `step` (the first is 1); returns its metrics and the number of tokens it worked on."""

    def counters(self) -> dict[str, Any]:
        """Whatever else decides the coming steps, as JSON values."""
        return {}

    def restored(self, counters: Mapping[str, Any]) -> None:
        """Takes back what `counters()` gave; the learners already hold the checkpoint's state."""
        assert not counters, "a job that has counters restores them"


class Trainer:
    """Runs `settings.steps` steps of a job, or fewer where it ends itself; some may be behind us, in a checkpoint.

    The random state of each step is set from the seed and the step's number. So a run that was killed and started again
    gives the bytes of one that was not.
    """

    def __init__(self, context: Context, settings: Training, job: Job) -> None:
        self._context, self._settings, self._job = context, settings, job
        self._checkpoints = Checkpoints(context.state / "checkpoints")

    def run(self) -> None:
        """Trains to the last step, or to the one that ends the job; a checkpoint of it exists when this returns.

        Raises:
            Interrupted: the stage was asked to stop; a checkpoint of the last whole step exists.
            UserError: the checkpoint found belongs to other data or another model, or training diverged.
        """
        done = self._resume()
        title = self._context.run_name or self._context.name
        with ProgressReport(self._context.log, title, self._settings.steps, "steps", done) as progress:
            for step in range(done + 1, self._settings.steps + 1):
                if self._job.ended:
                    break
                metrics = self._step(step)
                self._context.tracker.log(step, metrics)
                progress.advance(step, _note(metrics))
                stop = self._context.interrupted()
                last = step == self._settings.steps or self._job.ended
                if stop or last or step % self._settings.checkpoint_every == 0:
                    self._checkpoints.save(step, self._tensors(), self._counters(step))
                if stop:
                    raise Interrupted

    def _step(self, step: int) -> Metrics:
        seed_all(derive(self._context.seed, "step", step))
        started = time.perf_counter()
        metrics, tokens = self._job.step(step)
        seconds = time.perf_counter() - started
        return {**metrics, "perf/step_seconds": seconds, "perf/tokens_per_second": tokens / seconds}

    def _resume(self) -> int:
        saved = self._checkpoints.latest()
        if saved is None:
            return 0
        own, counters, tensors = self._job.counters(), self._counters(saved.step), self._tensors()
        _same_keys("counter", saved.counters, counters)
        _same_keys("tensor", saved.tensors, tensors)
        for name in counters.keys() - own.keys() - {"ended"}:
            if saved.counters[name] != counters[name]:
                raise UserError(
                    f"{self._context.state}: the checkpoint of step {saved.step} has {name} {saved.counters[name]!r}, "
                    f"this run {counters[name]!r}; delete the folder to train from the start"
                )
        for role, learner in self._job.learners.items():
            learner.load(_unprefixed(role, saved.tensors))
        self._job.restored({name: saved.counters[name] for name in own})
        self._job.ended = saved.counters["ended"]
        self._context.log.info("resumed at step %d", saved.step)
        return saved.step

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{role}/{name}": tensor
            for role, learner in self._job.learners.items()
            for name, tensor in learner.tensors().items()
        }

    def _counters(self, step: int) -> dict[str, Any]:
        place = self._job.order.position(step)
        whole = {"ended": self._job.ended, "data": self._job.data, "seed": self._context.seed}
        return {**self._job.counters(), **place, **whole}


def _note(metrics: Metrics) -> str:
    """What a person watches: the reward where there is one (a policy loss says nothing), else the loss."""
    if "rollout/reward" in metrics:
        away = f", KL {metrics['rollout/kl']:.3g}" if "rollout/kl" in metrics else ""
        return f"reward {metrics['rollout/reward']:.4g}{away}"
    return f"loss {metrics['train/loss']:.4g}"


def _unprefixed(role: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{role}/"): t for name, t in tensors.items() if name.startswith(f"{role}/")}


def _same_keys(kind: str, saved: Iterable[str], wanted: Iterable[str]) -> None:
    for what, names in (("no", set(wanted) - set(saved)), ("an unknown", set(saved) - set(wanted))):
        if names:
            raise UserError(
                f"the checkpoint has {what} {kind} {min(names)!r}: it was written by another model or version; "
                "delete the .state folder of this stage to train from the start"
            )
