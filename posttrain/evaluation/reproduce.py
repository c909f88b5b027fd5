"""How to make an experiment again: its commit, its packages, its configuration put together from the manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import yaml

from posttrain.config.load import parse_config
from posttrain.config.schema import Resources
from posttrain.errors import UserError
from posttrain.evaluation.comparison import Experiment
from posttrain.evaluation.entries import BASELINE, Record
from posttrain.evaluation.judge import VADER
from posttrain.provenance.images import image_id

# Sections of the config by the stage whose manifest has them.
_SECTIONS = {
    "prepare": ("data", "model"),
    "sft": ("seed", "sft"),
    "reward_model": ("reward_model",),
    "sample": ("sample",),
    "rank": ("rank",),
}
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Recipe:
    """What a reader needs to make one experiment again. `config` is None where the manifests do not give it.

    `unknown_images` are of none of this version's recipes. `files` are what the config names and does not hold.
    """

    name: str
    commits: Sequence[str]
    dirty: bool
    packages: Mapping[str, str]
    images: Sequence[str]
    unknown_images: Sequence[str]
    files: Sequence[str]
    config: str | None
    commands: str


def recipe(experiment: Experiment) -> Recipe | None:
    """From the stages that ran; None where none is known."""
    records = experiment.records
    if not records:
        return None
    commits = _each_once(record.facts.get("commit") or _UNKNOWN for record in records)
    images = _each_once(record.manifest.get("image") or "host" for record in records)
    return Recipe(
        experiment.name,
        commits,
        any(record.facts.get("dirty") for record in records),
        _packages(records),
        images,
        [image for image in images if image != "host" and image not in _known_images()],
        _files(records),
        config_text(experiment),
        _commands(experiment.name, commits[-1], containers=images != ["host"]),
    )


def config_text(experiment: Experiment) -> str | None:
    """The experiment's YAML without what is the default, or None where a stage's part of it is not known."""
    found: dict[str, Any] = {"experiment": experiment.name.rpartition("/")[2], "seed": 0}
    runs = {}
    for record in experiment.records:
        stage, config = record.manifest.get("stage"), record.manifest.get("config", {})
        found |= {name: config[name] for name in _SECTIONS.get(str(stage), ()) if name in config}
        if stage == "sft":
            found["resources"] = _resources(experiment.records)
        if stage == "post_train":
            runs[record.manifest["run"]] = config.get("run")
        if stage == "evaluate" and record.manifest.get("run") == BASELINE:
            found["evaluation"] = config.get("evaluation", {})
    known = _known_images()
    named = [known[image] for record in experiment.records if (image := record.manifest.get("image")) in known]
    if named:
        found.setdefault("resources", {})["image"] = named[-1]
    found |= {"runs": runs, "flags": experiment.limits.model_dump(mode="json")}
    try:
        config = parse_config(found, experiment.name)
    except UserError:  # a stage that another version of the program ran
        return None
    return yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True)


def _resources(records: Sequence[Record]) -> dict[str, Any]:
    """Device and threads of the stages that compute: the commonest number of threads, and stages with another one."""
    configs = [(record.manifest.get("stage"), record.manifest.get("config", {})) for record in records]
    threads = {str(stage): config["threads"] for stage, config in configs if "threads" in config}
    devices = [config["device"] for _, config in configs if "device" in config]
    if not threads or not devices:
        return {}
    [(most, _)] = Counter(threads.values()).most_common(1)
    return {
        "device": devices[-1],
        "threads": most,
        "stage_threads": {name: n for name, n in threads.items() if n != most},
    }


def _known_images() -> dict[str, str]:
    """Names of the images that this version can build, by their ids; none where their recipes are not here."""
    names = get_args(Resources.model_fields["image"].annotation)
    try:
        return {image_id(name): name for name in names}
    except (OSError, UserError):  # an installed package has no docker/
        return {}


def _files(records: Sequence[Record]) -> list[str]:
    """A judge's file, and the base model where it has a path's form."""
    found = []
    for record in records:
        config = record.manifest.get("config", {})
        judge = config.get("evaluation", {}).get("judge")
        base = config.get("model", {}).get("base") or ""
        found += [judge.rpartition(":")[0]] if judge and judge != VADER else []
        path = base.startswith(("/", "./", "../", "~")) or base.count("/") > 1 or base.lower().endswith(".gguf")
        found += [base] if path and not base.startswith("wheel:") else []
    return _each_once(found)


def _commands(name: str, commit: str, containers: bool) -> str:
    option = " --use-singularity" if containers else ""
    checkout = [] if commit == _UNKNOWN else [f"git checkout {commit}"]
    return "\n".join(
        [
            "git clone REPOSITORY posttrain && cd posttrain",
            *checkout,
            "make venv && source .venv/bin/activate",
            f"dvc pull && snakemake --cores all --configfile {name.rpartition('/')[2]}.yaml{option}",
        ]
    )


def _each_once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _packages(records: Sequence[Record]) -> dict[str, str]:
    """Package versions over all stages; where stages differ, all of a package's versions."""
    found: dict[str, set[str]] = {}
    for record in records:
        for name, version in record.manifest.get("packages", {}).items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}
