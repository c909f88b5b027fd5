"""Model folders that transformers 4.51 and 5 read alike, with the same bytes for the same weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from posttrain.data.tokenizer import copy_tokenizer, load_tokenizer
from posttrain.errors import UserError
from posttrain.model.heads import RewardModule
from posttrain.model.lora import without_adapters

SHARD = "5GB"
# How transformers 5 keeps a tokenizer that is its tokenizer.json and nothing else; 4.x knows it by the other name.
GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


def export_model(model: PreTrainedModel, tokenizer_dir: str | Path, folder: str | Path) -> None:
    """Writes the model (in its dtype, tied weights once) and the tokenizer's files into `folder`.

    Adapters are merged into what is written, and the model keeps them. The folder is made if missing. Its generation
    settings name the tokenizer's special tokens, whatever the base's did: generation ends with the token that ended the
    completions in training. Its files hold no path, time or host.

    Raises:
        UserError: the tokenizer's folder has no tokenizer.json.
    """
    target = Path(folder)
    without_adapters(model).save_pretrained(target, max_shard_size=SHARD)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(Path(tokenizer_dir))
    ids = {"eos_token_id": tokenizer.eos_id, **({} if tokenizer.bos_id is None else {"bos_token_id": tokenizer.bos_id})}
    _write(target / "config.json", {**readable_config(config), **ids})
    generation = {**ids, "pad_token_id": tokenizer.pad_id, "transformers_version": config["transformers_version"]}
    _write(target / "generation_config.json", generation)
    if Path(tokenizer_dir).resolve() != target.resolve():
        copy_tokenizer(Path(tokenizer_dir), target)
    _mend_tokenizer(target / "tokenizer_config.json")


def export_reward_module(reward: RewardModule, tokenizer_dir: str | Path, folder: str | Path) -> None:
    """Writes the reward module as a sequence classifier with one label, for `AutoModelForSequenceClassification`.

    transformers finds a row's last token by its id not being the padding token's. Where that is the eos token, a
    row may end with it; the folder then names no padding token, and transformers scores one row at a time, rightly.

    Raises:
        UserError: transformers has no sequence classifier of this architecture, or the tokenizer's folder has no
            tokenizer.json.
    """
    tokenizer = load_tokenizer(Path(tokenizer_dir))
    pad_id = None if tokenizer.pad_id == tokenizer.eos_id else tokenizer.pad_id
    export_model(_classifier(reward, pad_id), tokenizer_dir, folder)


def readable_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json's content with every value under the names of transformers 4 *and* 5.

    5 moved the rotary base (and its scaling and share of the head) into `rope_parameters`, and renamed `torch_dtype`; 4
    silently takes its own default for what it does not find.
    """
    readable = {name: value for name, value in config.items() if name != "_name_or_path"}
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype is not None:
        readable.update(dtype=dtype, torch_dtype=dtype)
    rope = config.get("rope_parameters")
    if rope:
        readable.update(_rope_of_transformers_4(rope, config))
    if "layer_types" in config:
        readable.update(_window_pattern(config["layer_types"]))
    return readable


def _rope_of_transformers_4(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    if "sliding_attention" in rope:
        names["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    names["rope_theta"] = rope["rope_theta"]
    if rope.get("rope_type", "default") != "default":
        names["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    share = rope.get("partial_rotary_factor")
    if share is not None:
        names["partial_rotary_factor"] = share
    if config["model_type"] == "gpt_neox":
        names.update(rotary_emb_base=rope["rope_theta"], rotary_pct=share)
    return names


def _window_pattern(layer_types: list[str]) -> dict[str, Any]:
    """4.51 knows 'every n-th layer sees everything' alone."""
    if "sliding_attention" not in layer_types or "full_attention" not in layer_types:
        return {}
    return {"sliding_window_pattern": layer_types.index("full_attention") + 1}


def classifier_of(trunk: PreTrainedModel, pad_id: int | None = None) -> PreTrainedModel:
    """transformers' one-label sequence classifier for such a trunk, without weights: a trunk and `score`, nothing else.

    Raises:
        UserError: transformers has none of this architecture, or one that is made in another way.
    """
    config = copy.deepcopy(trunk.config)
    config.num_labels = 1
    config.pad_token_id = pad_id
    kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if kind is not None:
        with torch.device("meta"):
            classifier: PreTrainedModel = kind(config)
        own = f"{classifier.base_model_prefix}."
        rest = {name for name, _ in classifier.named_parameters() if not name.startswith(own)}
        if rest == {"score.weight"} and type(classifier.base_model) is type(trunk):
            return classifier
    raise UserError(
        f"model.base: transformers has no classifier with one 'score' for {config.model_type} models, which reward "
        "models are saved as; use another base"
    )


def _classifier(reward: RewardModule, pad_id: int | None) -> PreTrainedModel:
    classifier = classifier_of(reward.trunk, pad_id)
    setattr(classifier, classifier.base_model_prefix, reward.trunk)
    classifier.score = reward.score
    return classifier


def _mend_tokenizer(path: Path) -> None:
    if not path.is_file():
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") in GENERIC_TOKENIZERS:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    # 5 keeps further special tokens in a list of this name; 4 expects a mapping there, and the list elsewhere.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    settings.pop("backend", None)
    settings.pop("is_local", None)
    _write(path, settings)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
