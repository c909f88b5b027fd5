"""What a stage may be given: a slip of the hand is refused before anything is computed or replaced."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path

from posttrain.config.registry import METHODS
from posttrain.config.schema import Config
from posttrain.errors import UserError
from posttrain.provenance.manifest import MANIFEST, Manifest

RUN_FILE = "run.json"
BASELINE = "sft"
NESTED = ("post_train", "evaluate")  # one output per run, two levels below the experiment's folder

# The stage whose folder an input is; `raw`, `judge` and functions of the user's own are files.
MAKERS = {
    "raw": None,
    "model": "fetch_model",
    "data": "prepare",
    "sft": "sft",
    "reward_model": "reward_model",
    "samples": "sample",
    "preferences": "rank",
    "post": "post_train",
    "judge": None,
    **dict.fromkeys({key for method in METHODS.values() for key in method.choices}),
}
COMPARED = {"eval-": "evaluate", "run-": "post_train"}  # with the name of a run


def check_run(stage: str, run: str | None, config: Config, inputs: Mapping[str, Path]) -> None:
    """`--run` names an entry of `runs:` (for evaluate: or the baseline) where the stage has one, else it is absent.

    Raises:
        UserError: it does not, or a run is to be evaluated without its folder.
    """
    names = {"post_train": [*config.runs], "evaluate": [BASELINE, *config.runs]}.get(stage)
    if names is None:
        if run is not None:
            raise UserError(f"--run {run}: {stage} is the same for all runs; leave --run out")
    elif run not in names:
        raise UserError(f"--run {run or 'is missing'}: give one of {', '.join(names)}")
    elif stage == "evaluate" and (run == BASELINE) == ("post" in inputs):
        mend = "leave --input post out" if run == BASELINE else f"give --input post=FOLDER, the folder of run {run}"
        raise UserError(f"--run {run}: {mend}")


def check_output(stage: str, run: str | None, output: Path) -> None:
    """The output's place is new, empty, or holds an earlier output of the same stage and run, which is replaced.

    Snakemake deletes the manifest of an output that it makes again and leaves the other files.

    Raises:
        UserError: it is a file, something else's folder, or too near the root for an experiment's folder above it.
    """
    if len(output.absolute().parents) < 3 or len(output.parents) < (2 if stage in NESTED else 1):
        raise UserError(f"--output {output}: give a folder in the experiment's, as results/<experiment>/{stage}")
    if output.is_file():
        raise UserError(f"--output {output} is a file; give the folder that {stage} is to make")
    if not output.is_dir() or not any(output.iterdir()):
        return
    try:
        found = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
        own = (found["stage"], found["run"]) == (stage, run)
    except (OSError, ValueError, KeyError, TypeError):
        own = (output / RUN_FILE).is_file()
    if not own:
        raise UserError(f"--output {output} holds other files than {stage}'s; give another folder, or empty it first")


def check_input(name: str, path: Path, found: Manifest, run: str | None) -> None:
    """The input has a known name, and is the folder of the stage that the name stands for.

    Raises:
        UserError: it has not, or it is another one's.
    """
    prefix = next((prefix for prefix in COMPARED if name.startswith(prefix)), "")
    if not prefix and name not in MAKERS:
        near = difflib.get_close_matches(name, MAKERS, n=1) or [f"one of {', '.join(MAKERS)}"]
        raise UserError(f"--input {name}={path}: there is no such input; did you mean {near[0]}?")
    stage = COMPARED[prefix] if prefix else MAKERS[name]
    own = name.removeprefix(prefix) if prefix else run if name == "post" else None
    if (found.get("stage"), found.get("run")) != (stage, own):
        made = " ".join(filter(None, [found.get("stage") or "no stage", found.get("run")]))
        wanted = " ".join(filter(None, [stage or "a file", own]))
        raise UserError(f"--input {name}={path} is of {made}, not of {wanted}; give that one")
