"""Every way a file can be read or be wrong, as tables of cases with the place the message must name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.config.schema import Source
from posttrain.data.loaders import load_rows
from posttrain.errors import UserError


def load(tmp_path: Path, name: str, content: bytes, **source: Any) -> list[tuple[str, dict[str, Any]]]:
    """Write `content` and load it; places are returned without the folder."""
    (tmp_path / name).write_bytes(content)
    rows = load_rows(Source(file=name, form="prompt_completion", **source), tmp_path)
    return [(where.removeprefix(f"{tmp_path}/"), values) for where, values in rows]


AB = [{"a": "x", "b": "y"}]

READS = {
    "jsonl": ("d.jsonl", b'{"a": "x", "b": "y"}\n', {}, [("d.jsonl, line 1", AB[0])]),
    "jsonl with blank lines, CRLF, no last line end": (
        "d.jsonl",
        b'\r\n{"a": 1}\r\n\r\n  \n{"a": 2}',
        {},
        [("d.jsonl, line 2", {"a": 1}), ("d.jsonl, line 5", {"a": 2})],
    ),
    "jsonl with a line separator inside a text": (
        "d.jsonl",
        '{"a": "one\u2028two\x85three"}\n{"a": 2}\n'.encode(),
        {},
        [("d.jsonl, line 1", {"a": "one\u2028two\x85three"}), ("d.jsonl, line 2", {"a": 2})],
    ),
    "jsonl with a byte order mark": ("d.jsonl", b'\xef\xbb\xbf{"a": 1}\n', {}, [("d.jsonl, line 1", {"a": 1})]),
    "json list": (
        "d.json",
        b'[{"a": 1},\n {"a": null}]',
        {},
        [("d.json, item 1", {"a": 1}), ("d.json, item 2", {"a": None})],
    ),
    "json with data": ("d.json", b'{"data": [{"a": 1}], "licence": "MIT"}', {}, [("d.json, item 1", {"a": 1})]),
    "csv": ("d.csv", b"a,b\nx,y\n", {}, [("d.csv, line 2", AB[0])]),
    "csv with a byte order mark and CRLF": ("d.csv", b"\xef\xbb\xbfa,b\r\nx,y\r\n", {}, [("d.csv, line 2", AB[0])]),
    "csv rows over several lines are named by their first": (
        "d.csv",
        b'a,b\n"one\ntwo\n",1\n\n"say ""hi"", you",2\n',
        {},
        [("d.csv, line 2", {"a": "one\ntwo\n", "b": "1"}), ("d.csv, line 6", {"a": 'say "hi", you', "b": "2"})],
    ),
    "csv without header": ("d.csv", b"x,y\n", {"header": ["a", "b"]}, [("d.csv, line 1", AB[0])]),
    "csv with an empty cell": ("d.csv", b"a,b\n,y\n", {}, [("d.csv, line 2", {"a": "", "b": "y"})]),
    "csv with a cell over 128 KiB": (
        "d.csv",
        b"a,b\n" + b"w" * 200_000 + b",y\n",
        {},
        [("d.csv, line 2", {"a": "w" * 200_000, "b": "y"})],
    ),
    "tsv quotes nothing": ("d.tsv", b'a\tb\n"x\t9" tv\n', {}, [("d.tsv, line 2", {"a": '"x', "b": '9" tv'})]),
    "tsv keeps what is not a line end": (
        "d.txt",
        "x\u2028\ty\x85\r\n".encode(),
        {"format": "tsv", "header": ["a", "b"]},
        [("d.txt, line 1", {"a": "x\u2028", "b": "y\x85"})],
    ),
    "upper-case suffix": ("D.JSONL", b'{"a": 1}\n', {}, [("D.JSONL, line 1", {"a": 1})]),
}


@pytest.mark.parametrize("case", READS)
def test_reads(case: str, tmp_path: Path) -> None:
    name, content, source, wanted = READS[case]
    assert load(tmp_path, name, content, **source) == wanted


def test_json_nan_arrives_as_nan(tmp_path: Path) -> None:
    ((_, row),) = load(tmp_path, "d.jsonl", b'{"a": NaN}\n')
    assert row["a"] != row["a"]


def test_parquet_keeps_lists_and_booleans(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}], "label": True}, {"messages": [], "label": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    got = load_rows(Source(file="d.parquet", form="messages"), tmp_path)
    assert [row.values for row in got] == rows
    assert [row.where.rsplit("/", 1)[-1] for row in got] == ["d.parquet, row 1", "d.parquet, row 2"]


FAULTS = {
    "empty file": ("d.jsonl", b"", {}, ["d.jsonl", "empty"]),
    "blank file": ("d.csv", b"\n \n", {}, ["d.csv", "blank lines"]),
    "only a byte order mark": ("d.csv", b"\xef\xbb\xbf", {}, ["d.csv", "blank lines"]),
    "a header and no rows": ("d.csv", b"a,b\n", {}, ["d.csv", "no rows"]),
    "an empty list": ("d.json", b"[]", {}, ["d.json", "no rows"]),
    "latin-1": ("d.csv", b"a,b\nx,y\ncaf\xe9,z\n", {}, ["d.csv", "line 3", "byte 12", "0xe9", "UTF-8"]),
    "latin-1 after a byte order mark": ("d.csv", b"\xef\xbb\xbfa\n\xe9\n", {}, ["line 2", "byte 6", "0xe9"]),
    "utf-16": ("d.csv", "a,b\nx,y\n".encode("utf-16"), {}, ["d.csv", "UTF-16", "UTF-8"]),
    "a line that is not JSON": ("d.jsonl", b'{"a": 1}\n\n{"a": \n', {}, ["d.jsonl, line 3", "not JSON"]),
    "a line that is no object": ("d.jsonl", b'{"a": 1}\n[1]\n', {}, ["d.jsonl, line 2", "list"]),
    "a line nested too deeply": ("d.jsonl", b"[" * 200_000 + b"\n", {}, ["d.jsonl, line 1", "nested"]),
    "broken json": ("d.json", b'[{"a": 1},\n {"a" 2}]', {}, ["d.json, line 2, column 7", "not JSON"]),
    "json lines named .json": ("d.json", b'{"a": 1}\n{"a": 2}\n', {}, ["d.json, line 2", "format: jsonl"]),
    "json without a list": ("d.json", b'{"rows": []}', {}, ["d.json", "rows", "data"]),
    "a json item that is no object": ("d.json", b'[{"a": 1}, "x"]', {}, ["d.json, item 2", "str"]),
    "a cell too few": ("d.csv", b"a,b\nx,y\nx\n", {}, ["d.csv, line 3", "1 cells", "2 (a, b)"]),
    "a cell too many": ("d.tsv", b"a\tb\nx\ty\tz\n", {}, ["d.tsv, line 2", "3 cells", "2 (a, b)"]),
    "a quote that never closes": ("d.csv", b'a,b\nx,y\n"x,y\nx,y\n', {}, ["d.csv, line 3", "malformed"]),
    "text after a closing quote": ("d.csv", b'a,b\n"x"z,y\n', {}, ["d.csv, line 2", "malformed"]),
    "a column named twice": ("d.csv", b"a,a\nx,y\n", {}, ["d.csv, line 1", "twice"]),
    "a NUL byte": ("d.csv", b"a,b\nx,\0\n", {}, ["d.csv, line 2", "NUL"]),
    "not parquet": ("d.parquet", b"PAR1 no", {}, ["d.parquet", "Parquet"]),
    "an unknown suffix": ("d.txt", b"x", {}, ["d.txt", "format:"]),
    "a header for json": ("d.jsonl", b"{}", {"header": ["a"]}, ["d.jsonl", "header"]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_name_the_place_and_the_mend(case: str, tmp_path: Path) -> None:
    name, content, source, words = FAULTS[case]
    with pytest.raises(UserError) as fault:
        load(tmp_path, name, content, **source)
    message = str(fault.value)
    assert all(word in message for word in words), message
    assert message.count("\n") == 0


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("a\nx\n")
    with pytest.raises(UserError, match=r"review\.csv does not exist: did you mean reviews\.csv"):
        load_rows(Source(file="review.csv", form="ratings"), tmp_path)


def test_a_file_outside_of_the_tracked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "other.csv").write_text("a\nx\n")
    with pytest.raises(UserError, match="outside"):
        load_rows(Source(file="../other.csv", form="ratings"), tmp_path / "data")


def test_a_link_into_the_cache_of_dvc_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "59f9a6").write_text("a\nx\n")
    (tmp_path / "data/rows.csv").symlink_to(tmp_path / "59f9a6")
    assert [row.values for row in load_rows(Source(file="rows.csv", form="ratings"), tmp_path / "data")] == [{"a": "x"}]


def test_hub_reads_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c"}) + "\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = load_rows(Source(hub=str(tmp_path), form="prompt_completion"), tmp_path)
    assert [row.values for row in rows] == [{"prompt": "p", "completion": "c"}]
    assert rows[0].where.endswith(", row 1")


@pytest.mark.parametrize(
    "fault", [ConnectionError("Couldn't reach 'who/what' on the Hub\nmore"), ValueError("Unknown split")]
)
def test_hub_faults_are_one_sentence(fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError) as raised:
        load_rows(Source(hub="who/what", form="ratings"), tmp_path)
    message = str(raised.value)
    assert "who/what" in message and str(fault).splitlines()[0] in message and "\n" not in message
