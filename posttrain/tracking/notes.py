"""What MLflow's page says in words: the description of an experiment and of each run's row, with links to its files.

Both are markdown above a marker; what a person writes below it stays.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.tracking import views

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

NOTE = "mlflow.note.content"
MARKER = "<!-- posttrain writes what stands above -->"
TABLE = "samples.json"
_TABLES = "mlflow.loggedArtifacts"
_COLUMNS = ("prompt", "text", "reward", "judge", "kl", "finish")
_GUIDE = """

- **Rows.** One per entry of `runs:`, and `sft`, which they are compared with. Their values are rounded to four digits.
- **Views** (menu at the top right): *Runs* is this table and, as charts, the comparison; *Training curves* lays the
  runs' curves over each other.
- **To compare two runs** tick their rows and press *Compare*.
- **Samples side by side**: the third of the three buttons above the table.
- **A run's files**: its name leads to its page, which links the stages behind it, each with its files.
"""


def describe(client: MlflowClient, experiment: str, run: str | None = None) -> None:
    """Write an experiment's views and description, and those of the row of `run` (None: of every row).

    A store where we may not tag does without.
    """
    try:
        found = client.get_experiment(experiment)
        report = _report(client, experiment)
        tags = views.outdated(found.tags, round(time.time() * 1000))
        where = f"[report.html]({_file(report, 'report.html')})" if report else "report.html, once `compare` has run,"
        text = f"One row per run, one for the SFT model. **{where}** is the comparison on one page.{_GUIDE}"
        tags.update(_note(found.tags, text))
        for key, value in tags.items():
            client.set_experiment_tag(experiment, key, value)
        chosen = f" and tags.run = '{run}'" if run else ""
        for row in client.search_runs([experiment], f"tags.role = 'parent'{chosen}", max_results=1000):
            for key, value in _note(row.data.tags, _words(client, found.name, row, report)).items():
                client.set_tag(row.info.run_id, key, value)
    except Exception as error:  # whatever a store of runs or of artifacts raises: a description is no stage's end
        reason = getattr(error, "error_code", type(error).__name__)
        logging.getLogger(__name__).info("no descriptions in MLflow's page: %s", reason)


def log_samples(client: MlflowClient, run_id: str, path: Path) -> None:
    """Log a table of evaluated samples in the form that MLflow's page shows, several runs side by side."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    names = [name for name in _COLUMNS if name in table.column_names and table[name].null_count < len(table)]
    data = [[_short(row[name]) for name in names] for row in table.select(names).to_pylist()]
    client.log_text(run_id, json.dumps({"columns": names, "data": data}), TABLE)
    client.set_tag(run_id, _TABLES, json.dumps([{"path": TABLE, "type": "table"}]))


def _words(client: MlflowClient, experiment: str, row: Run, report: Run | None) -> str:
    tags, identity = row.data.tags, row.info.experiment_id
    name = tags["run"]
    children = client.search_runs(
        [identity], f"tags.`mlflow.parentRunId` = '{row.info.run_id}'", order_by=["attributes.start_time ASC"]
    )
    model = "sft" if name == "sft" else f"runs/{name}"
    lines = [f"The model is in `results/{experiment}/{model}/model`."]
    if report:
        lines[0] += f" All runs on one page: [report.html]({_file(report, 'report.html')})."
    lines.append("")
    for child in children:
        if "superseded" not in child.data.tags:
            files = [file.path for file in client.list_artifacts(child.info.run_id) if not file.is_dir]
            links = ", ".join(f"[{file}]({_file(child, file)})" for file in files)
            lines.append(f"- **[{child.info.run_name}]({_page(child)})**, {child.info.status.lower()}: {links}")
    return "\n".join(lines)


def _note(tags: dict[str, str], text: str) -> dict[str, str]:
    """The tag to set, if any: what stands below the marker is kept."""
    known = tags.get(NOTE, "")
    _, marker, below = known.partition(MARKER)
    if known and not marker:
        below = f"\n\n{known}"
    new = f"{text}\n\n{MARKER}{below}"
    return {} if new == known else {NOTE: new}


def _report(client: MlflowClient, experiment: str) -> Run | None:
    found: Sequence[Run] = client.search_runs(
        [experiment], "tags.stage = 'compare' and attributes.status = 'FINISHED'", max_results=1
    )
    return found[0] if found else None


def _page(run: Run) -> str:
    return views.page(run.info.experiment_id, run.info.run_id)


def _file(run: Run, path: str) -> str:
    return views.page(run.info.experiment_id, run.info.run_id, f"/artifacts/{path}")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
