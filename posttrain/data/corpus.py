"""All sources of an experiment as one list of records: validated, without repeats, each on its side of the split."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from posttrain.config.schema import Data, Source, Split
from posttrain.data.loaders import load_rows
from posttrain.data.records import Dropped, Prompt, Record, make_record, plain_text, select
from posttrain.errors import UserError

SPLITS = ("train", "validation", "test")


@dataclass
class Tally:
    """What became of one source's rows."""

    name: str
    form: str
    read: int
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass
class Corpus:
    """Records in the sources' order, the split of each, and a tally for each source."""

    records: list[Record]
    splits: list[str]
    tallies: dict[str, Tally]

    def account(self) -> str:
        """What became of all rows, for a message that says that some are lacking."""
        dropped: Counter[str] = Counter()
        for tally in self.tallies.values():
            dropped.update(tally.dropped)
        reasons = "".join(f"; {count} dropped: {reason}" for reason, count in dropped.most_common())
        kept = ", ".join(f"{self.splits.count(split)} {split}" for split in SPLITS)
        return f"{sum(tally.read for tally in self.tallies.values())} rows read{reasons}; by split: {kept}"

    def training_texts(self) -> Iterator[str]:
        """What a tokenizer may learn from: the training split's prompts with first answers; other answers."""
        for record, split in zip(self.records, self.splits, strict=True):
            if split == "train":
                yield plain_text(record.prompt) + record.answers[0]
                yield from record.answers[1:]


def read_corpus(config: Data, root: Path) -> Corpus:
    """Load, validate and split all of `config.sources`.

    Filtering never reorders rows. A row that repeats an earlier one of the same form (prompt, answers, label) is
    dropped and counted.

    Args:
        root: the folder that the sources' files are in.

    Raises:
        UserError: as `load_rows`, `select` and `make_record`; an id given twice in a source; nothing left for training.
    """
    corpus = Corpus([], [], {})
    seen: set[tuple[object, ...]] = set()
    for source, name in zip(config.sources, source_names(config.sources), strict=True):
        _read_source(source, name, root, config.prompt_words, corpus, seen)
    corpus.splits = [side(record.prompt, config.split) for record in corpus.records]
    if "train" not in corpus.splits:
        raise UserError(
            f"data.sources: no row is left for training ({corpus.account()}): give more rows or a smaller data.split."
        )
    return corpus


def source_names(sources: Sequence[Source]) -> list[str]:
    """A name for each source: the file's path without its suffix, or the hub id; numbered where two would be equal."""
    names: list[str] = []
    for source in sources:
        plain = source.hub or str(PurePosixPath(source.file or "").with_suffix(""))
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}#{number}", number + 1
        names.append(name)
    return names


def _read_source(
    source: Source, name: str, root: Path, prompt_words: int, corpus: Corpus, seen: set[tuple[object, ...]]
) -> None:
    rows = load_rows(source, root)
    tally = corpus.tallies[name] = Tally(name, source.form, len(rows))
    places: dict[str, str] = {}
    for where, values in rows:
        try:
            record = make_record(
                source.form, name, where, select(source.form, source.columns, where, values), prompt_words
            )
        except Dropped as reason:
            tally.dropped[str(reason)] += 1
            continue
        if record.id in places:
            raise UserError(
                f"{where}: the id {record.id[len(name) + 1 :]!r} was given before, at {places[record.id]}: make ids "
                "unique, or leave the column out."
            )
        places[record.id] = where
        content = (record.form, str(record.prompt), record.answers, record.label)
        if content in seen:
            tally.dropped["repeats an earlier row"] += 1
            continue
        seen.add(content)
        corpus.records.append(record)


def normalise(text: str) -> str:
    """Texts that a reader would call the same become equal: Unicode form, letter case and spacing."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def prompt_key(prompt: Prompt) -> str:
    """What decides a prompt's side: its normalised text; a conversation's messages one after the other."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return "\n".join(normalise(text) for text in texts)


def side(prompt: Prompt, shares: Split) -> str:
    """The split that a prompt belongs to, by its text alone: not by row order, seed, form or source.

    Equal prompts are on one side, so that no test prompt was trained on. The prompt of a rated text is a function of
    the text, so equal texts are on one side too.
    """
    digest = hashlib.sha256(prompt_key(prompt).encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < shares.test:
        return "test"
    return "validation" if share < shares.test + shares.validation else "train"
