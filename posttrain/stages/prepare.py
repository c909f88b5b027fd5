"""prepare: raw rows to tables of token ids, with the tokenizer and a data card."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.checkpoint.shards import Shards
from posttrain.config.schema import Data
from posttrain.data import pictures, tables
from posttrain.data.assemble import Tables, assemble, demand
from posttrain.data.card import Facts, card_facts, write_card
from posttrain.data.corpus import Corpus, read_corpus
from posttrain.data.render import Limits, Rendered, context_window, render
from posttrain.data.tokenizer import Tokenizer, copy_tokenizer, fingerprint, load_tokenizer, train_tokenizer
from posttrain.model.tiny import BUILT_IN

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

BATCH = 1024  # records that are tokenised between two looks at a signal


def run(stage: Stage) -> None:
    """Inputs: raw (data_verified.json: the files were checked), model. Outputs: tables, tokenizer/, data card."""
    config = stage.config.data
    corpus = read_corpus(config, Path(config.path))
    _log_corpus(stage, corpus)
    model = stage.inputs["model"] / "model"
    tokenizer = _tokenizer(stage, corpus, model)
    rendered = _render(stage, corpus, tokenizer, _limits(config, model))
    made = assemble(corpus, rendered, config.rating_pairs, stage.seed, tokenizer.start_id)
    demand(made, corpus, config.rating_pairs)
    _write_tables(stage.out, made)
    _write_card(stage, card_facts(config, corpus, rendered, made, _describe(tokenizer)))


def _log_corpus(stage: Stage, corpus: Corpus) -> None:
    for tally in corpus.tallies.values():
        reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items())) or "none"
        stage.log.info("%s (%s): %d rows read, dropped: %s", tally.name, tally.form, tally.read, reasons)


def _tokenizer(stage: Stage, corpus: Corpus, model: Path) -> Tokenizer:
    """The built-in base learns its tokenizer from the training split's texts; a pretrained one brings its own."""
    folder = stage.out / "tokenizer"
    if stage.config.model.base == BUILT_IN:
        train_tokenizer(corpus.training_texts(), stage.config.data.vocabulary, folder)
    else:
        copy_tokenizer(model, folder)
    return load_tokenizer(folder)


def _limits(config: Data, model: Path) -> Limits:
    return Limits(config.max_prompt_tokens, config.max_completion_tokens, config.too_long_prompt, context_window(model))


def _render(stage: Stage, corpus: Corpus, tokenizer: Tokenizer, limits: Limits) -> list[Rendered]:
    def work(batch: int) -> list[dict[str, object]]:
        records = corpus.records[batch * BATCH : (batch + 1) * BATCH]
        return [asdict(row) for row in render(records, tokenizer, limits)]

    def on_resume(batches: int) -> None:
        stage.log.info("resumed at step %d", batches)

    total = -(-len(corpus.records) // BATCH)
    rows = Shards(stage.state / "rendered").run(total, work, stage.interrupted, on_resume)
    return [Rendered(**row) for row in rows]


def _write_tables(folder: Path, made: Tables) -> None:
    named = {
        "sft": (made.sft, tables.SFT),
        "prompts": (made.prompts, tables.PROMPTS),
        "pairs": (made.pairs, tables.PAIRS),
        "labels": (made.labels, tables.LABELS),
    }
    for name, (rows, schema) in named.items():
        if rows is not None:
            tables.write_table(folder / f"{name}.parquet", rows, schema)


def _describe(tokenizer: Tokenizer) -> Facts:
    start, eos = (tokenizer.fast.id_to_token(token) for token in (tokenizer.start_id, tokenizer.eos_id))
    return {"vocabulary": len(tokenizer), "fingerprint": fingerprint(tokenizer.folder), "start": start, "eos": eos}


def _write_card(stage: Stage, facts: Facts) -> None:
    settings = facts["settings"]
    limits = {"prompt": settings["max_prompt_tokens"], "completion": settings["max_completion_tokens"]}
    write_card(stage.out, facts)
    pictures.draw_lengths(stage.out / "lengths.png", facts["tokens"], limits, facts["cut"])
    if facts["ratings"]:
        pictures.draw_ratings(stage.out / "ratings.png", facts["ratings"])
    for name in ("card.md", "lengths.png", *(["ratings.png"] if facts["ratings"] else [])):
        stage.tracker.artifact(stage.out / name)
    for name, counts in facts["tables"].items():
        stage.log.info("%s: %s", name, ", ".join(f"{count} {split}" for split, count in counts.items()))
        stage.tracker.summary({f"data/{name}/{split}": count for split, count in counts.items()})
