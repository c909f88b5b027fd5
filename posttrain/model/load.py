"""Loading of models from folders: offline, safetensors only, no code from the folder unless configured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
)

from posttrain.errors import UserError
from posttrain.model.heads import RewardModule

if TYPE_CHECKING:
    from posttrain.config.schema import Model

# transformers 5 renamed it.
DTYPE_ARGUMENT = "torch_dtype" if transformers.__version__.startswith("4.") else "dtype"

# Bars of a second each, which only litter a stage's log.
transformers.utils.logging.disable_progress_bar()


def load_causal_lm(folder: str | Path, settings: Model, device: str) -> PreTrainedModel:
    """Loads a causal language model on `device`, in evaluation mode and with `settings.dtype`.

    Sampling settings in the folder are dropped: they never override the experiment's.

    Raises:
        UserError: the folder holds no model in safetensors, or `settings.attention` cannot be had.
    """
    model = _from_pretrained(AutoModelForCausalLM, Path(folder), settings, device)
    model.generation_config = GenerationConfig()
    return model


def load_reward_module(folder: str | Path, settings: Model, device: str) -> RewardModule:
    """Loads a sequence classifier with one label (key `score.weight`) as a reward module.

    Raises:
        UserError: as `load_causal_lm`, and where the folder's model has no such head.
    """
    model = _from_pretrained(AutoModelForSequenceClassification, Path(folder), settings, device)
    score = getattr(model, "score", None)
    if not isinstance(score, nn.Linear) or score.out_features != 1 or score.bias is not None:
        raise UserError(f"{folder}: {type(model).__name__} has no one-label 'score'; name a reward model's folder")
    return RewardModule(model.base_model, score)


def check_attention(settings: Model, device: str) -> None:
    """Refuses an attention kernel that this machine or this configuration cannot run.

    Raises:
        UserError: with the reason.
    """
    if settings.attention != "flash_attention_2":
        return
    if device != "cuda" or not torch.cuda.is_available():
        reason = "it runs on CUDA devices only"
    elif importlib.util.find_spec("flash_attn") is None:
        reason = "the package flash-attn is not installed"
    elif settings.dtype == "float32":
        reason = "it has no float32 kernels"
    else:
        return
    raise UserError(f"model.attention: flash_attention_2 cannot be used: {reason}; use sdpa")


def _from_pretrained(auto: Any, folder: Path, settings: Model, device: str) -> PreTrainedModel:
    check_attention(settings, device)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json; name a folder that holds a model")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: no *.safetensors file; convert the weights to safetensors (pickles are refused)")
    arguments: dict[str, Any] = {
        DTYPE_ARGUMENT: getattr(torch, settings.dtype),
        "attn_implementation": settings.attention,
        "use_safetensors": True,
        "local_files_only": True,
        "trust_remote_code": settings.trust_remote_code,
        "output_loading_info": True,
    }
    try:
        model, info = auto.from_pretrained(folder, **arguments)
    except SafetensorError as error:
        raise UserError(f"{folder}: the weights cannot be read ({error}); fetch the model again") from error
    except Exception as error:  # every library below has errors of its own for a folder that does not fit together
        raise UserError(f"{folder}: {_mend(error, settings)}") from error
    if info["missing_keys"]:
        raise UserError(f"{folder}: the weights lack {min(info['missing_keys'])}, which {type(model).__name__} needs")
    if settings.attention == "sdpa" and getattr(model.config, "attn_logit_softcapping", None):
        raise UserError(f"{folder}: sdpa cannot cap attention logits as this model does; set model.attention: eager")
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None  # it stops the gradient by id: padding may have the id of a token of the text
    model.to(device).eval()
    loaded: PreTrainedModel = model
    return loaded


def _mend(error: Exception, settings: Model) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    if "trust_remote_code" in text:
        return "the model brings its own code; set model.trust_remote_code: true if you trust it"
    if "attention" in text:
        return f"this architecture has no {settings.attention} attention; set model.attention: eager"
    if "mismatch" in text:
        return "the weights have other shapes than config.json says; fetch both from one place"
    return f"transformers cannot load it ({text.split('. ')[0][:200]}); fetch the model again, or choose another base"
