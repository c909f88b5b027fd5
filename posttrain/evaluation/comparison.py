"""A comparison: experiments, which of their runs are flagged, which are seeds of one another, what must be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.config.schema import Flags
from posttrain.errors import UserError
from posttrain.evaluation.entries import ORIGIN, Entry, Record
from posttrain.evaluation.flags import Flag, find_flags
from posttrain.evaluation.seeds import Group, find_groups

# Settings of an evaluation without which figures of two experiments mean different things.
_DECIDING = (
    ("model", "base", "base model"),
    ("evaluation", "temperature", "temperature of the samples"),
    ("evaluation", "max_new_tokens", "limit of new tokens"),
)


@dataclass(frozen=True)
class Experiment:
    """One results folder: its models, baseline first, and the thresholds that its runs are held against.

    `folders` are those of `prepare` ("data") and `reward_model`, where the comparison has them. `records` are the
    stages that ran. `left_out` are runs that are trained and not evaluated.
    """

    name: str
    entries: Sequence[Entry]
    limits: Flags
    records: Sequence[Record] = ()
    folders: Mapping[str, Path] | None = None
    left_out: Sequence[str] = ()

    @property
    def baseline(self) -> Entry:
        """The SFT model."""
        return self.entries[0]


@dataclass(frozen=True)
class Subject:
    """What has a row of its own in figures: a model, or a group of seeds."""

    name: str
    members: Sequence[Entry]
    group: Group | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether this is an SFT model."""
        return self.members[0].is_baseline


@dataclass(frozen=True)
class Comparison:
    """`flags` has a list for each run, by its name, and none for the SFT models."""

    experiments: Sequence[Experiment]
    groups: Sequence[Group]
    flags: Mapping[str, Sequence[Flag]]

    @property
    def entries(self) -> list[Entry]:
        """All models, experiment by experiment."""
        return [entry for experiment in self.experiments for entry in experiment.entries]

    @property
    def judges(self) -> list[str]:
        """The judges, each once."""
        return sorted({entry.judge for entry in self.entries if entry.judge})

    def subjects(self) -> list[Subject]:
        """In the order of the entries; a group stands where its first member stood."""
        grouped = {entry.name: group for group in self.groups for entry in group.members}
        found: dict[str, Subject] = {}
        for entry in self.entries:
            group = grouped.get(entry.name)
            subject = Subject(group.name, group.members, group) if group else Subject(entry.name, [entry])
            found.setdefault(subject.members[0].name, subject)
        return list(found.values())

    def baseline(self, entry: Entry) -> Entry:
        """The SFT model that a run is measured against."""
        return next(each.baseline for each in self.experiments if any(entry is other for other in each.entries))


def compare(experiments: Sequence[Experiment]) -> Comparison:
    """Find flags and groups. Raises UserError where two models have one name."""
    entries = [entry for experiment in experiments for entry in experiment.entries]
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"two of the models are called {twice}: give folders with different names, each once")
    flags = {
        entry.name: find_flags(entry.metrics, experiment.baseline.metrics, experiment.limits)
        for experiment in experiments
        for entry in experiment.entries[1:]
    }
    return Comparison(experiments, find_groups(entries), flags)


def notes(comparison: Comparison) -> list[str]:
    """What is left out, and what makes numbers of different experiments hard to compare, a sentence each."""
    unfinished = [
        f"{', '.join(experiment.left_out)} of {experiment.name} is not evaluated yet and left out."
        for experiment in comparison.experiments
        if experiment.left_out
    ]
    return [
        *unfinished,
        *_without_judge(comparison.experiments),
        *_between_experiments(comparison.experiments),
        *_within_groups(comparison),
    ]


def _without_judge(experiments: Sequence[Experiment]) -> Iterator[str]:
    for experiment in experiments:
        if experiment.baseline.judge is None:
            yield (
                f"{experiment.name} has no independent judge (evaluation.judge): its gains and win rates are by the "
                "reward model, which the runs were trained to please."
            )


def _between_experiments(experiments: Sequence[Experiment]) -> Iterator[str]:
    if len(experiments) < 2:
        return
    yield "Every run is measured against its own experiment's SFT model: gains and win rates say no more than that."
    judges = {experiment.name: experiment.baseline.judge or "no judge" for experiment in experiments}
    if len(set(judges.values())) > 1:
        yield f"The judges differ ({_listed(judges)}): scores, gains and win rates are not comparable between them."
    prompts = [_prompts(experiment) for experiment in experiments]
    if any(each != prompts[0] for each in prompts):
        counts = {each.name: str(len(found)) for each, found in zip(experiments, prompts, strict=True)}
        shared = len(set.intersection(*map(set, prompts)))
        yield f"The held-out prompts differ ({_listed(counts)}, {shared} in common)."
    if len({experiment.baseline.made_from.get("reward_model") for experiment in experiments}) > 1:
        yield "Each experiment has a reward model of its own: their rewards are on different scales."
    for section, key, what in _DECIDING:
        found = {each.name: str(each.baseline.settings.get(section, {}).get(key)) for each in experiments}
        if len(set(found.values())) > 1:
            yield f"The {what} differs ({_listed(found)}): tokens, lengths, KL and scores are not comparable."
    yield from _origins(experiments)
    if len({experiment.limits for experiment in experiments}) > 1:
        yield "The thresholds of flags differ: each run is held against its own experiment's."


def _origins(experiments: Sequence[Experiment]) -> Iterator[str]:
    """What differs behind equal names, by the first digits of its digest."""
    for what in ORIGIN:
        found = {each.name: (each.baseline.origin[what] or "none known")[:12] for each in experiments}
        if len(set(found.values())) > 1:
            yield f"The {what} differs, by its digest ({_listed(found)}): runs of both are no seeds of one another."


def _within_groups(comparison: Comparison) -> Iterator[str]:
    known = {entry.name for group in comparison.groups for entry in group.members}
    for group in comparison.groups:
        copies = [
            entry.name
            for entry in comparison.entries
            if entry.recipe == group.members[0].recipe and entry.name not in known and not entry.is_baseline
        ]
        if copies:
            yield f"{', '.join(copies)} repeats a seed of {group.name} and is left out of its mean."


def _prompts(experiment: Experiment) -> set[tuple[str, tuple[int, ...]]]:
    return {(row["id"], tuple(row["prompt_ids"])) for row in experiment.baseline.rows}


def _listed(values: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
