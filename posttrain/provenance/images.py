"""Image ids: a digest of recipe, lock file and base, known before the image is built and read back inside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from posttrain.errors import UserError
from posttrain.provenance.digests import file_digest, files_below, text_digest

REPOSITORY = Path(__file__).resolve().parents[2]
INSIDE = Path("/opt/posttrain/image.json")
TABLE = "images.json"
# Files of docker/ that do not decide what is in an image: the table counts by its one entry, Apptainer runs images.
NOT_RECIPE = {TABLE, "install_apptainer.py"}


def image_id(name: str, root: Path = REPOSITORY) -> str:
    """Hex sha256 of every recipe file below docker/, the image's entry in docker/images.json and its lock file.

    Raises `UserError` for an unknown image or a missing lock file.
    """
    recipe = root / "docker"
    table = json.loads((recipe / TABLE).read_text(encoding="utf-8"))
    if name not in table:
        raise UserError(f"resources.image: there is no image {name!r} in docker/{TABLE}; it has {', '.join(table)}")
    lock = root / table[name]["lock"]
    if not lock.exists():
        raise UserError(f"{table[name]['lock']} is missing: image {name!r} needs its lock file; restore it from git")
    files = [path for path in files_below(recipe) if path.name not in NOT_RECIPE and path.suffix != ".pyc"]
    parts = {path.relative_to(root).as_posix(): file_digest(path) for path in [*files, lock]}
    return text_digest(json.dumps({"files": parts, "entry": table[name]}, sort_keys=True))


def image_path(name: str, root: Path = REPOSITORY) -> Path:
    """Where the image's `.sif` is kept: one file per id in the user's cache."""
    return image_cache() / f"{name}-{image_id(name, root)[:12]}.sif"


def image_cache() -> Path:
    """The folder of the images in the user's cache."""
    return user_cache() / "images"


def user_cache() -> Path:
    """${POSTTRAIN_CACHE:-${XDG_CACHE_HOME:-~/.cache}/posttrain}"""
    own = os.environ.get("POSTTRAIN_CACHE")
    if own:
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "posttrain"


def current_image(inside: Path = INSIDE) -> str:
    """The id stored in the image that this process runs in, or "host"."""
    try:
        return str(json.loads(inside.read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return "host"
