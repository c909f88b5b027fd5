"""Every key that an experiment's YAML file may have. Unknown keys are errors.

The names of batch sizes are the same everywhere: `prompts_per_step`, `samples_per_prompt`, `minibatch` (one optimiser
step, in samples) and `microbatch_tokens` (one forward pass, in tokens, padding included).
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.config.runs import LabelRun, Run
from posttrain.config.sections import (
    AboveZero,
    Fraction,
    Generation,
    Name,
    NonNegative,
    Positive,
    Section,
    Seed,
    Smoothing,
    Training,
    is_set,
)

Precision = Literal["float32", "bfloat16"]

# --- data -----------------------------------------------------------------------------------------------------------

Form = Literal["ratings", "prompt_completion", "messages", "preference", "kto"]
# Those that give completions to imitate, and those that give pairs of a better and a worse text.
SFT_FORMS: tuple[Form, ...] = ("ratings", "prompt_completion", "messages")
PAIR_FORMS: tuple[Form, ...] = ("ratings", "preference")


class Source(Section):
    """One data set: a file under `data.path`, or an id on the datasets hub."""

    file: str | None = Field(None, description="path under data.path")
    hub: str | None = Field(None, description="id of a data set on the hub, read by the datasets library")
    hub_split: str = "train"
    form: Form
    format: Literal["auto", "jsonl", "json", "csv", "tsv", "parquet"] = "auto"
    header: list[str] | None = Field(None, description="column names of a csv or tsv file that has no header line")
    columns: dict[str, str] = Field(default_factory=dict, description="our column name -> the file's column name")

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.file is None) == (self.hub is None):
            raise ValueError("give exactly one of 'file' and 'hub'")
        idle = ("hub_split",) if self.hub is None else ("format", "header")
        for name in idle:
            if is_set(self, name):
                raise ValueError(f"{name} does nothing beside '{'hub' if self.hub else 'file'}'; take it out")
        return self


class Split(Section):
    """Shares of the rows, by a stable hash of the text; the rest is for training."""

    validation: Fraction = 0.05
    test: Fraction = 0.1

    @model_validator(mode="after")
    def _some_for_training(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test leave nothing for training; make their sum less than 1")
        return self


class RatingPairs(Section):
    """How rated texts become pairs for the reward model."""

    margin: NonNegative = Field(1.0, description="least difference of the two human ratings")
    per_text: Positive = Field(2, description="others that each text is paired with, drawn from all that differ enough")


class Data(Section):
    """What `prepare` reads and how it renders it."""

    path: str = Field("data", description="the folder that DVC tracks; its digests stand in <path>.dvc")
    sources: Annotated[list[Source], Field(min_length=1)]
    split: Split = Split()
    prompt_words: Positive = Field(4, description="opening words of a rated text that make its prompt")
    max_prompt_tokens: Positive = 64
    max_completion_tokens: Positive = 64
    too_long_prompt: Literal["error", "drop", "truncate_left"] = "error"
    rating_pairs: RatingPairs = RatingPairs()
    vocabulary: Annotated[int, Field(ge=260)] = Field(2048, description="size of the built-in base's own tokenizer")

    @model_validator(mode="after")
    def _path_is_named(self) -> Data:
        """DVC's file stands beside the folder and has its name."""
        if PurePath(self.path).name in ("", ".."):
            raise ValueError(f"path is {self.path!r}; give a folder with a name, as 'data', and data.dvc beside it")
        return self


# --- model ----------------------------------------------------------------------------------------------------------


