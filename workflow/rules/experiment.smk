import functools
import hashlib
import json
import re

from posttrain.config.files import check_user_files
from posttrain.config.load import parse_config, read_yaml, resolved_yaml, stage_slice
from posttrain.config.registry import entries, user_files
from posttrain.evaluation.judge import judge_file
from posttrain.platforms.locks import life_line
from posttrain.platforms.precision import crawls, with_precision
from posttrain.provenance.code_slice import code_slice
from posttrain.provenance.digests import DigestCache, file_digest
from posttrain.provenance.raw_data import data_state
from posttrain.stages.fetch_model import source_digest
from posttrain.tracking.destination import destination, mask

for path in workflow.overwrite_configfiles:  # Snakemake has read them already, and lets a key stand twice
    or_stop(read_yaml, Path(path))

GIVEN = [*map(os.path.relpath, workflow.configfiles), *(["--config"] if workflow.config_settings.config else [])]
EXPERIMENT = with_precision(or_stop(parse_config, config, " with ".join(GIVEN)))
if crawls(EXPERIMENT):
    say("model.dtype: this CPU has no units for bfloat16 and is many times slower with it; set dtype: auto or float32")
RUNS = EXPERIMENT.runs
RESULTS = Path("results") / EXPERIMENT.experiment
LOGS = RESULTS / "logs"
COMPARE = RESULTS / "compare"


def write_resolved():
    """Write the experiment with every default filled in, and return the path.

    The file's name is its content's digest: a job that is running keeps its own file when the config changes.
    """
    text = resolved_yaml(EXPERIMENT)
    path = RESULTS / ".state" / "config" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        stop_unwritable(path, error)
    return path


def tie_stages():
    """Let stages know this process: one whose Snakemake or container dies keeps a checkpoint and ends.

    Nobody would read what it goes on to write.
    """
    lines = RESULTS / ".state" / "workflows"
    try:
        os.environ.update(POSTTRAIN_DIE_WITH_PARENT=str(life_line(lines)))
    except OSError as error:
        stop_unwritable(lines, error)


def stop_unwritable(path, error):
    stop(f"{path}: cannot be written ({error.strerror}); make {RESULTS.parent}/ writable or free some space")


RESOLVED = write_resolved()
tie_stages()
STORE = destination(EXPERIMENT, Path.cwd())
TRACKING = ancient(RESULTS / "tracking.json")
DATA_STATE = or_stop(data_state, EXPERIMENT.data.path)
MODEL_SOURCE = or_stop(source_digest, EXPERIMENT.model.base, DigestCache(RESULTS / ".state" / "sources.json"))
JUDGE = or_stop(judge_file, EXPERIMENT.evaluation.judge)
JUDGE_HOLDS = file_digest(JUDGE) if JUDGE else ""
for name, run in RUNS.items():
    or_stop(check_user_files, name, run)
OWN_FILES = {name: user_files(run) for name, run in RUNS.items()}


@functools.cache
def settings(stage, run=None):
    """Return what the stage reads of the config, as dotted key -> line."""

    def lines(key, value):
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                yield from lines(f"{key}.{name}", inner)
        else:
            yield key, f"{key}: {json.dumps(value, sort_keys=True)}"

    read = stage_slice(EXPERIMENT, stage, run).as_dict()
    return dict(line for key, value in read.items() for line in lines(key, value))


@functools.cache
def code_digest(stage, run=None):
    return code_slice(stage, entries(RUNS[run]) if run else None).digest[:12]


def triggers(stage, image=True):
    """Return the params that make the stage run again: each setting that it reads, its code and, if it has one, its image.

    Snakemake compares the values as a set and shows those that differ, so each begins with its key, and a key that
    another run of `runs:` has and this one has not repeats a line. They are functions, because Snakemake would take the
    braces of a plain string for wildcards.
    """
    runs = RUNS if stage == "post_train" else [None]

    def setting(key):
        def line(wildcards):
            lines = settings(stage, getattr(wildcards, "run", None))
            return lines.get(key, next(iter(lines.values())))

        return line

    def code(wildcards):
        run = getattr(wildcards, "run", None)
        return f"code: {code_digest(stage, run)}"

    keys = (key for run in runs for key in settings(stage, run))
    where = {"image": image_param} if image else {}
    return {key: setting(key) for key in keys} | {"code": code} | where


# A curve needs two steps.
CURVES = ["curves"] if any(run.steps > 1 for run in RUNS.values()) else []
PICTURES = ["gains", "reward_kl", "win_rate", "lengths", "limits", *CURVES]


def any_of(names):
    """Return the pattern of a wildcard that stands for one of the names."""
    return "|".join(map(re.escape, names))


def teachers(wildcards):
    """Return what a run learns from beside the SFT model: the reward model, ranked pairs, or the data alone."""
    run = RUNS[wildcards.run]
    if getattr(run, "preferences", None) == "data":
        return {}
    name = "preferences" if hasattr(run, "preferences") else "reward_model"
    return {name: RESULTS / name / "manifest.json"}


def own_files(wildcards):
    """Return the files of the user's own that the run calls. Their content makes it run again: a time stamp does not."""
    return {key: ancient(outside(path) or path) for key, path in OWN_FILES[wildcards.run].items()}


def own_code(wildcards):
    """Return what these files hold."""
    held = {key: file_digest(path)[:12] for key, path in OWN_FILES[wildcards.run].items()}
    return f"own files hold: {', '.join(f'{key} {digest}' for key, digest in held.items())}"


def evaluated_run(wildcards):
    return {} if wildcards.name == "sft" else {"post": RESULTS / "runs" / wildcards.name / "manifest.json"}
