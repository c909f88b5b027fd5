"""What an entry of `runs:` may set. A method is a preset: its own defaults, and the parts that it is made of."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, Union

from pydantic import Field, model_validator

from posttrain.config.registry import METHODS, is_user_file, known_settings, read_settings, user_files
from posttrain.config.sections import (
    AboveZero,
    Fraction,
    Generation,
    NonNegative,
    Positive,
    Section,
    Seed,
    Smoothing,
    Training,
    is_set,
)

Aggregation = Literal["token-mean", "sequence-mean", "sequence-sum"]
Options = dict[str, Union[bool, int, float, str]]
AtMostOne = Annotated[float, Field(gt=0, le=1)]
# Horizons in one step at which an adapting coefficient could reach 0: it falls by the share 0.2 in each.
MOST_HORIZONS = 5


class RunBase(Training):
    """What every run of `runs:` can set."""

    seed: Seed | None = Field(None, description="instead of the experiment's seed")
    kl_budget: AboveZero | None = Field(
        None, description="nats per sequence to the SFT model: training ends when its samples are further away"
    )
    options: Options = Field(default_factory=dict, description="further arguments of the run's own FILE.py:FUNCTION")

    @model_validator(mode="after")
    def _parts_exist(self) -> RunBase:
        for key, table in METHODS[_method(self)].choices.items():
            choice = getattr(self, key)
            if choice not in table and not is_user_file(choice):
                near = difflib.get_close_matches(choice, table, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(table)}, or FILE.py:FUNCTION"
                raise ValueError(f"{key} is {choice!r}, which does not exist; {hint}")
        return self

    @model_validator(mode="after")
    def _parts_read_the_keys(self) -> RunBase:
        """A setting of a part that the run does not have would do nothing."""
        if user_files(self):
            return self  # config/files.py reads what those functions want
        if self.options:
            raise ValueError("options are for a FILE.py:FUNCTION of yours, which this run has not; take them out")
        for name in idle_settings(self, set()):
            raise ValueError(f"{name} is read by no part of this run ({_choices(self)}); take it out")
        return self


def idle_settings(run: RunBase, also_read: set[str]) -> list[str]:
    """Keys that are set, and read by neither the run's parts nor as one of `also_read`."""
    unread = known_settings(run) - read_settings(run) - also_read
    return [name for name in sorted(unread & set(type(run).model_fields)) if is_set(run, name)]


def _choices(run: RunBase) -> str:
    return ", ".join(f"{key}: {getattr(run, key)}" for key in METHODS[_method(run)].choices)


def _method(run: Section) -> str:
    """The method that a run names; it stands on each class below."""
    return str(vars(run)["method"])


# --- from stored preferences ----------------------------------------------------------------------------------------


class KLProbe(Section):
    """How a run that does not sample while it trains measures its distance for `kl_budget`."""

    every: Positive = Field(10, description="steps between two measurements")
    prompts: Positive = Field(32, description="training prompts that the policy completes for each, always the same")
    max_new_tokens: Positive = 32


class Offline(RunBase):
    """Runs that learn from stored preferences."""

    steps: Positive = 100
    learning_rate: AboveZero = 1e-4
    preferences: Literal["ranked", "data"] = Field("ranked", description="made by `rank`, or given in the data")
    loss: str
    beta: AboveZero = Field(0.1, description="reward per nat of log-ratio")
    kl_probe: KLProbe = KLProbe()

    @model_validator(mode="after")
    def _probe_has_a_budget(self) -> Offline:
        if self.kl_budget is None and is_set(self, "kl_probe"):
            raise ValueError("kl_probe is for kl_budget, which this run has not; take it out or give a budget")
        if self.kl_budget is not None and self.kl_probe.every > self.steps:
            raise ValueError(
                f"kl_budget is never measured: kl_probe.every is {self.kl_probe.every}, steps {self.steps}; "
                "lower kl_probe.every"
            )
        return self


