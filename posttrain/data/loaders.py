"""Read a source's raw rows: JSON lines, JSON, CSV, TSV, Parquet, or a data set of the hub.

A loader knows files and says where a row stands; what a row must hold is the business of `records`. Every fault is
one sentence with the file, the line and the mend.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.config.schema import Source
from posttrain.errors import UserError

csv.field_size_limit(2**31 - 1)  # the module's own limit of 128 KiB refuses long documents

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class RawRow(NamedTuple):
    """A row as it stands in its source: `where` is "file, line n" (or item, or row), counted from 1."""

    where: str
    values: dict[str, Any]


def load_rows(source: Source, root: Path) -> list[RawRow]:
    """All rows of `source` in their order, with the source's own column names.

    Args:
        source: a `data.sources` entry.
        root: the folder that `source.file` is relative to.

    Raises:
        UserError: the source is missing, empty, not UTF-8, malformed, of unknown format, or the hub cannot be reached.
    """
    rows = _load_hub(source) if source.file is None else _load_file(source, _find(source.file, root))
    if not rows:
        raise UserError(f"{source.file or source.hub}: there are no rows in it: give a source that has some.")
    return rows


def _find(file: str, root: Path) -> Path:
    path = root / file
    # By its name: DVC's files may be links into its cache.
    if not Path(os.path.normpath(path.absolute())).is_relative_to(os.path.normpath(root.absolute())):
        raise UserError(
            f"data.sources: {file} is outside of {root}: move it there, only that folder's files are tracked."
        )
    if not path.is_file():
        there = sorted(str(entry.relative_to(root)) for entry in root.rglob("*") if entry.is_file())
        near = difflib.get_close_matches(file, there, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(there[:8]) or 'no files'}."
        raise UserError(f"data.sources: {path} does not exist: {hint}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty: give one that has rows.")
    return path


def _load_file(source: Source, path: Path) -> list[RawRow]:
    kind = source.format if source.format != "auto" else SUFFIXES.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(sorted(SUFFIXES))
        raise UserError(f"{path}: the name does not tell the format ({known}): set `format:` for this source.")
    if source.header is not None and kind not in ("csv", "tsv"):
        raise UserError(f"{path}: `header:` is for csv and tsv files, this is {kind}: take it out.")
    if kind == "parquet":
        return _parquet(path)
    text = _text(path)
    if not text.strip():
        raise UserError(f"{path}: the file holds nothing but blank lines: give one that has rows.")
    if kind in ("csv", "tsv"):
        return list(_separated(path, text, source.header, "\t" if kind == "tsv" else ","))
    readers: dict[str, Callable[[Path, str], Iterator[RawRow]]] = {"jsonl": _json_lines, "json": _json}
    return list(readers[kind](path, text))


def _text(path: Path) -> str:
    """The file's text without a byte order mark; line ends stay as they are."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path}, line 1, byte 1: this is UTF-16: save the file as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        start = fault.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, start) + 1
        raise UserError(
            f"{path}, line {line}, byte {start + 1}: 0x{data[start]:02x} is not UTF-8: save the file as UTF-8."
        ) from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json_lines(path: Path, text: str) -> Iterator[RawRow]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = _parse(line)
        except ValueError as fault:
            raise UserError(f"{where}: not JSON ({fault}): mend or delete the line.") from None
        yield RawRow(where, _object(where, value))


def _json(path: Path, text: str) -> Iterator[RawRow]:
    try:
        content = _parse(text)
    except json.JSONDecodeError as fault:
        hint = " (one object a line? then set `format: jsonl`)" if fault.msg == "Extra data" else ""
        raise UserError(
            f"{path}, line {fault.lineno}, column {fault.colno}: not JSON ({fault.msg}){hint}: mend the file."
        ) from None
    except ValueError as fault:
        raise UserError(f"{path}: not JSON ({fault}): mend the file.") from None
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        found = f"an object with {sorted(content)}" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise UserError(f'{path}: found {found}, wanted a list of rows or {{"data": [rows]}}: mend the file.')
    for number, value in enumerate(rows, start=1):
        where = f"{path}, item {number}"
        yield RawRow(where, _object(where, value))


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: found a {type(value).__name__}, wanted an object with named columns: mend the row.")
    return value


def _separated(path: Path, text: str, header: list[str] | None, delimiter: str) -> Iterator[RawRow]:
    """Rows of a CSV (RFC 4180: quoted cells may span lines) or TSV file (no quoting, as IANA defines it)."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}, line {line}: a NUL byte: this is not a text table, save it again as UTF-8 text.")
    lines = io.StringIO(text, newline="")
    if delimiter == ",":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    names = header
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as fault:
            raise UserError(
                f"{where}: malformed row ({fault}): mend the quotes of the row that begins there."
            ) from None
        if cells is None:
            return
        if not cells or cells == [""]:
            continue
        if names is None:
            names = _header(where, cells)
        elif len(cells) != len(names):
            raise UserError(
                f"{where}: found {len(cells)} cells, wanted {len(names)} ({', '.join(names)}): mend the row."
            )
        else:
            yield RawRow(where, dict(zip(names, cells, strict=True)))


def _header(where: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) < len(names):
        raise UserError(f"{where}: the header {names} names a column twice: rename one.")
    return names


def _parquet(path: Path) -> list[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.ParquetFile(path).read().to_pylist()
    except (pa.ArrowException, OSError) as fault:
        raise UserError(f"{path}: not a readable Parquet file ({str(fault).splitlines()[0]}): save it again.") from None
    return [RawRow(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _load_hub(source: Source) -> list[RawRow]:
    import datasets

    try:
        loaded = datasets.load_dataset(
            source.hub, split=source.hub_split, download_config=datasets.DownloadConfig(max_retries=1)
        )
    except Exception as fault:  # network, authentication, unknown id, unknown split: each library below has its own
        reason = (str(fault).strip() or type(fault).__name__).splitlines()[0]
        raise UserError(
            f"data.sources: {source.hub} (split {source.hub_split}) cannot be read from the hub ({reason}): check "
            "the id and the network, or save it as a file under data.path."
        ) from None
    return [RawRow(f"{source.hub}, row {number}", dict(row)) for number, row in enumerate(loaded, start=1)]
