"""What the sections of the configuration share: their base, their number types, and what all trainings can set."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Smoothing = Annotated[float, Field(ge=0, lt=0.5)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """A part of the configuration: immutable, with no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_bool_for_number(cls, values: Any) -> Any:
        """YAML's yes and no would become 1 and 0."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{name} is {str(value).lower()}, where a number or a text belongs")
        return values


def is_set(section: Section, name: str) -> bool:
    """Whether a key has another value than its default; a resolved config has every key."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))


class Generation(Section):
    """Sampling for training and evaluation: temperature alone."""

    max_new_tokens: Positive = 32
    temperature: AboveZero = 1.0
    generation_batch: Positive = Field(64, description="sequences generated at once")


class Lora(Section):
    """Low-rank adapters: they alone train, and are merged into the weights that the stage puts out."""

    rank: Positive = 8
    alpha: AboveZero = Field(16.0, description="the update is alpha / rank times B A")
    targets: Union[Literal["all-linear"], Annotated[list[str], Field(min_length=1)]] = Field(
        "all-linear", description="names of the linear layers that get adapters; all but the output head"
    )


class Training(Section):
    """What every training stage can set."""

    steps: Positive
    learning_rate: AboveZero
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: NonNegative = 0.0
    max_grad_norm: AboveZero = 1.0
    minibatch: Positive = Field(16, description="samples of one optimiser step")
    microbatch_tokens: Positive = Field(4096, description="tokens of one forward pass, padding included")
    checkpoint_every: Positive = Field(10, description="steps between two checkpoints")
    train_layers: Positive | None = Field(
        None, description="only the last layers train, with the norm after them and a reward's or critic's head"
    )
    lora: Lora | None = Field(None, description="adapters train in place of the weights")

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Training:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} is more than steps {self.steps}; lower it")
        return self

    @model_validator(mode="after")
    def _one_kind_of_saving(self) -> Training:
        if self.lora is not None and self.train_layers is not None:
            raise ValueError("train_layers and lora are two ways to train less; keep one of them")
        return self