class PairSettings(Section):
    """What losses on pairs (chosen, rejected) are made of."""

    loss: str = Field("sigmoid", description="sigmoid, robust, ipo, hinge, simpo, orpo, dpop, or FILE.py:FUNCTION")
    beta: AboveZero = Field(0.1, description="reward per nat of log-ratio; ipo: tau")
    label_smoothing: Smoothing = Field(0.0, description="share of pairs that are thought to be the wrong way round")
    target_margin: NonNegative = Field(0.0, description="simpo: the margin of reward that is aimed at")
    dpop_lambda: NonNegative = Field(50.0, description="dpop: price of a chosen completion less likely than before")
    nll_coef: NonNegative = Field(0.0, description="weight of the chosen completions' negative log-likelihood")
    length_normalised: bool = Field(False, description="log-ratios are means over a completion's tokens, not sums")
    reference_free: bool = Field(False, description="log-probabilities in place of log-ratios to the SFT model")

    @model_validator(mode="after")
    def _loss_gets_what_it_is_about(self) -> PairSettings:
        """Odds are those of a probability, which a log-ratio is not; and any log-probability is a loss to dpop."""
        wanted = {"orpo": True, "dpop": False}.get(self.loss, self.reference_free)
        if self.reference_free != wanted:
            what = "log-probabilities" if wanted else "log-ratios to the SFT model"
            raise ValueError(f"loss {self.loss} is defined on {what}; set reference_free: {str(wanted).lower()}")
        return self


class PairRun(PairSettings, Offline):
    """Runs that learn from pairs (chosen, rejected)."""


class DPO(PairRun):
    """Direct preference optimisation."""

    method: Literal["dpo"]


class CDPO(PairRun):
    """Conservative DPO: some labels are wrong."""

    method: Literal["cdpo"]
    label_smoothing: Smoothing = 0.1


class RobustDPO(PairRun):
    """DPO with an unbiased loss for labels that are wrong at a known rate."""

    method: Literal["robust"]
    loss: str = "robust"
    label_smoothing: Smoothing = 0.1


class IPO(PairRun):
    """Identity preference optimisation: a squared loss with a finite aim."""

    method: Literal["ipo"]
    loss: str = "ipo"
    length_normalised: bool = True


class Hinge(PairRun):
    """SLiC's hinge loss on DPO's margin."""

    method: Literal["hinge"]
    loss: str = "hinge"


class SimPO(PairRun):
    """Simple preference optimisation: mean log-probabilities, no reference, a margin to reach."""

    method: Literal["simpo"]
    loss: str = "simpo"
    beta: AboveZero = 2.0
    target_margin: NonNegative = 1.0
    length_normalised: bool = True
    reference_free: bool = True


class ORPO(PairRun):
    """Odds-ratio preference optimisation: SFT on the chosen completion and a log-odds term, no reference."""

    method: Literal["orpo"]
    loss: str = "orpo"
    nll_coef: NonNegative = 1.0
    length_normalised: bool = True
    reference_free: bool = True


class CPO(PairRun):
    """Contrastive preference optimisation: DPO without a reference, and SFT on the chosen completion."""

    method: Literal["cpo"]
    nll_coef: NonNegative = 1.0
    reference_free: bool = True


class DPOP(PairRun):
    """DPO-positive: a chosen completion is not to become less likely than it was."""

    method: Literal["dpop"]
    loss: str = "dpop"


class LabelRun(Offline):
    """Runs that learn from labelled completions."""

    desirable_weight: AboveZero = 1.0
    undesirable_weight: AboveZero = 1.0

    @model_validator(mode="after")
    def _loss_knows_the_baseline(self) -> LabelRun:
        """KTO's is in nats, BCO's in units of reward."""
        if not is_user_file(self.loss) and self.loss != _method(self):
            raise ValueError(
                f"loss {self.loss} does not measure from the baseline of method {_method(self)}; "
                f"use method: {self.loss}, or a FILE.py:FUNCTION"
            )
        return self


class KTO(LabelRun):
    """Kahneman-Tversky optimisation, from labels."""

    method: Literal["kto"]
    loss: str = Field("kto", description="kto, or FILE.py:FUNCTION")


class BCO(LabelRun):
    """Binary classifier optimisation, from labels."""

    method: Literal["bco"]
    loss: str = Field("bco", description="bco, or FILE.py:FUNCTION")


# --- from samples ---------------------------------------------------------------------------------------------------


class Sampled(RunBase, Generation):
    """Runs that learn from what the policy samples while it trains."""

    steps: Positive = 50
    learning_rate: AboveZero = 1e-4
    prompts_per_step: Positive = 8
    samples_per_prompt: Positive = 4
    epochs: Positive = Field(1, description="passes over each step's samples")
    truncated_penalty: NonNegative = Field(0.0, description="taken from the reward of a sample cut by the length limit")
    overlong_buffer: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of max_new_tokens, at their end, in which a penalty for length grows; 0: none"
    )
    overlong_penalty: NonNegative = Field(1.0, description="of a sample as long as max_new_tokens, in units of reward")
    failed_rewards: Fraction = Field(0.5, description="share of a step's rewards that may be no finite number")

    @model_validator(mode="after")
    def _penalty_has_a_buffer(self) -> Sampled:
        if self.overlong_buffer == 0 and is_set(self, "overlong_penalty"):
            raise ValueError("overlong_penalty is for overlong_buffer, which is 0; take it out or give a buffer")
        return self