class Model(Section):
    """The base model, and how every stage loads a model."""

    base: str = Field(
        min_length=1,
        description="'built-in: tiny', a local folder, a GGUF file, 'wheel: NAME==VERSION', or an id on the model hub",
    )
    revision: str | None = Field(None, description="of a hub's model; of a wheel: the sha256 of its file")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "float32",
        description="of weights and arithmetic; masters and moments are float32. auto: bfloat16, but float32 on a CPU "
        "without units for it",
    )
    generation_dtype: Precision | None = Field(None, description="of generation, where another is faster than dtype")
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _base_has_a_form(self) -> Model:
        """What looks like a form of ours and is not would be taken for an id on the hub."""
        for form, whole in (("built-in", "built-in: tiny"), ("wheel:", "wheel: NAME==VERSION")):
            ours = self.base == whole if form == "built-in" else self.base.startswith(form)
            if self.base.lower().startswith(form) and not ours:
                raise ValueError(f"base is {self.base!r}; write it as '{whole}'")
        return self

    def for_generation(self) -> Model:
        """The same, at the precision of generation."""
        return self.model_copy(update={"dtype": self.generation_dtype or self.dtype})


# --- training -------------------------------------------------------------------------------------------------------


class SFT(Training):
    """Supervised fine-tuning of the base on prompt and completion."""

    steps: Positive = 100
    learning_rate: AboveZero = 1e-3
    loss_on: Literal["completion", "all"] = Field("completion", description="which tokens are learnt")
    neftune_alpha: NonNegative = Field(0.0, description="noise on the embeddings while training; 0 is none")

    @model_validator(mode="after")
    def _noise_goes_through_all_layers(self) -> SFT:
        if self.neftune_alpha > 0 and self.train_layers is not None:
            raise ValueError("neftune_alpha needs all layers to train; take train_layers out, or set it to 0")
        return self


class RewardModel(Training):
    """Bradley-Terry reward model: a scalar head on the SFT model's trunk."""

    steps: Positive = 100
    learning_rate: AboveZero = 1e-4
    margin: bool = Field(False, description="the rewards of a pair are to differ by at least the gap of its ratings")
    centre_coef: NonNegative = Field(0.0, description="price of a mean reward of a pair that is not zero")
    label_smoothing: Smoothing = Field(0.0, description="share of pairs that are thought to be the wrong way round")


class Sample(Generation):
    """Completions of the SFT model, from which `rank` makes preferences."""

    prompts: Positive = 256
    samples_per_prompt: Annotated[int, Field(ge=2)] = 4


class Rank(Section):
    """Preference pairs and KTO labels from samples scored by the reward model."""

    least_gap: NonNegative = Field(0.0, description="least difference of reward between chosen and rejected")
    least_label_gap: NonNegative = Field(
        0.0, description="least difference of a labelled sample from its prompt's mean"
    )
    score_batch_tokens: Positive = 8192


# --- the rest -------------------------------------------------------------------------------------------------------


class Evaluation(Generation):
    """The same held-out prompts for the SFT model and every run."""

    prompts: Positive = 128
    bootstrap: Positive = Field(1000, description="resamples of the 95 % intervals")
    judge: str | None = Field(
        None,
        description="a judge that no training stage sees: 'vader' (sentiment), or FILE.py:FUNCTION, texts -> scores",
    )

    @model_validator(mode="after")
    def _judge_has_a_form(self) -> Evaluation:
        if self.judge is not None and not re.fullmatch(r"vader|.+\.py:[A-Za-z_]\w*", self.judge):
            raise ValueError(f"judge is {self.judge!r}; give 'vader' or FILE.py:FUNCTION")
        return self


class Flags(Section):
    """When `compare` flags a run as reward hacking; null turns a threshold off."""

    least_distinct_2: NonNegative | None = Field(0.9, description="share of SFT's distinct-2")
    most_perplexity: NonNegative | None = Field(1.25, description="times SFT's perplexity under the base model")
    most_repetition: NonNegative | None = Field(0.05, description="more than SFT's repetition")
    most_kl: NonNegative | None = Field(25.0, description="nats per sequence to the SFT model")
    most_length: NonNegative | None = Field(1.5, description="times SFT's mean length")
    judge_follows: bool = Field(True, description="a gain of reward that the judge does not see is flagged")


class Tracking(Section):
    """MLflow. The environment's MLFLOW_TRACKING_URI wins over `uri`."""

    uri: str | None = Field(None, description="where metrics go; without it, SQLite under results/")
    system_metrics: bool = True


