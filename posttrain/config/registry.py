"""Every method and every part of one by name, as data: naming one imports nothing, `resolve` imports its one file.

A part is a pure function. Its keyword-only parameters are its settings, so they are keys of a run too. The entries are
read by static analysis (a stage's code slice), so they are literal strings. `FILE.py:FUNCTION` stands for a function of
the user's own, wherever a run may choose.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
_USER_FILE = re.compile(r".+\.py:[A-Za-z_]\w*")

PAIR_LOSSES = {
    "sigmoid": "posttrain.algorithms.preference.sigmoid:sigmoid",
    "robust": "posttrain.algorithms.preference.robust:robust",
    "ipo": "posttrain.algorithms.preference.ipo:ipo",
    "hinge": "posttrain.algorithms.preference.hinge:hinge",
    "simpo": "posttrain.algorithms.preference.simpo:simpo",
    "orpo": "posttrain.algorithms.preference.orpo:orpo",
    "dpop": "posttrain.algorithms.preference.dpop:dpop",
}
LABEL_LOSSES = {
    "kto": "posttrain.algorithms.preference.kto:kto",
    "bco": "posttrain.algorithms.preference.bco:bco",
}
ADVANTAGES = {
    "grpo": "posttrain.algorithms.advantages.group:group_advantages",
    "rloo": "posttrain.algorithms.advantages.rloo:rloo",
    "reinforce++": "posttrain.algorithms.advantages.reinforce_plus_plus:reinforce_plus_plus",
    "reinforce++_baseline": "posttrain.algorithms.advantages.reinforce_plus_plus:reinforce_plus_plus_baseline",
    "opo": "posttrain.algorithms.advantages.opo:opo",
}
POLICY_LOSSES = {
    "clipped": "posttrain.algorithms.policy_loss.clipped:clipped_policy_loss",
    "gspo": "posttrain.algorithms.policy_loss.gspo:gspo",
    "cispo": "posttrain.algorithms.policy_loss.cispo:cispo",
    "sequence_clipped": "posttrain.algorithms.policy_loss.sequence_clipped:sequence_clipped",
    "reinforce": "posttrain.algorithms.policy_loss.reinforce:reinforce",
}
KL_ESTIMATORS = {
    "k1": "posttrain.algorithms.kl:k1",
    "k2": "posttrain.algorithms.kl:k2",
    "k3": "posttrain.algorithms.kl:k3",
}


@dataclass(frozen=True)
class Method:
    """How a method trains: its job, the parts that are fixed, and the tables that a run chooses its other parts from.

    `choices` are keys of the run (config/runs.py has each method's own default).
    """

    job: str
    choices: Mapping[str, Mapping[str, str]]
    parts: Mapping[str, str] = field(default_factory=dict)


_PAIRS = Method("posttrain.trainer.objectives.pairs:Pairs", {"loss": PAIR_LOSSES})
_SAMPLES = {"policy_loss": POLICY_LOSSES, "kl_estimator": KL_ESTIMATORS}
_GROUPS = Method("posttrain.trainer.objectives.groups:Groups", {"advantages": ADVANTAGES, **_SAMPLES})

METHODS: dict[str, Method] = {
    "ppo": Method(
        "posttrain.trainer.objectives.actor_critic:ActorCritic",
        _SAMPLES,
        {
            "gae": "posttrain.algorithms.advantages.gae:gae",
            "value_loss": "posttrain.algorithms.value_loss:clipped_value_loss",
        },
    ),
    "grpo": _GROUPS,
    "dr_grpo": _GROUPS,
    "dapo": _GROUPS,
    "gspo": _GROUPS,
    "cispo": _GROUPS,
    "rloo": _GROUPS,
    "reinforce++": _GROUPS,
    "reinforce++_baseline": _GROUPS,
    "opo": _GROUPS,
    "remax": Method(
        "posttrain.trainer.objectives.greedy_baseline:GreedyBaseline",
        _SAMPLES,
        {"remax": "posttrain.algorithms.advantages.remax:remax"},
    ),
    "raft": Method(
        "posttrain.trainer.objectives.best_of_n:BestOfN",
        {},
        {
            "best_of_n": "posttrain.algorithms.advantages.best_of_n:best_of_n",
            "policy_loss": "posttrain.algorithms.policy_loss.reinforce:reinforce",
        },
    ),
    "online_dpo": Method("posttrain.trainer.objectives.online_pairs:OnlinePairs", {"loss": PAIR_LOSSES}),
    "dpo": _PAIRS,
    "cdpo": _PAIRS,
    "robust": _PAIRS,
    "ipo": _PAIRS,
    "hinge": _PAIRS,
    "simpo": _PAIRS,
    "orpo": _PAIRS,
    "cpo": _PAIRS,
    "dpop": _PAIRS,
    "kto": Method(
        "posttrain.trainer.objectives.labels:KTOLabels",
        {"loss": LABEL_LOSSES},
        {"kl_baseline": "posttrain.algorithms.preference.kto:kl_baseline"},
    ),
    "bco": Method(
        "posttrain.trainer.objectives.labels:BCOLabels",
        {"loss": LABEL_LOSSES},
        {"running_shift": "posttrain.algorithms.preference.bco:running_shift"},
    ),
}


def is_user_file(choice: str) -> bool:
    """Whether a choice is `FILE.py:FUNCTION`."""
    return _USER_FILE.fullmatch(choice) is not None


def entries(run: Any) -> dict[str, str]:
    """Part -> "module:function" (or `FILE.py:FUNCTION`) of a run's section, `job` among them."""
    method = METHODS[run.method]
    chosen = {key: table.get(getattr(run, key), getattr(run, key)) for key, table in method.choices.items()}
    return {"job": method.job, **method.parts, **chosen}


def user_files(run: Any) -> dict[str, Path]:
    """Key -> file of each part that is the user's own."""
    chosen = {key: getattr(run, key) for key in METHODS[run.method].choices}
    return {key: Path(choice.rpartition(":")[0]) for key, choice in chosen.items() if is_user_file(choice)}


def known_settings(run: Any) -> set[str]:
    """The keys that one part or another which the run could choose reads."""
    method = METHODS[run.method]
    return {name for table in method.choices.values() for entry in table.values() for name in settings_of(entry)}


def read_settings(run: Any) -> set[str]:
    """The keys that the run's parts read, those that are the user's own left out."""
    found = entries(run)
    del found["job"]
    return {name for entry in found.values() if not is_user_file(entry) for name in settings_of(entry)}


def settings_of(entry: str) -> Set[str]:
    """The keyword-only parameters of one of our functions, read from its source without importing it."""
    return _ours(entry).settings.keys()


def arguments_for(run: Any, key: str) -> tuple[str, ...]:
    """What a part that the run chooses by `key` is called with, by the names that the first of ours gives them."""
    return _ours(next(iter(METHODS[run.method].choices[key].values()))).positional


@dataclass(frozen=True)
class Signature:
    """A function's parameters: names of the positional ones, how many of them must be given, whether more may follow,
    and each keyword-only one with whether it has a default."""

    positional: tuple[str, ...]
    least: int
    more: bool
    settings: dict[str, bool]

    @classmethod
    def of(cls, source: str, name: str) -> Signature | None:
        """That of function `name` in a module's source; None where there is none.

        Raises SyntaxError for what is no Python.
        """
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                given = node.args
                positional = tuple(argument.arg for argument in (*given.posonlyargs, *given.args))
                pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
                settings = {argument.arg: default is not None for argument, default in pairs}
                return cls(positional, len(positional) - len(given.defaults), given.vararg is not None, settings)
        return None


@functools.cache
def _ours(entry: str) -> Signature:
    module, _, name = entry.partition(":")
    path = _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    found = Signature.of(path.read_text(encoding="utf-8"), name)
    return found or Signature((), 0, False, {})


def resolve(entry: str) -> Callable[..., Any]:
    """The function or class that "module:name" stands for; imports that module.

    Raises ValueError for an entry of another form or a name that the module lacks, ImportError for an absent module.
    """
    module, separator, name = entry.partition(":")
    if not (module and separator and name):
        raise ValueError(f"{entry!r} is not of the form 'module:name'")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ValueError(f"module {module} has no function or class {name!r}")
    return found