class Online(Sampled):
    """Policy-gradient methods."""

    policy_loss: str = Field(
        "clipped", description="clipped, gspo, cispo, sequence_clipped, reinforce, or FILE.py:FUNCTION"
    )
    aggregation: Aggregation = Field(
        "token-mean", description="from losses per token to one; sequence-sum divides by max_new_tokens and sequences"
    )
    clip_low: AtMostOne = Field(0.2, description="the ratio is held above 1 - clip_low")
    clip_high: AboveZero = Field(0.2, description="the ratio is held below 1 + clip_high")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description="bound of the ratio where the advantage is negative"
    )
    entropy_coef: NonNegative = Field(0.0, description="weight of the policy's entropy, a bonus")
    kl_coef: NonNegative = Field(0.05, description="price of a nat of KL to the SFT model")
    kl_in: Literal["reward", "loss"] = Field("loss", description="where that price is paid")
    kl_estimator: str = Field("k3", description="k1, k2, k3, or FILE.py:FUNCTION")
    kl_target: AboveZero | None = Field(
        None, description="nats per sequence: kl_coef then adapts, to keep the KL near it"
    )
    kl_horizon: Positive = Field(10_000, description="samples over which kl_coef adapts")

    @model_validator(mode="after")
    def _kl_has_a_price(self) -> Online:
        for name in ("kl_in", "kl_estimator"):
            if self.kl_coef == 0 and is_set(self, name):
                raise ValueError(f"{name} is for kl_coef, which is 0; take it out or give a coefficient")
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("kl_target adapts kl_coef, which is 0 and would stay so; give it a value above 0")
        if self.kl_target is None and is_set(self, "kl_horizon"):
            raise ValueError("kl_horizon is for kl_target, which this run has not; take it out or give a target")
        samples = self.prompts_per_step * self.samples_per_prompt
        if self.kl_target is not None and samples >= MOST_HORIZONS * self.kl_horizon:
            raise ValueError(
                f"kl_horizon is {self.kl_horizon} and a step has {samples} samples, so that one step could turn "
                f"kl_coef negative; make kl_horizon more than {samples / MOST_HORIZONS:g}"
            )
        return self

    @model_validator(mode="after")
    def _kl_has_a_gradient(self) -> Online:
        if self.kl_coef > 0 and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator k1 as a term of the loss has the mean gradient 0, so that kl_coef would do nothing; "
                "set kl_estimator: k2 or k3, or kl_in: reward"
            )
        return self


class PPO(Online):
    """Proximal policy optimisation with a critic."""

    method: Literal["ppo"]
    samples_per_prompt: Positive = 1
    prompts_per_step: Positive = 32
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: str = "k1"
    critic_learning_rate: AboveZero = 1e-4
    gamma: AtMostOne = 1.0
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    value_clip: AboveZero = 0.2
    shared_trunk: bool = Field(False, description="the critic is a second head on the policy's own trunk")
    value_coef: AboveZero = Field(0.1, description="with a shared trunk: weight of the critic's loss")

    @model_validator(mode="after")
    def _one_optimiser_or_two(self) -> PPO:
        idle, reader = (
            ("critic_learning_rate", "a critic of its own; shared_trunk is true")
            if self.shared_trunk
            else ("value_coef", "shared_trunk: true")
        )
        if is_set(self, idle):
            raise ValueError(f"{idle} is for {reader}; take it out")
        return self


class Advantaged(Online):
    """Methods without a critic, which differ in how a sample's reward becomes an advantage."""

    advantages: str = Field(
        "grpo", description="grpo, rloo, reinforce++, reinforce++_baseline, opo, or FILE.py:FUNCTION"
    )
    samples_per_prompt: Annotated[int, Field(ge=1)] = 8
    scale_by_std: bool = Field(True, description="grpo: divide by the standard deviation of the group")
    gamma: AtMostOne = Field(1.0, description="reinforce++: discount per token")
    most_batches: Positive = Field(
        1, description="batches of prompts sampled for a step, to replace groups whose rewards are all equal"
    )

    @model_validator(mode="after")
    def _groups_compare(self) -> Advantaged:
        if self.samples_per_prompt < 2 and self.advantages in ("grpo", "rloo", "reinforce++_baseline", "opo"):
            raise ValueError(
                f"samples_per_prompt is {self.samples_per_prompt}; {self.advantages} compares samples of one prompt: "
                "give 2 or more"
            )
        if self.samples_per_prompt < 2 and self.most_batches > 1:
            raise ValueError(
                "most_batches replaces groups whose rewards are all equal, and samples_per_prompt is 1, so that all "
                "are; give 2 or more, or take most_batches out"
            )
        return self


