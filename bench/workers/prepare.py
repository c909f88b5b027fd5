"""Makes the models and the data of one row, for all sides: texts for TRL, the same as ids in tables for ours.

usage: python -m bench.workers.prepare TASK.json
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bench.meter import read_task
from bench.models import make_models
from bench.texts import make_rows
from bench.work import ONLINE, PAIRS, Work
from posttrain.data import tables
from posttrain.data.tokenizer import Tokenizer, load_tokenizer

COMPLETIONS = ("completion", "chosen", "rejected")


def with_ids(row: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """The row's texts as ids, completions with the end token.

    Raises:
        ValueError: a prompt and its completion tokenised together are not the ids of both.
    """
    texts = [name for name in COMPLETIONS if name in row]
    ids = {"prompt": tokenizer.encode([row["prompt"]])[0]}
    for name in texts:
        ids[name] = tokenizer.encode([row[name]])[0]
        if tokenizer.encode([row["prompt"] + row[name]])[0] != ids["prompt"] + ids[name]:
            raise ValueError(f"row {row['id']}: the tokenizer joins the prompt with its {name}")
        ids[name] = [*ids[name], tokenizer.eos_id]
    return {f"{name}_ids": found for name, found in ids.items()}


def write_tables(work: Work, rows: list[dict[str, Any]], ids: list[dict[str, Any]], folder: Path) -> None:
    """The one table that the method reads."""
    keys = [{"id": row["id"], "split": "train"} for row in rows]
    if work.method in ONLINE:
        found = [{**key, **i, "text": row["prompt"]} for key, i, row in zip(keys, ids, rows, strict=True)]
        tables.write_table(folder / "prompts.parquet", found, tables.PROMPTS)
    elif work.method in PAIRS:
        found = [{**key, **i, "gap": 1.0} for key, i in zip(keys, ids, strict=True)]
        tables.write_table(folder / "pairs.parquet", found, tables.PAIRS)
    elif work.method == "kto":
        found = [{**key, **i, "label": row["label"]} for key, i, row in zip(keys, ids, rows, strict=True)]
        tables.write_table(folder / "labels.parquet", found, tables.LABELS)
    else:
        found = [{**key, **i} for key, i in zip(keys, ids, strict=True)]
        tables.write_table(folder / "sft.parquet", found, tables.SFT)


def prepare(work: Work, models: Path, data: Path) -> None:
    """Models once, data anew: it is quickly made."""
    make_models(work.model, models)
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(models / "policy" / "model", data / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    rows = make_rows(work)
    tokenizer = load_tokenizer(models / "policy" / "model")
    ids = [with_ids(row, tokenizer) for row in rows]
    write_tables(work, rows, ids, data)
    (data / "rows.json").write_text(json.dumps(rows))
    lengths = [(len(i["prompt_ids"]), len(i.get("chosen_ids", i.get("completion_ids", [])))) for i in ids]
    (data / "lengths.json").write_text(json.dumps(lengths))


def main() -> None:
    """One process of the bench."""
    task = read_task()
    prepare(Work(**task["work"]), Path(task["models"]), Path(task["data"]))


if __name__ == "__main__":
    main()
