"""From rendered records to the rows of the tables that later stages read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.config.schema import PAIR_FORMS, SFT_FORMS, RatingPairs
from posttrain.data.corpus import SPLITS, Corpus
from posttrain.data.pairs import Rated, rating_pairs
from posttrain.data.records import Record, plain_text
from posttrain.data.render import Rendered
from posttrain.errors import UserError

TableRow = dict[str, Any]


@dataclass
class Tables:
    """Rows of each table; `pairs` and `labels` are None where no source gives any."""

    sft: list[TableRow]
    prompts: list[TableRow]
    pairs: list[TableRow] | None
    labels: list[TableRow] | None
    dropped: Counter[str] = field(default_factory=Counter)


def assemble(corpus: Corpus, rendered: Sequence[Rendered], settings: RatingPairs, seed: int, start_id: int) -> Tables:
    """Put every rendered record into the tables that its form feeds, in the records' order; drops are counted.

    Args:
        rendered: one for each of `corpus.records`, in order; the sources' tallies learn of those that were dropped.
        settings, seed: for the pairs of rated texts.
        start_id: the one token of a rated pair's prompt.
    """
    kept: list[tuple[Record, str, Rendered]] = []
    for record, split, row in zip(corpus.records, corpus.splits, rendered, strict=True):
        if row.dropped is None:
            kept.append((record, split, row))
        else:
            corpus.tallies[record.source].dropped[row.dropped] += 1
    forms = {record.form for record in corpus.records}
    tables = Tables(_sft(kept), [], None, None)
    tables.prompts = _prompts(kept, tables.dropped)
    if forms.intersection(PAIR_FORMS):
        tables.pairs = _preferences(kept) + _rated(kept, settings, seed, start_id, tables.dropped)
    if "kto" in forms:
        tables.labels = _labels(kept)
    return tables


def _row(record: Record, split: str, **columns: Any) -> TableRow:
    return {"id": record.id, "split": split, **columns}


def _sft(kept: Sequence[tuple[Record, str, Rendered]]) -> list[TableRow]:
    return [
        _row(record, split, prompt_ids=row.prompt_ids, completion_ids=row.answers[0])
        for record, split, row in kept
        if record.form in SFT_FORMS
    ]


def _prompts(kept: Sequence[tuple[Record, str, Rendered]], dropped: Counter[str]) -> list[TableRow]:
    seen: set[tuple[int, ...]] = set()
    rows = []
    for record, split, row in kept:
        if tuple(row.prompt_ids) in seen:
            dropped["prompts: repeats an earlier prompt"] += 1
            continue
        seen.add(tuple(row.prompt_ids))
        rows.append(_row(record, split, prompt_ids=row.prompt_ids, text=plain_text(record.prompt)))
    return rows


def _preferences(kept: Sequence[tuple[Record, str, Rendered]]) -> list[TableRow]:
    """Given preferences; how far the two are apart is not known: the gap is NaN."""
    return [
        _row(
            record,
            split,
            prompt_ids=row.prompt_ids,
            chosen_ids=row.answers[0],
            rejected_ids=row.answers[1],
            gap=math.nan,
        )
        for record, split, row in kept
        if record.form == "preference"
    ]


def _labels(kept: Sequence[tuple[Record, str, Rendered]]) -> list[TableRow]:
    return [
        _row(record, split, prompt_ids=row.prompt_ids, completion_ids=row.answers[0], label=record.label)
        for record, split, row in kept
        if record.form == "kto"
    ]


def _rated(
    kept: Sequence[tuple[Record, str, Rendered]], settings: RatingPairs, seed: int, start_id: int, dropped: Counter[str]
) -> list[TableRow]:
    """Pairs within each source and split: ratings of two sources need not mean the same."""
    groups: dict[tuple[str, str], list[tuple[Record, Rendered]]] = {}
    for record, split, row in kept:
        if record.form == "ratings":
            groups.setdefault((record.source, split), []).append((record, row))
    rows: list[TableRow] = []
    for (_, split), texts in sorted(groups.items(), key=lambda group: SPLITS.index(group[0][1])):
        rated = [Rated(record.id, record.rating or 0.0) for record, _ in texts]
        for better, worse in rating_pairs(rated, settings.margin, settings.per_text, seed):
            chosen, rejected = (texts[index][1] for index in (better, worse))
            ids = [row.prompt_ids[1:] + row.answers[0] for row in (chosen, rejected)]
            if ids[0] == ids[1]:
                dropped["pairs: chosen equals rejected after the cut"] += 1
                continue
            rows.append(
                {
                    "id": f"{chosen.id}>{rejected.id}",
                    "split": split,
                    "prompt_ids": [start_id],
                    "chosen_ids": ids[0],
                    "rejected_ids": ids[1],
                    "gap": rated[better].rating - rated[worse].rating,
                }
            )
    return rows


def demand(tables: Tables, corpus: Corpus, settings: RatingPairs) -> None:
    """Refuse now what would end a later stage: training and evaluation each need something.

    Raises:
        UserError: nothing to imitate is left for training, the margin leaves no pair of rated texts to train on, or
            the test split has no prompt.
    """

    def lacks(rows: list[TableRow], split: str) -> bool:
        return not any(row["split"] == split for row in rows)

    if lacks(tables.sft, "train"):
        raise UserError(
            f"data.sources: no training row is left to imitate ({corpus.account()}): add a source of form ratings, "
            "prompt_completion or messages."
        )
    if tables.pairs is not None and lacks(tables.pairs, "train"):
        raise UserError(
            f"data.sources: no pair is left for training ({corpus.account()}): lower data.rating_pairs.margin "
            f"(it is {settings.margin}), or give more rows."
        )
    if lacks(tables.prompts, "test"):
        raise UserError(
            f"data.sources: no prompt is left for evaluation ({corpus.account()}): give more rows or a greater "
            "data.split.test."
        )
