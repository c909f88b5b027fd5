"""The raw data against what DVC has recorded of it. DVC's files may be read-only links: nothing here writes to them."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.errors import UserError
from posttrain.provenance.digests import DigestCache, file_digest, files_below

Digest = Callable[[Path], str]


@dataclass(frozen=True)
class Tracked:
    """A folder that DVC tracks: `listing` maps each file's path below `folder` to its md5, None where it is unknown."""

    dvc_file: Path
    folder: Path
    md5: str
    listing_file: Path
    listing: Mapping[str, str] | None


def read_tracked(folder: Path) -> Tracked:
    """What `<folder>.dvc` and the DVC cache say. Raises `UserError` where either is missing its form."""
    dvc_file = folder.with_name(folder.name + ".dvc")
    md5 = _recorded_md5(dvc_file)
    cache = _cache_folder(_repository(dvc_file))
    listing_file = cache / "files" / "md5" / md5[:2] / md5[2:]
    return Tracked(dvc_file, folder, md5, listing_file, _read_listing(listing_file, md5))


def differences(
    tracked: Tracked, digest: Digest = lambda path: file_digest(path, "md5")
) -> tuple[list[str], list[str]]:
    """Paths of files that are missing, and of those that are altered or were added."""
    listing = tracked.listing or {}
    missing, altered = [], []
    for name, md5 in listing.items():
        path = tracked.folder / name
        if not path.is_file():
            missing.append(str(path))
        elif digest(path) != md5:
            altered.append(str(path))
    present = {path.relative_to(tracked.folder).as_posix() for path in files_below(tracked.folder)}
    added = [str(tracked.folder / name) for name in sorted(present - set(listing))]
    return missing, altered + added


def data_state(folder: str | Path) -> list[str]:
    """Files of the data folder that differ from what DVC tracks; empty where folder or listing is not there yet.

    Quick enough for every dry run: digests are remembered by stat in .dvc/tmp.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return []
    tracked = read_tracked(folder)
    if tracked.listing is None:
        return []
    cache = DigestCache(_repository(tracked.dvc_file) / ".dvc" / "tmp" / "posttrain-digests.json")
    missing, altered = differences(tracked, lambda path: cache.digest(path, "md5"))
    cache.save()
    return missing + altered


def verify_data(verified: Path, folder: Path, cache: DigestCache) -> None:
    """Check the data folder against data_verified.json. Raises `UserError` that names the first other file."""
    try:
        entries: Sequence[dict[str, Any]] = json.loads(verified.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{verified} is damaged; delete it and run snakemake again") from None
    for entry in entries:
        path = folder / entry["path"]
        if not path.is_file():
            raise UserError(f"{path} is missing, though {verified} lists it; run dvc checkout --force {folder}")
        if path.stat().st_size != entry["size"] or cache.digest(path, "md5") != entry["md5"]:
            raise UserError(f"{path} has changed since {verified} was made; {mend(folder)}")


def mend(folder: Path) -> str:
    """The two ways out of a difference."""
    return f"accept it with 'dvc add {folder}', or restore the data with 'dvc checkout --force {folder}'"


def _recorded_md5(dvc_file: Path) -> str:
    try:
        out = yaml.safe_load(dvc_file.read_text(encoding="utf-8"))["outs"][0]
        md5 = str(out["md5"])
    except FileNotFoundError:
        raise UserError(f"{dvc_file} is missing; track the folder with 'dvc add {dvc_file.with_suffix('')}'") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, IndexError, TypeError):
        raise UserError(f"{dvc_file} is not a file that 'dvc add' wrote; restore it from git") from None
    if not md5.endswith(".dir") or out.get("hash") != "md5":
        raise UserError(
            f"{dvc_file} must track a folder with DVC 3; remove it and 'dvc add {dvc_file.with_suffix('')}'"
        )
    return md5


def _read_listing(path: Path, md5: str) -> dict[str, str] | None:
    if not path.exists():
        return None
    if file_digest(path, "md5") != md5.removesuffix(".dir"):
        raise UserError(f"{path} (DVC's list of the data's files) is damaged; delete it and run again")
    return {entry["relpath"]: entry["md5"] for entry in json.loads(path.read_text(encoding="utf-8"))}


def _repository(dvc_file: Path) -> Path:
    for folder in dvc_file.absolute().parents:
        if (folder / ".dvc").is_dir():
            return folder
    raise UserError(f"{dvc_file} is in no DVC repository; run 'dvc init' beside it")


def _cache_folder(repository: Path) -> Path:
    """DVC's cache by its own order of config files: system, user, repository, local."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    own = repository / ".dvc"
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    folder = own / "cache"
    for path in (Path("/etc/xdg/dvc/config"), user / "dvc" / "config", own / "config", own / "config.local"):
        settings.clear()
        try:
            settings.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not DVC's configuration ({str(error).splitlines()[0]}); mend it") from None
        given = settings.get("cache", "dir", fallback=None)
        if given:
            folder = path.parent / Path(given).expanduser()
    return folder
