"""From an experiment's YAML file to a checked `Config`, and from that to the slice that one stage may read."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from posttrain.config import runs, schema
from posttrain.config.sections import Section
from posttrain.errors import UserError

# What each stage may read of the config, and so what makes it run again. `run` stands for one entry of `runs:`.
SECTIONS: dict[str, tuple[str, ...]] = {
    "fetch_model": ("model",),
    "prepare": ("seed", "data", "model"),
    "sft": ("seed", "model", "sft", "device", "threads"),
    "reward_model": ("seed", "model", "reward_model", "device", "threads"),
    "sample": ("seed", "model", "sample", "device", "threads"),
    "rank": ("seed", "model", "rank", "device", "threads"),
    "post_train": ("seed", "model", "run", "device", "threads"),
    "evaluate": ("seed", "model", "evaluation", "device", "threads"),
    "compare": ("seed", "evaluation", "flags"),
}

MAX_SHOWN = 3
SHOULD = "; it should "
NAME_RULE = "use letters, digits, '_', '.' and '-', a letter or digit first, 64 characters at most"


class _Intervals(Section):
    """The part of `evaluation` that `compare` reads."""

    bootstrap: int


class Slice(BaseModel):
    """The part of the config that one stage may read; any other field raises when it is read."""

    model_config = ConfigDict(frozen=True)

    seed: int
    data: schema.Data
    model: schema.Model
    sft: schema.SFT
    reward_model: schema.RewardModel
    sample: schema.Sample
    rank: schema.Rank
    run: runs.Run
    evaluation: schema.Evaluation
    flags: schema.Flags
    device: str
    threads: int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"config.{name} is outside this stage's slice: see SECTIONS in posttrain/config/load.py")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the stage key and the manifest: only what the stage may read."""
        return {key: _plain(self.__dict__[key]) for key in type(self).model_fields if key in self.__dict__}


def load_config(path: str | Path) -> schema.Config:
    """Read and check an experiment's YAML file. Raises `UserError` that names the file and the key or line."""
    return parse_config(read_yaml(Path(path)), str(path))


def parse_config(mapping: Any, source: str) -> schema.Config:
    """Check a mapping as read from YAML; `source` is the file's name for messages."""
    if not isinstance(mapping, Mapping):
        found = "nothing" if mapping is None else "a list" if isinstance(mapping, list) else _short(mapping)
        raise UserError(f"{source} holds {found}; an experiment is a mapping that starts with 'experiment: NAME'")
    try:
        return schema.Config.model_validate(mapping)
    except ValidationError as error:
        raise UserError(_explain(error, source)) from None


