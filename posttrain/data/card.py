"""The data card: what was read, what was dropped and why, how long and how rated the rest is."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.config.schema import Data
from posttrain.data.assemble import TableRow, Tables
from posttrain.data.corpus import SPLITS, Corpus
from posttrain.data.render import Rendered

Facts = dict[str, Any]


def card_facts(config: Data, corpus: Corpus, rendered: Sequence[Rendered], tables: Tables, tokenizer: Facts) -> Facts:
    """The card as JSON; lists and keys in a fixed order, numbers rounded to 4 digits.

    Args:
        tokenizer: what is to be said of the tokenizer (vocabulary, fingerprint, start and eos token).
    """
    named = {"sft": tables.sft, "prompts": tables.prompts, "pairs": tables.pairs, "labels": tables.labels}
    prompts = [len(row.prompt_ids) for row in rendered if row.dropped is None]
    answers = [len(ids) for row in rendered for ids in row.answers]
    return {
        "sources": _sources(corpus, rendered),
        "tables": {name: _per_split(rows) for name, rows in named.items() if rows is not None},
        "dropped_from_tables": dict(sorted(tables.dropped.items())),
        "cut": {
            "prompts": sum(row.cut_prompt for row in rendered),
            "completions": sum(row.cut_answers for row in rendered),
        },
        "tokens": {"prompt": _summary(prompts, whole=True), "completion": _summary(answers, whole=True)},
        "ratings": _ratings(corpus, rendered),
        "tokenizer": tokenizer,
        "settings": config.model_dump(mode="json", exclude={"sources", "path"}),
    }


def write_card(folder: Path, facts: Facts) -> None:
    """Write card.json and card.md into `folder`."""
    (folder / "card.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "card.md").write_text(_markdown(facts), encoding="utf-8")


def _sources(corpus: Corpus, rendered: Sequence[Rendered]) -> list[Facts]:
    kept: dict[str, Counter[str]] = {name: Counter() for name in corpus.tallies}
    for record, split, row in zip(corpus.records, corpus.splits, rendered, strict=True):
        kept[record.source][split] += row.dropped is None
    return [
        {
            "name": name,
            "form": tally.form,
            "read": tally.read,
            "kept": {split: kept[name][split] for split in SPLITS},
            "dropped": dict(sorted(tally.dropped.items())),
        }
        for name, tally in corpus.tallies.items()
    ]


def _per_split(rows: Sequence[TableRow]) -> Facts:
    counts = Counter(row["split"] for row in rows)
    return {split: counts[split] for split in SPLITS}


def _summary(values: Sequence[float], whole: bool = False) -> Facts:
    if not values:
        return {"count": 0}
    ranked = sorted(values)
    at = {"least": 0.0, "median": 0.5, "p95": 0.95, "most": 1.0}
    quantiles = {name: round(ranked[int(share * (len(ranked) - 1))], 4) for name, share in at.items()}
    return {
        "count": len(values),
        "mean": round(fmean(values), 4),
        **quantiles,
        "histogram": histogram(values, whole),
    }


def histogram(values: Sequence[float], whole: bool = False) -> Facts:
    """Edges and counts of about 64 bins at most, of one round width; a value on an edge counts in the bin above it.

    Args:
        values: at least one finite number.
        whole: these are whole numbers: a bin holds one or more of them, and its edges lie halfway between two.
    """
    width, shift = _bin_width(max(values) - min(values), whole), 0.5 if whole else 0.0
    bins = Counter(math.floor((value + shift) / width + 1e-9) for value in values)  # 0.6 / 0.2 is just under 3
    first, last = min(bins), max(bins)
    edges = [round(index * width - shift, 10) for index in range(first, last + 2)]
    return {"edges": edges, "counts": [bins[index] for index in range(first, last + 1)]}


def _bin_width(span: float, whole: bool) -> float:
    """The least of 1, 2, 2.5 or 5 times a power of ten that covers `span` in 64 bins; a whole number if `whole`."""
    if span == 0:
        return 1.0
    span = max(span, 1e-4)  # finer bins would be lost in the edges' rounding
    power = 10.0 ** math.floor(math.log10(span / 64))
    steps = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    width = next(step * power for step in steps if span <= 64 * step * power)
    return max(width, 1.0) if whole else width


def _ratings(corpus: Corpus, rendered: Sequence[Rendered]) -> Facts:
    values: dict[str, list[float]] = {}
    for record, row in zip(corpus.records, rendered, strict=True):
        if record.rating is not None and row.dropped is None:
            values.setdefault(record.source, []).append(record.rating)
    return {name: _summary(ratings) for name, ratings in values.items()}


def _markdown(facts: Facts) -> str:
    parts = ["# Data card", "", "## Rows", "", *_source_lines(facts["sources"]), ""]
    parts += ["## Dropped, and why", "", *_drop_lines(facts), ""]
    parts += ["## Tables", "", *_table_lines(facts["tables"]), ""]
    parts += ["## Tokens", "", *_token_lines(facts), "", "![lengths](lengths.png)", ""]
    if facts["ratings"]:
        parts += ["## Ratings", "", *_rating_lines(facts["ratings"]), "", "![ratings](ratings.png)", ""]
    return "\n".join(parts)


def _grid(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, ["---"] * len(head), *rows)]


def _source_lines(sources: Sequence[Facts]) -> list[str]:
    rows = [
        [s["name"], s["form"], s["read"], *(s["kept"][split] for split in SPLITS), sum(s["dropped"].values())]
        for s in sources
    ]
    return _grid(["source", "form", "read", *SPLITS, "dropped"], rows)


def _drop_lines(facts: Facts) -> list[str]:
    rows = [[s["name"], reason, count] for s in facts["sources"] for reason, count in s["dropped"].items()]
    for reason, count in facts["dropped_from_tables"].items():
        table, _, why = reason.partition(": ")
        rows.append([f"table {table}", why, count])
    return _grid(["where", "why", "rows"], rows) if rows else ["Nothing."]


def _table_lines(tables: Mapping[str, Facts]) -> list[str]:
    return _grid(["table", *SPLITS], [[name, *(counts[split] for split in SPLITS)] for name, counts in tables.items()])


def _token_lines(facts: Facts) -> list[str]:
    cut, tokenizer = facts["cut"], facts["tokenizer"]
    return [
        *_grid(["", "rows", "mean", "median", "p95", "most"], [_cells(name, s) for name, s in facts["tokens"].items()]),
        "",
        f"Cut by the length limits: {cut['prompts']} prompts (their beginning), {cut['completions']} completions "
        "(their end, which then have no eos).",
        "",
        f"Tokenizer: {tokenizer['vocabulary']} tokens, fingerprint `{tokenizer['fingerprint'][:12]}`, sequences "
        f"start with `{tokenizer['start']}`, completions end with `{tokenizer['eos']}`.",
    ]


def _rating_lines(ratings: Mapping[str, Facts]) -> list[str]:
    head = ["source", "rows", "mean", "median", "p95", "most"]
    return _grid(head, [_cells(name, summary) for name, summary in ratings.items()])


def _cells(name: str, summary: Facts) -> list[object]:
    return [name, *(summary.get(key, "-") for key in ("count", "mean", "median", "p95", "most"))]
