"""Killed with SIGKILL and started again: the outputs are the bytes of an undisturbed run."""

import signal

import pytest
import torch

from posttrain.checkpoint.store import Checkpoints
from posttrain.config.schema import Model
from posttrain.errors import Interrupted, UserError
from posttrain.roles.reference import Reference
from tests.trainer.harness import digests, make_stage, run_in_process, run_stage

KINDS = ("sft", "reward_model", "dpo", "kto", "ppo", "grpo")


@pytest.mark.parametrize("kind", [*KINDS, "sample", "rank"])
def test_kill_and_restart_give_the_same_bytes(kind, world, tmp_path):
    assert run_in_process(kind, world, tmp_path / "whole") == 0
    assert run_in_process(kind, world, tmp_path / "twice", kill_at=8) == -9
    assert not digests(tmp_path / "twice" / "out"), "killed before it exported"
    assert run_in_process(kind, world, tmp_path / "twice") == 0
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")
    assert digests(tmp_path / "whole" / "out")
    log = (tmp_path / "twice" / "log").read_text()
    assert ("resumed at step 6" if kind in KINDS else "resumed at step 7") in log
    done, whole = (len((tmp_path / n / "attempts.log").read_text().splitlines()) for n in ("twice", "whole"))
    assert whole <= done < 1.3 * whole


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bco", {}),
        ("dapo", {"most_batches": 2}),
        ("remax", {}),
        ("online_dpo", {}),
        ("ppo", {"kl_target": 0.01, "shared_trunk": True, "entropy_coef": 0.01}),
    ],
)
def test_what_other_methods_keep_survives_a_kill(kind, settings, world, tmp_path):
    """BCO's shift, further prompts, greedy samples, the KL coefficient, and whether the generator's numbers serve."""
    assert run_in_process(kind, world, tmp_path / "whole", **settings) == 0
    assert run_in_process(kind, world, tmp_path / "twice", kill_at=8, **settings) == -9
    assert run_in_process(kind, world, tmp_path / "twice", **settings) == 0
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_the_step_under_way(signum, world, tmp_path):
    assert run_in_process("dpo", world, tmp_path, kill_at=5, kill_with=signum) == 128 + signum
    assert run_in_process("dpo", world, tmp_path) == 0
    steps = (tmp_path / "attempts.log").read_text().split("\n")[:-1]
    assert steps == [f"step {step}" for step in range(1, 11)], "no step is done twice"
    assert "resumed at step 5" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_two_runs_are_equal_byte_for_byte_and_another_seed_is_not(kind, world, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_stage(make_stage(kind, world, tmp_path / name, seed=seed, steps=3))
    a, b, c = (digests(tmp_path / name / "out") for name in "abc")
    assert a == b
    assert a["model/model.safetensors"] != c["model/model.safetensors"]


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_asked_to_stop_it_keeps_the_step_that_it_was_at(kind, world, tmp_path):
    run_stage(make_stage(kind, world, tmp_path / "whole"))
    stage = make_stage(kind, world, tmp_path / "stopped")
    stage.interrupted = lambda: len(stage.tracker.steps) == 4
    with pytest.raises(Interrupted):
        run_stage(stage)
    saved = Checkpoints(stage.state / "checkpoints").latest()
    assert saved is not None and saved.step == 4, "no multiple of checkpoint_every"
    rest = run_stage(make_stage(kind, world, tmp_path / "stopped"))
    assert sorted(rest.tracker.steps) == [5, 6, 7, 8, 9, 10]
    assert digests(tmp_path / "stopped" / "out") == digests(tmp_path / "whole" / "out")


def stopped(kind, world, tmp_path):
    stage = make_stage(kind, world, tmp_path)
    stage.interrupted = lambda: bool(stage.tracker.steps)
    with pytest.raises(Interrupted):
        run_stage(stage)
    return Checkpoints(stage.state / "checkpoints")


def test_another_seed_or_other_data_do_not_continue_a_checkpoint(world, tmp_path, monkeypatch):
    stopped("sft", world, tmp_path)
    with pytest.raises(UserError, match="seed"):
        run_stage(make_stage("sft", world, tmp_path, seed=1))
    monkeypatch.setattr("posttrain.trainer.supervised.data_digest", lambda rows: "other")
    with pytest.raises(UserError, match=r"data .*this run 'other'.*delete"):
        run_stage(make_stage("sft", world, tmp_path))


def test_missing_and_unknown_keys_are_errors(world, tmp_path):
    checkpoints = stopped("sft", world, tmp_path)
    saved = checkpoints.latest()
    assert saved is not None
    name = min(saved.tensors)
    for tensors, counters, fault in (
        ({k: v for k, v in saved.tensors.items() if k != name}, saved.counters, f"no tensor '{name}'"),
        ({**saved.tensors, "zebra": torch.zeros(1)}, saved.counters, "unknown tensor 'zebra'"),
        (saved.tensors, {**saved.counters, "zebra": 1}, "unknown counter 'zebra'"),
        (saved.tensors, {k: v for k, v in saved.counters.items() if k != "data"}, "no counter 'data'"),
    ):
        checkpoints.save(saved.step, tensors, counters)
        with pytest.raises(UserError, match=fault):
            run_stage(make_stage("sft", world, tmp_path))


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_the_reference_is_asked_once_however_often_the_run_starts(kind, world, tmp_path, monkeypatch):
    asked = []
    real = Reference.log_probs
    monkeypatch.setattr(Reference, "log_probs", lambda self, rows: asked.append(len(rows)) or real(self, rows))
    stopped(kind, world, tmp_path)
    first = sum(asked)
    run_stage(make_stage(kind, world, tmp_path))
    assert first == sum(asked) == (80 if kind == "dpo" else 160)


@pytest.mark.parametrize("kind", ["reward_model", "dpo", "kto", "ppo", "grpo"])
def test_frozen_layers_and_bfloat16_resume_to_the_same_bytes(kind, world, tmp_path):
    settings = {"train_layers": 1, "steps": 7 if kind != "reward_model" else 30}
    model = Model(base="a folder", dtype="bfloat16", generation_dtype="float32")
    kill = settings["steps"] - 2
    assert run_in_process(kind, world, tmp_path / "whole", model=model, **settings) == 0
    assert run_in_process(kind, world, tmp_path / "twice", kill_at=kill, model=model, **settings) == -9
    assert run_in_process(kind, world, tmp_path / "twice", model=model, **settings) == 0
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")
    log = (tmp_path / "twice" / "log").read_text()
    assert "resumed at step" in log
    assert log.count("frozen layers") == (2 if kind in ("reward_model", "dpo", "kto") else 0)


@pytest.mark.parametrize("kind", ["dpo", "kto", "ppo", "grpo"])
def test_a_kl_budget_ends_the_run_also_when_it_is_started_again(kind, world, tmp_path):
    probe = {"kl_probe": {"every": 2, "prompts": 8, "max_new_tokens": 6}} if kind in ("dpo", "kto") else {}
    settings = {"steps": 40, "learning_rate": 3e-3, "kl_budget": 0.3, **probe}
    whole = run_stage(make_stage(kind, world, tmp_path / "whole", **settings))
    distances = [m["rollout/kl"] for _, m in sorted(whole.tracker.steps.items()) if "rollout/kl" in m]
    assert len(whole.tracker.steps) < 40
    assert distances[-1] > 0.3
    assert all(distance <= 0.3 for distance in distances[:-1])
    again = run_stage(make_stage(kind, world, tmp_path / "whole", **settings))
    assert not again.tracker.steps, "it had ended"
    assert digests(tmp_path / "whole" / "out")
    free = run_stage(make_stage(kind, world, tmp_path / "free", **{**settings, "kl_budget": 1e9}))
    assert len(free.tracker.steps) == 40
