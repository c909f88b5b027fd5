"""pull_data (host): bring the raw data here, check every file ourselves, and write down what was checked."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.checkpoint.publish import write_atomic
from posttrain.config.schema import Config
from posttrain.errors import UserError
from posttrain.provenance.raw_data import Tracked, differences, mend, read_tracked

log = logging.getLogger(__name__)

DVC = (sys.executable, "-m", "dvc")  # this environment's, whatever is on PATH


def main(config: Config, inputs: Mapping[str, Path], output: Path) -> None:
    """The folder is `data.path`, tracked by `<data.path>.dvc`; `output` is data_verified.json."""
    pull_data(Path(config.data.path), output)


def pull_data(folder: Path, output: Path, dvc: Sequence[str] = DVC) -> None:
    """Pull what is missing, hash every file, write path, md5 and size of each: equal data, equal bytes.

    Raises `UserError` that names the first files that differ from `<folder>.dvc`, also where `dvc` claims success.
    """
    tracked = read_tracked(folder)
    if tracked.listing is not None:
        missing, altered = differences(tracked)
        _refuse_altered(tracked, altered)
    if tracked.listing is None or missing:
        _pull(tracked, dvc)
        tracked = read_tracked(folder)
    _verify(tracked)
    _write(tracked, output)
    log.info("%s: %d files as %s says", folder, len(tracked.listing or {}), tracked.dvc_file)


def _refuse_altered(tracked: Tracked, altered: Sequence[str]) -> None:
    if altered:
        raise UserError(f"{_first(altered)} is not what {tracked.dvc_file} tracks; {mend(tracked.folder)}")


def _pull(tracked: Tracked, dvc: Sequence[str]) -> None:
    log.info("dvc pull %s", tracked.dvc_file)
    command = [*dvc, "pull", tracked.dvc_file.name]
    try:
        done = subprocess.run(
            command, cwd=tracked.dvc_file.parent, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise UserError(f"{dvc[0]} cannot be run ({error.strerror}); install DVC into this environment") from None
    if done.returncode:
        raise UserError(
            f"dvc pull {tracked.dvc_file} failed: {_reason(done.stderr)}; "
            "mend it (the remote? see 'dvc remote list'), then run again"
        )


def _reason(text: str) -> str:
    """DVC tells one fault in several lines, the cause now in a warning and now in the error; digests say nothing."""
    lines = [re.sub("^(ERROR|WARNING): ", "", line.strip()) for line in text.splitlines()]
    told = " ".join(line for line in lines if not line.startswith(("md5: ", "<http")))
    return textwrap.shorten(told, 300, placeholder=" ...") or "no reason given"


def _verify(tracked: Tracked) -> None:
    """DVC's word is not taken: every byte is hashed against the listing, whose own hash stands in the .dvc file."""
    if tracked.listing is None:
        raise UserError(
            f"dvc pull claims success, but {tracked.folder} was not brought: "
            f"its list {tracked.listing_file} is missing; see 'dvc pull -v {tracked.dvc_file}'"
        )
    missing, altered = differences(tracked)
    if missing:
        raise UserError(
            f"{_first(missing)} is missing, though dvc pull claims success; "
            f"see 'dvc pull -v {tracked.dvc_file}' and 'dvc status -c'"
        )
    _refuse_altered(tracked, altered)


def _write(tracked: Tracked, output: Path) -> None:
    files = [
        {"path": name, "md5": md5, "size": (tracked.folder / name).stat().st_size}
        for name, md5 in sorted((tracked.listing or {}).items())
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"path": tracked.folder.as_posix(), "md5": tracked.md5, "files": files}
    write_atomic(output, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _first(paths: Sequence[str]) -> str:
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