def read_yaml(path: Path) -> Any:
    """The YAML file's content; duplicate keys, other encodings and empty files are refused by name."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of an experiment's YAML file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give the path of an experiment's YAML file") from None
    except PermissionError:
        raise UserError(f"{path} cannot be read: permission denied") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte {error.object[error.start]:#04x}); save it as UTF-8"
        ) from None
    if not text.strip():
        raise UserError(f"{path} is empty; an experiment is a mapping that starts with 'experiment: NAME'")
    try:
        return yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{where}: {error.problem or 'not YAML'}; mend the YAML there") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}; mend the YAML") from None


def resolved_yaml(config: schema.Config) -> str:
    """The whole config with every default written out: what each stage is given as `--config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def stage_slice(config: schema.Config, stage: str, run: str | None = None) -> Slice:
    """What `stage` (for post_train: with the entry `run` of `runs:`) may read of `config`.

    The seed of a run wins over the experiment's. Of `evaluation`, `compare` reads only the number of resamples, so no
    other setting there can make it run again by itself. Raises `UserError` where the run is unknown.
    """
    if stage not in SECTIONS:
        raise UserError(f"there is no stage {stage!r}; the stages are {', '.join(SECTIONS)}")
    values: dict[str, Any] = {}
    for name in SECTIONS[stage]:
        if name == "device":
            values[name] = config.resources.device
        elif name == "threads":
            values[name] = config.resources.threads_of(stage)
        elif name != "run":
            values[name] = getattr(config, name)
    if "run" in SECTIONS[stage]:
        values["run"] = _run(config, run)
        if values["run"].seed is not None:
            values["seed"] = values["run"].seed
    if stage == "compare":
        values["evaluation"] = _Intervals(bootstrap=config.evaluation.bootstrap)
    return Slice.model_construct(**values)


def json_schema() -> dict[str, Any]:
    """The JSON schema of an experiment's file, generated from the models."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.Config.model_json_schema()}


# --- messages -------------------------------------------------------------------------------------------------------


def _run(config: schema.Config, run: str | None) -> runs.RunBase:
    if run not in config.runs:
        raise UserError(f"there is no run {run!r} in runs:; it has {', '.join(config.runs)}")
    return config.runs[run]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _explain(error: ValidationError, source: str) -> str:
    """One line per fault, three at most: the dotted key, what it holds, what is allowed."""
    found: dict[str, list[str]] = {}  # of one value that may be of several kinds pydantic lists a fault for each kind
    for fault in error.errors(include_url=False):
        said, _, wanted = _fault(dict(fault)).partition(SHOULD)
        found.setdefault(said, []).append(wanted)
    lines = [
        f"{source}: {said}" + (SHOULD + ", or ".join(wanted) if wanted[0] else "") for said, wanted in found.items()
    ]
    more = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return "\n".join([*lines[:MAX_SHOWN], *more])


def _fault(fault: dict[str, Any]) -> str:
    parts, model = _follow(fault["loc"])
    key = ".".join(str(part) for part in parts if part != "[key]")
    kind, value, limits = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "string_type" and value is not None and not isinstance(value, (dict, list)):
        return f"{key} is {_short(value)}, which YAML does not read as text; put it in quotes"
    if parts[-1:] == ["[key]"]:
        return f"{key} is not a usable name; {NAME_RULE}"
    if kind == "extra_forbidden":
        return f"{key} is not a known key; {_nearest(str(parts[-1]), parts[:-1], model)}"
    if kind == "missing":
        return f"{key} is missing; add it"
    if kind == "union_tag_not_found":
        return f"{key}.method is missing; add it, one of {', '.join(_methods())}"
    if kind == "union_tag_invalid":
        near = difflib.get_close_matches(str(limits["tag"]), _methods(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        return f"{key}.method is {limits['tag']!r}, which is none of {', '.join(_methods())}; {hint}".rstrip("; ")
    if kind == "value_error":
        reason = str(limits["error"])
        return reason if not key or reason.startswith(key) else f"{key}: {reason}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} is {_short(value)}; it should be a mapping of keys"
    if kind == "string_pattern_mismatch":
        return f"{key} is {_short(value)}; {NAME_RULE}"
    message = re.sub(r"^\w+ should ", "", fault["msg"]).replace(" after validation", "")
    return f"{key} is {_short(value)}{SHOULD}{message}"


def _short(value: Any) -> str:
    """The value as the user may recognise it: a key with nothing behind it is null to YAML."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _methods() -> list[str]:
    return [get_args(model.model_fields["method"].annotation)[0] for model in _union_members(runs.Run)]


def _nearest(key: str, path: list[Any], model: type[BaseModel] | None) -> str:
    """The nearest of the keys that are valid beside `key`, or all of them."""
    if model is None:
        return "remove it"
    valid = list(model.model_fields)
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.6)
    if near:
        return f"the nearest is {'.'.join([*map(str, path), near[0]])}"
    return f"the keys here are {', '.join(valid)}"


def _follow(location: tuple[int | str, ...]) -> tuple[list[Any], type[BaseModel] | None]:
    """Pydantic's location without union tags, and the model that holds its last part.

    The tag of a discriminated union stands in the location between the key and the field: `runs.ppo.ppo.kl_coeff`.
    """
    here: Any = schema.Config
    shown: list[Any] = []
    holder: type[BaseModel] | None = None
    for part in location:
        if _kinds(here):  # pydantic's name of a kind stands between the key and what is below it
            here = None
            continue
        tagged = [model for model in _union_members(here) if part in get_args(model.model_fields["method"].annotation)]
        if tagged:
            here = tagged[0]
            continue
        shown.append(part)
        holder = here if isinstance(here, type) and issubclass(here, BaseModel) else None
        here = _child(here, part)
    return shown, holder


def _child(annotation: Any, part: Any) -> Any:
    """The annotation one step further down: a model's field, a mapping's value or a list's item."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return _bare(field.annotation) if field else None
    arguments = get_args(annotation)
    return _bare(arguments[-1]) if get_origin(annotation) in (dict, list) and part != "[key]" else None


def _bare(annotation: Any) -> Any:
    """Without the metadata of a plain Annotated and without `| None`; any other union stays as it is."""
    if get_origin(annotation) is Annotated and not _union_members(annotation):
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType) and not _union_members(annotation) and not _kinds(annotation):
        return _bare(next(argument for argument in get_args(annotation) if argument is not types.NoneType))
    return annotation


def _kinds(annotation: Any) -> list[Any]:
    """What a value may be, where it may be of several kinds: of a union without a discriminator, None left out."""
    if get_origin(annotation) not in (Union, types.UnionType) or _union_members(annotation):
        return []
    kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType]
    return kinds if len(kinds) > 1 else []


def _union_members(annotation: Any) -> list[type[BaseModel]]:
    """The models of the union over `method`, else nothing."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, types.UnionType):
        return []
    members = get_args(annotation)
    return (
        list(members)
        if all(isinstance(member, type) and "method" in getattr(member, "model_fields", {}) for member in members)
        else []
    )


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML's safe loader, which takes the last of two equal keys in silence, made to refuse them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands here twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)
