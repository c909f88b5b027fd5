"""report.html: the whole comparison in one page that needs no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from posttrain.evaluation.entries import Entry, Record
from posttrain.evaluation.page import PAGE, STYLE
from posttrain.evaluation.plots import colours
from posttrain.evaluation.statistics import Estimate
from posttrain.evaluation.summary import COLUMNS, Column

SAMPLES = 8  # prompts whose completions are shown side by side

_CAPTIONS = {
    "reward.png": "Mean reward-model score on the held-out prompts.",
    "win_rate.png": "Share of prompts where a run's completion scores higher than SFT's. 0.5 is a tie.",
    "reward_kl.png": "Right is further from SFT: of two runs with the same gain, the one with less KL is the safer.",
    "curves.png": "Metrics logged while the runs trained.",
    "lengths.png": "A run that gains reward by length alone shows here.",
}


@dataclass(frozen=True)
class Material:
    """All that the page is made of. `data` is the folder of `prepare`, where the comparison has one."""

    title: str
    entries: Sequence[Entry]
    plots: Sequence[Path]
    records: Sequence[Record]
    data: Path | None


def write_report(path: Path, material: Material) -> None:
    """Render the page. Everything that models or users wrote is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    environment.filters["duration"] = _duration
    environment.filters["moment"] = lambda stamp: stamp.replace("T", " ").replace("+00:00", " UTC")
    page = environment.from_string(PAGE).render(
        style=STYLE,
        title=material.title,
        entries=material.entries,
        columns=COLUMNS,
        colours=dict(zip((entry.name for entry in material.entries), colours(material.entries), strict=True)),
        findings=findings(material.entries),
        figures=[(_CAPTIONS[plot.name], _inline(plot)) for plot in material.plots],
        samples=_samples(material.entries),
        card=_card(material.data),
        records=material.records,
        total=sum(record.facts.get("seconds", 0) for record in material.records),
        packages=_common(material.records, "packages"),
        commits=sorted({_commit(record) for record in material.records}),
        containers=any(record.manifest.get("image") not in (None, "host") for record in material.records),
    )
    path.write_text(page, encoding="utf-8")


def findings(entries: Sequence[Entry]) -> list[str]:
    """What the intervals allow to say, a sentence each."""
    gains = {entry.name: entry.metrics["eval/reward_gain"] for entry in entries if "eval/reward_gain" in entry.metrics}
    sentences = []
    for text, chosen in (
        ("better than SFT by the reward model", [name for name, gain in gains.items() if gain.low > 0]),
        ("worse than SFT by the reward model", [name for name, gain in gains.items() if gain.high < 0]),
        ("not told apart from SFT", [name for name, gain in gains.items() if gain.low <= 0 <= gain.high]),
    ):
        if chosen:
            sentences.append(f"{', '.join(chosen)}: {text} (95 % paired interval of the gain).")
    return sentences


def _samples(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The completions of all entries for the first prompts that all of them have."""
    by_id = [{row["id"]: row for row in entry.rows} for entry in entries]
    shared = [row for row in entries[0].rows if all(row["id"] in rows for rows in by_id)][:SAMPLES]
    return [
        {
            "prompt": row["prompt"],
            "answers": [(entry, rows[row["id"]]) for entry, rows in zip(entries, by_id, strict=True)],
        }
        for row in shared
    ]


def _card(data: Path | None) -> dict[str, Any] | None:
    if data is None or not (data / "card.json").exists():
        return None
    facts: dict[str, Any] = json.loads((data / "card.json").read_text(encoding="utf-8"))
    pictures = [_inline(data / name) for name in ("lengths.png", "ratings.png") if (data / name).exists()]
    return {"sources": facts.get("sources", []), "tables": facts.get("tables", {}), "pictures": pictures}


def _inline(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _number(found: Estimate, column: Column) -> dict[str, str]:
    value, low, high = (
        f"{round(x, column.digits) + 0.0:.{column.digits}f}" for x in (found.value, found.low, found.high)
    )
    return {"value": value, "interval": f"[{low}, {high}]"}  # adding 0.0 makes a zero of a negative zero


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _common(records: Sequence[Record], key: str) -> dict[str, str]:
    """Package versions over all stages; where stages differ, all of a package's versions."""
    found: dict[str, set[str]] = {}
    for record in records:
        versions: Mapping[str, str] = record.manifest.get(key, {})
        for name, version in versions.items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _commit(record: Record) -> str:
    commit = record.facts.get("commit") or "unknown"
    return f"{commit} with uncommitted changes" if record.facts.get("dirty") else str(commit)