ComputingStage = Literal["sft", "reward_model", "sample", "rank", "post_train", "evaluate"]


class Resources(Section):
    """What the stages may use. Threads, device and precision decide bytes, so they come from here alone."""

    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive = Field(1, description="CPU threads of each training or generating stage")
    stage_threads: dict[ComputingStage, Positive] = Field({}, description="of single stages, as {sft: 2}")
    gpus: Positive = Field(1, description="GPUs of each training or generating stage, where device is cuda")
    mem_mb: Positive = 4000
    image: Literal["cpu", "cuda121"] = "cpu"

    def threads_of(self, stage: str) -> int:
        """CPU threads of the stage."""
        return {str(name): count for name, count in self.stage_threads.items()}.get(stage, self.threads)


class Config(Section):
    """One experiment: one comparison of any number of runs."""

    experiment: Name
    seed: Seed = 0
    data: Data
    model: Model
    sft: SFT = SFT()
    reward_model: RewardModel = RewardModel()
    sample: Sample = Sample()
    rank: Rank = Rank()
    runs: Annotated[dict[Name, Run], Field(min_length=1)]
    evaluation: Evaluation = Evaluation()
    flags: Flags = Flags()
    tracking: Tracking = Tracking()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _names(self) -> Config:
        if "sft" in self.runs:
            raise ValueError("runs.sft: this name is the baseline's; give the run another one")
        if self.experiment == "mlflow":
            raise ValueError("experiment: results/mlflow is where metrics are kept; choose another name")
        return self

    @model_validator(mode="after")
    def _forms_feed_all_stages(self) -> Config:
        """Known now, and not when the stage before has trained for hours."""
        if self.data.split.test == 0:
            raise ValueError("data.split.test is 0, which leaves no prompt to evaluate on; give it a share")
        forms = {source.form for source in self.data.sources}
        needs = [("sft", SFT_FORMS), ("reward_model", PAIR_FORMS)]
        needs += [
            (f"runs.{name}", ("kto",))
            for name, run in self.runs.items()
            if isinstance(run, LabelRun) and run.preferences == "data"
        ]
        for who, wanted in needs:
            if not forms.intersection(wanted):
                found = ", ".join(sorted(forms))
                raise ValueError(
                    f"data.sources: {who} needs a source of form {' or '.join(wanted)}, there is {found}; add one"
                )
        return self

    @model_validator(mode="after")
    def _pairs_have_gaps(self) -> Config:
        if self.reward_model.margin and any(source.form == "preference" for source in self.data.sources):
            raise ValueError(
                "reward_model.margin is the gap of two ratings, which pairs of form preference do not have; "
                "set it to false, or take those sources out"
            )
        return self

    @model_validator(mode="after")
    def _attention_can_be_had(self) -> Config:
        if self.model.attention == "flash_attention_2":
            for key, value, wanted in (
                ("resources.device", self.resources.device, "cuda"),
                ("model.dtype", self.model.dtype, "bfloat16"),
            ):
                if value not in (wanted, "auto"):
                    raise ValueError(f"model.attention: flash_attention_2 needs {key}: {wanted}, not {value}; use sdpa")
        return self

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Config:
        """A key that nothing reads says something else than its author means."""
        rated = any(source.form == "ratings" for source in self.data.sources)
        built_in = self.model.base.startswith("built-in:")
        pinned = not built_in and not self.model.base.lower().endswith(".gguf")
        for holds, section, key, reader in (
            (built_in, self.data, "data.vocabulary", "the built-in base's own tokenizer"),
            (pinned, self.model, "model.revision", "a base from the hub or a wheel"),
            (rated, self.data, "data.prompt_words", "sources of form ratings"),
            (rated, self.data, "data.rating_pairs", "sources of form ratings"),
            (self.resources.device == "cuda", self.resources, "resources.gpus", "resources.device: cuda"),
        ):
            if not holds and is_set(section, key.rpartition(".")[2]):
                raise ValueError(f"{key} is for {reader}, which this experiment has not; take it out")
        return self
