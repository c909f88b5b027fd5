"""SFT on completions and on whole texts, and its noise (NEFTune)."""

import math

import pytest
import torch

from posttrain.algorithms.aggregate import aggregate
from posttrain.data.tables import read_table
from posttrain.model.batch import collate
from posttrain.model.noise import noisy_embeddings
from posttrain.roles.actor import Actor
from posttrain.runtime.seeds import derive
from posttrain.stages import sft
from posttrain.trainer import supervised
from tests.model.tiny import ARCHITECTURES, tiny_model
from tests.trainer.harness import digests, make_stage, run_in_process, run_stage
from tests.trainer.test_invariance import check_same, job_of, watch

__all__ = ["watch"]

ROW = ([1, 17, 33, 18], [40, 41, 42, 2])


def inputs_of(model, ids):
    return model.get_input_embeddings()(torch.tensor([ids]))


def trained_on(job, monkeypatch):
    """What the losses of step 1 were made of: the numbers that were averaged, and the count they were divided by."""
    values, counts = [], []

    def spy(losses, mask, mode, *, count):
        values.extend(losses[mask].tolist())
        counts.append(count)
        return aggregate(losses, mask, mode, count=count)

    monkeypatch.setattr(supervised, "aggregate", spy)
    job.step(1)
    (count,) = set(counts)
    return values, count


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_the_number_of_trained_tokens(loss_on, world, tmp_path, monkeypatch):
    """FIELD_RULES 3: those of the completion with its terminator; of a whole text, all that have one before them."""
    job = job_of("sft", world, tmp_path, 60, monkeypatch, loss_on=loss_on)
    rows = read_table(world / "data" / "sft.parquet").to_dict("records")
    chosen = [rows[i] for i in job.order.rows(1)]
    if loss_on == "completion":
        wanted = sum(len(row["completion_ids"]) for row in chosen)
    else:
        wanted = sum(len(row["prompt_ids"]) + len(row["completion_ids"]) - 1 for row in chosen)
    values, count = trained_on(job, monkeypatch)
    assert len(values) == count == wanted


def test_a_step_and_the_validation_on_whole_texts_are_those_of_a_language_model(world, tmp_path):
    """The loss and labels of transformers' own model, every text alone; the mean is over tokens."""
    stage = make_stage("sft", world, tmp_path, steps=1, loss_on="all", minibatch=40, learning_rate=1e-9)
    run_stage(stage)
    model = sft.load_causal_lm(world / "sft" / "model", stage.config.model, "cpu")
    table = read_table(world / "data" / "sft.parquet")
    for split, found in (("train", stage.metric("train/loss")[0]), ("validation", stage.tracker.final["eval/loss"])):
        total, tokens = 0.0, 0
        for row in table[table["split"] == split].to_dict("records"):
            ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
            with torch.no_grad():
                total += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
            tokens += ids.shape[1] - 1
        assert found == pytest.approx(total / tokens, rel=1e-4)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_noise_is_uniform_and_as_wide_as_the_rows_own_length_says(arch):
    model, alpha = tiny_model(arch, seed=0), 5.0
    batch = collate([ROW, ([1], [2])], pad_id=0)
    with torch.no_grad(), noisy_embeddings(model, batch, alpha, [7, 8]):
        noisy = model.get_input_embeddings()(batch.input_ids)
    noise = noisy - model.get_input_embeddings()(batch.input_ids).detach()
    width = model.config.hidden_size
    assert noise.shape == (2, 8, width)
    for line, length in ((0, 8), (1, 2)):
        own, most = noise[line, :length], alpha / math.sqrt(length * width)
        assert 0.9 * most < float(own.abs().max()) <= most * (1 + 1e-4)
        assert float(own.std()) == pytest.approx(most / math.sqrt(3), rel=0.15)
        assert float(own.mean()) == pytest.approx(0, abs=4 * most / math.sqrt(3 * own.numel()))
    assert not noise[1, 2:].any(), "padding is as it was"