class GRPO(Advantaged):
    """Group-relative policy optimisation."""

    method: Literal["grpo"]
    aggregation: Aggregation = "sequence-mean"


class DrGRPO(Advantaged):
    """GRPO without its two biases: of length, and of a group's spread."""

    method: Literal["dr_grpo"]
    aggregation: Aggregation = "sequence-sum"
    scale_by_std: bool = False
    kl_coef: NonNegative = 0.0


class DAPO(Advantaged):
    """Decoupled clip and dynamic sampling policy optimisation."""

    method: Literal["dapo"]
    clip_high: AboveZero = 0.28
    kl_coef: NonNegative = 0.0
    most_batches: Positive = 4
    overlong_buffer: Annotated[float, Field(ge=0, le=1)] = 0.2


class GSPO(Advantaged):
    """Group sequence policy optimisation: one ratio for a sequence."""

    method: Literal["gspo"]
    policy_loss: str = "gspo"
    aggregation: Aggregation = "sequence-mean"
    clip_low: AtMostOne = 3e-4
    clip_high: AboveZero = 4e-4
    kl_coef: NonNegative = 0.0


class CISPO(Advantaged):
    """Clipped importance-sampling weights: every token keeps its gradient."""

    method: Literal["cispo"]
    policy_loss: str = "cispo"
    clip_low: AtMostOne = 1.0
    clip_high: AboveZero = 4.0
    kl_coef: NonNegative = 0.0


class RLOO(Advantaged):
    """REINFORCE with a leave-one-out baseline, on whole sequences."""

    method: Literal["rloo"]
    advantages: str = "rloo"
    policy_loss: str = "sequence_clipped"
    aggregation: Aggregation = "sequence-mean"
    samples_per_prompt: Annotated[int, Field(ge=1)] = 4
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: str = "k1"


class ReinforcePlusPlus(Advantaged):
    """REINFORCE with PPO's clip, returns per token whitened over the batch, no critic and no group."""

    method: Literal["reinforce++"]
    advantages: str = "reinforce++"
    samples_per_prompt: Annotated[int, Field(ge=1)] = 1
    prompts_per_step: Positive = 32
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: str = "k1"


class ReinforcePlusPlusBaseline(Advantaged):
    """REINFORCE++ with the group's mean as baseline."""

    method: Literal["reinforce++_baseline"]
    advantages: str = "reinforce++_baseline"
    kl_estimator: str = "k2"


class OPO(Advantaged):
    """On-policy optimisation with the length-weighted baseline of least variance."""

    method: Literal["opo"]
    advantages: str = "opo"
    aggregation: Aggregation = "sequence-sum"
    kl_coef: NonNegative = 0.0


class ReMax(Online):
    """REINFORCE with the reward of the prompt's greedy completion as baseline."""

    method: Literal["remax"]
    samples_per_prompt: Positive = 1
    prompts_per_step: Positive = 32
    aggregation: Aggregation = "sequence-sum"
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: str = "k1"


class RAFT(Sampled):
    """Rejection-sampling fine-tuning: SFT on the best of n samples."""

    method: Literal["raft"]
    samples_per_prompt: Annotated[int, Field(ge=2)] = 8


class OnlineDPO(PairSettings, Sampled):
    """DPO on the best and the worst of the policy's own samples."""

    method: Literal["online_dpo"]
    samples_per_prompt: Annotated[int, Field(ge=2)] = 4


Run = Annotated[
    Union[
        PPO, GRPO, DrGRPO, DAPO, GSPO, CISPO, RLOO, ReinforcePlusPlus, ReinforcePlusPlusBaseline, ReMax, OPO, RAFT,
        DPO, CDPO, RobustDPO, IPO, Hinge, SimPO, ORPO, CPO, DPOP, KTO, BCO, OnlineDPO,
    ],
    Field(discriminator="method"),
]  # fmt: skip


def settings_for(run: RunBase, name: str) -> Any:
    """The value that a part's keyword-only parameter `name` gets: an option of the user's, or the run's key."""
    return run.options[name] if name in run.options else getattr(run, name)
