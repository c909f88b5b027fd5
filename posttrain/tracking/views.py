"""What a person sees first in MLflow's page: saved views of an experiment, as its own "Views" menu keeps them.

A view is an experiment tag `mlflow.sharedViewState.<id>` whose value is JSON: `{name, createdAt, updatedAt, state}`,
times in ms, `state` again JSON in a string: filter, order, columns and charts of the page (read from the bundle of
MLflow 3.17.2, which takes plain JSON beside the compressed form that it writes). `?viewStateShareKey=<id>` opens it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# MLflow's page has two faces; this tag, and a parameter of the address, ask for the one without language model traces.
KIND = {"mlflow.experimentKind": "custom_model_development"}
_FACE = "machine_learning"
_PREFIX = "mlflow.sharedViewState."
RUNS, CURVES = "posttrain-runs", "posttrain-curves"

COLOUR = "mlflow.runColor"
BASELINE_COLOUR = "#7a828e"  # the colours of the report's plots
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#5e4fa2")

_HEADLINES = (
    "eval/judge",
    "eval/win_rate",
    "eval/reward_gain",
    "eval/kl",
    "eval/distinct_2",
    "eval/perplexity",
)
_CURVES = (
    "rollout/reward",
    "train/kl",
    "train/loss",
    "train/accuracy",
    "train/margin",
    "rollout/length",
)
# Columns and their widths in pixels: together, what a laptop shows without scrolling.
_ALWAYS = {"attributes.`Run Name`": 116, "runDateAndNestInfo": 138}
_COLUMNS = {
    "tags.`method`": 64,
    "tags.`seed`": 54,
    **{f"metrics.`{name}`": 22 + 6 * len(name) for name in _HEADLINES},
    "tags.`flags`": 108,
}


def link(base: str, experiment: str, view: str = RUNS) -> str:
    """The address of a view on the MLflow server at `base`."""
    mode = "&compareRunsMode=CHART" if view == CURVES else ""
    return f"{base}/#/experiments/{experiment}/runs?workflowType={_FACE}&viewStateShareKey={view}{mode}"


def page(experiment: str, run: str, tab: str = "") -> str:
    """The address of a run's page, within an MLflow server's."""
    return f"#/experiments/{experiment}/runs/{run}{tab}?workflowType={_FACE}"


def view_tags(milliseconds: int) -> dict[str, str]:
    """The tags of an experiment that hold its views, made at this time."""
    return {
        _PREFIX + RUNS: _envelope("Runs", _runs(), milliseconds),
        _PREFIX + CURVES: _envelope("Training curves", _curves(), milliseconds),
    }


def outdated(known: Mapping[str, str], milliseconds: int) -> dict[str, str]:
    """The tags that an experiment with the tags `known` lacks, or has from another version of ours.

    A view that a person has changed in the page stays as it is.
    """
    wanted = {**KIND, **view_tags(milliseconds)}
    return {key: value for key, value in wanted.items() if key not in known or _differs(known[key], value)}


def _differs(known: str, wanted: str) -> bool:
    try:
        old, new = json.loads(known), json.loads(wanted)
        return bool(old["createdAt"] == old["updatedAt"] and (old["name"], old["state"]) != (new["name"], new["state"]))
    except (ValueError, KeyError, TypeError):
        return False


def _envelope(name: str, state: Mapping[str, Any], milliseconds: int) -> str:
    return json.dumps({"name": name, "createdAt": milliseconds, "updatedAt": milliseconds, "state": json.dumps(state)})


def _runs() -> dict[str, Any]:
    charts = [_chart("BAR", "headlines", metricKey=name, displayName=name) for name in _HEADLINES]
    charts += [
        _chart("SCATTER", "trade", xaxis=_axis("eval/kl"), yaxis=_axis(name), displayName=f"{name} against eval/kl")
        for name in ("eval/win_rate", "eval/reward")
    ]
    parallel = {
        "selectedParams": ["run.learning_rate"],
        "selectedMetrics": ["eval/kl", "eval/length", "eval/distinct_2", "eval/reward_gain", "eval/win_rate"],
        "showAllRuns": False,
    }
    charts.append(_chart("PARALLEL", "settings", displayName="From setting to outcome", **parallel))
    difference = {
        "compareGroups": ["Parameters", "Model metrics"],
        "chartName": "What differs",
        "showChangeFromBaseline": False,
        "showDifferencesOnly": True,
        "baselineColumnUuid": "",
    }
    charts.append(_chart("DIFFERENCE", "settings", **difference))
    sections = [
        _section("headlines", "Headline values"),
        _section("trade", "What it costs"),
        _section("settings", "Settings and outcome", columns=1, cardHeight=420),
    ]
    return {
        **_page("tags.role = 'parent'", "attributes.start_time", charts, sections),
        "selectedColumns": list(_COLUMNS),
        "columnOrder": [*_ALWAYS, *_COLUMNS],
        "columnWidths": {**_ALWAYS, **_COLUMNS},
    }


def _curves() -> dict[str, Any]:
    line = {"lineSmoothness": 0, "displayPoints": False, "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    charts = [_chart("LINE", "training", metricKey=name, displayName=name, **line) for name in _CURVES]
    # Ordered by anything else than the date, the page shows the stages alone and not below their runs.
    return _page(
        "tags.stage = 'post_train' and tags.superseded IS NULL",
        "tags.`mlflow.runName`",
        charts,
        [_section("training", "Training, step by step")],
    )


def _page(search: str, order: str, charts: Sequence[Any], sections: Sequence[Any]) -> dict[str, Any]:
    return {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": True,
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,  # else the page sorts the sections by name, and its own come first
    }


def _section(key: str, name: str, **settings: Any) -> dict[str, Any]:
    return {"uuid": key, "name": name, "display": True, "isReordered": False, "deleted": False, **settings}


def _chart(kind: str, section: str, **settings: Any) -> dict[str, Any]:
    name = settings.get("displayName", kind)
    return {
        "type": kind,
        "uuid": f"{section}:{name}",
        "metricSectionId": section,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
        **settings,
    }


def _axis(metric: str) -> dict[str, str]:
    return {"key": metric, "type": "METRIC"}
