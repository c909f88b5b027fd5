"""report.html: the whole comparison in one page that needs no other file."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from posttrain.evaluation.canvas import colours
from posttrain.evaluation.comparison import Comparison, notes
from posttrain.evaluation.entries import Entry, read_json
from posttrain.evaluation.findings import accuracy_sentence, findings
from posttrain.evaluation.page import PAGE
from posttrain.evaluation.page_style import STYLE
from posttrain.evaluation.reproduce import recipe
from posttrain.evaluation.seeds import GAINS
from posttrain.evaluation.statistics import Estimate
from posttrain.evaluation.summary import KL_ERROR, Column, columns_of

SAMPLES = 8  # prompts whose completions are shown side by side

# Under each picture, in this page and in Snakemake's report (workflow/report/).
CAPTIONS = {
    "gains.png": "No training stage sees the judge, where there is one: a reward that rises while the judge's score "
    "does not is a sign of reward hacking. Circles: one run, with its 95 % interval over prompts. Diamonds: the mean "
    "of several seeds (small dots), with its 95 % interval over seeds.",
    "reward_kl.png": "Right is further from SFT: of two runs with the same gain, the one with less KL is the safer. "
    "Lines are the way of runs that learn from their own samples, as means over a tenth of the steps.",
    "win_rate.png": "Share of prompts where a run's completion scores higher than SFT's. 0.5 is a tie.",
    "lengths.png": "A run that gains by length alone shows here.",
    "limits.png": "Beyond a dashed line, in the shaded part, a run is flagged. Bars leave SFT's own uncertainty out.",
    "curves.png": "Metrics logged while the runs trained, on their training prompts.",
}
_LEAD = "gains.png"  # beside the findings


def write_report(path: Path, title: str, comparison: Comparison, plots: Sequence[Path]) -> None:
    """Render the page. Everything that models or users wrote is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, duration=_duration, moment=_moment, minus=_minus)
    environment.filters.update(fixed=_fixed, visible=_visible)
    subjects, entries = comparison.subjects(), comparison.entries
    records = [record for experiment in comparison.experiments for record in experiment.records]
    figures = {plot.name: {"caption": CAPTIONS[plot.name], "image": _inline(plot)} for plot in plots}
    page = environment.from_string(PAGE).render(
        style=STYLE,
        title=title,
        comparison=comparison,
        prompts=sorted({len(entry.rows) for entry in entries}),
        entries=entries,
        columns=columns_of(entries),
        colours=colours(subjects),
        findings=findings(comparison),
        notes=notes(comparison),
        lead=figures.pop(_LEAD, None),
        figures=figures,
        gains=GAINS,
        samples=_samples([subject.members[0] for subject in subjects]),
        one_of_each=bool(comparison.groups),
        cards=_cards(comparison),
        longest=max([1.0, *(record.facts.get("seconds", 0) for record in records)]),
        accuracies=_accuracies(comparison),
        recipes=[found for each in comparison.experiments if (found := recipe(each))],
        kl_error=KL_ERROR,
    )
    path.write_text(page, encoding="utf-8")


def _samples(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The completions of the entries for the first prompts that all of them have."""
    by_id = [{row["id"]: row for row in entry.rows} for entry in entries]
    shared = [row for row in entries[0].rows if all(row["id"] in rows for rows in by_id)][:SAMPLES]
    return [
        {
            "prompt": row["prompt"],
            "answers": [(entry, rows[row["id"]]) for entry, rows in zip(entries, by_id, strict=True)],
        }
        for row in shared
    ]


def _accuracies(comparison: Comparison) -> list[str]:
    found = [(each.name, sentence) for each in comparison.experiments if (sentence := accuracy_sentence(each))]
    return [sentence if len(found) == 1 else f"{name}: {sentence}" for name, sentence in found]


def _cards(comparison: Comparison) -> list[dict[str, Any]]:
    """The data cards of the experiments, each once."""
    found: dict[bytes, dict[str, Any]] = {}
    for experiment in comparison.experiments:
        data = (experiment.folders or {}).get("data")
        if data is None or not (data / "card.json").exists():
            continue
        facts = read_json(data / "card.json")
        pictures = [_inline(data / name) for name in ("lengths.png", "ratings.png") if (data / name).exists()]
        card = {"sources": facts.get("sources", []), "tables": facts.get("tables", {}), "pictures": pictures}
        known = found.setdefault((data / "card.json").read_bytes(), {**card, "experiments": []})
        known["experiments"].append(experiment.name)
    return list(found.values())


def _inline(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _number(found: Estimate, column: Column) -> dict[str, str]:
    value, low, high = (_fixed(x, column.digits) for x in (found.value, found.low, found.high))
    return {"value": value, "interval": f"[{low}, {high}]"}


def _fixed(number: float, digits: int) -> str:
    return _minus(f"{round(number, digits) + 0.0:.{digits}f}")  # + 0.0 makes a zero of a negative zero


def _visible(text: str) -> str:
    """A text whose control characters, other than newline and tab, are seen and do nothing."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _moment(stamp: str) -> str:
    return re.sub(r"(T| )(\d\d:\d\d):\d\d", r" \2", stamp).replace("+00:00", " UTC")


def _minus(text: str) -> str:
    """A text whose numbers have the mathematical sign."""
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)