def test_the_loss_of_a_noisy_step_by_hand(world, tmp_path, monkeypatch):
    """inputs_embeds of one text after the other, each with the noise that its place in the minibatch draws."""
    job = job_of("sft", world, tmp_path, 60, monkeypatch, neftune_alpha=30.0, loss_on="all")
    model, total, count = job.actor.model, 0.0, 0
    for number, index in enumerate(job.order.rows(3)):
        ids = [*job.rows[index][0], *job.rows[index][1]]
        embedded = inputs_of(model, ids)
        most = 30.0 / math.sqrt(embedded.numel())
        generator = torch.Generator().manual_seed(derive(0, "noise", 3, number))
        noise = (2 * torch.rand(embedded.shape[1:], generator=generator) - 1) * most
        with torch.no_grad():
            found = model(inputs_embeds=embedded + noise, labels=torch.tensor([ids])).loss
        total, count = total + float(found) * (len(ids) - 1), count + len(ids) - 1
    metrics, _ = job.step(3)
    assert metrics["train/loss"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("other", [{}, {"loss_on": "all"}, {"lora": {"rank": 4}}], ids=["completion", "all", "lora"])
def test_noise_does_not_depend_on_the_micro_batches(other, world, tmp_path, watch, monkeypatch):
    """FIELD_RULES 15, also where texts begin alike: in whole texts all do, and a prompt would be shared."""
    options = {**other, "neftune_alpha": 20.0}
    whole = watch(job_of("sft", world, tmp_path / "whole", 1_000_000, monkeypatch, **options))
    quiet = watch(job_of("sft", world, tmp_path / "quiet", 1_000_000, monkeypatch, **other))
    assert abs(whole.metrics["train/loss"] - quiet.metrics["train/loss"]) > 1e-3, "the noise must count"
    for budget in (1, 35, 90):
        check_same(whole, watch(job_of("sft", world, tmp_path / str(budget), budget, monkeypatch, **options)))


def test_every_place_of_every_step_has_noise_of_its_own(world, tmp_path, monkeypatch):
    job = job_of("sft", world, tmp_path, 1_000_000, monkeypatch, neftune_alpha=20.0)
    drawn = []

    def spy(model, batch, alpha, seeds):
        drawn.extend(seeds)
        return noisy_embeddings(model, batch, alpha, seeds)

    monkeypatch.setattr(supervised, "noisy_embeddings", spy)
    for step in (1, 2, 1):
        job.step(step)
    assert len(drawn) == 36 and len(set(drawn)) == 24
    assert drawn[:12] == drawn[24:]


def test_only_training_is_noisy(world, tmp_path, monkeypatch):
    loud, quiet = (
        job_of("sft", world, tmp_path / str(alpha), 60, monkeypatch, neftune_alpha=alpha) for alpha in (50.0, 0.0)
    )
    rows = loud.rows[:5]
    before = loud.evaluate(rows)
    assert before == quiet.evaluate(rows)
    state = {name: tensor.clone() for name, tensor in loud.actor.learner.tensors().items()}
    loud.step(1)
    loud.actor.learner.load(state)
    assert loud.evaluate(rows) == before
    with pytest.raises(RuntimeError), noisy_embeddings(loud.actor.model, collate(rows[:1], 0), 5.0, [1]):
        raise RuntimeError
    assert loud.evaluate(rows) == before, "a failed step leaves nothing behind"


def test_without_noise_a_step_is_the_actors_update_to_the_last_bit(world, tmp_path, monkeypatch):
    job, other = (job_of("sft", world, tmp_path / name, 60, monkeypatch, neftune_alpha=0.0) for name in ("a", "b"))
    monkeypatch.setattr(supervised, "noisy_embeddings", None)
    metrics, _ = job.step(1)
    units = [(other.rows[i],) for i in other.order.rows(1)]
    count = sum(len(completion) for ((_, completion),) in units)

    def loss(_, log_probs, mask):
        return aggregate(-log_probs, mask, "token-mean", count=count), {}

    plain = Actor.update(other.actor, units, loss, 1)
    assert metrics == {f"train/{name}": value for name, value in plain.items()}
    for ours, theirs in zip(job.actor.model.parameters(), other.actor.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_noisy_run_on_whole_texts_is_killed_and_resumes_to_the_same_bytes(world, tmp_path):
    options = {"neftune_alpha": 10.0, "loss_on": "all"}
    assert run_in_process("sft", world, tmp_path / "whole", **options) == 0
    assert run_in_process("sft", world, tmp_path / "twice", kill_at=8, **options) == -9
    assert run_in_process("sft", world, tmp_path / "twice", **options) == 0
    assert "resumed at step 6" in (tmp_path / "twice" / "log").read_text()
    assert digests(tmp_path / "twice" / "out") == digests(tmp_path / "whole" / "out")
    quiet = run_stage(make_stage("sft", world, tmp_path / "quiet", loss_on="all"))
    assert digests(quiet.out) != digests(tmp_path / "whole" / "out")
