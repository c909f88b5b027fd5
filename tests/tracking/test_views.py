"""The saved views, decoded as MLflow's page does, and held against the bundle of the installed MLflow."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from posttrain.tracking import views

PAGE_KEYS = re.compile(r'\["selectedColumns","columnOrder"[^\]]*\]')
SEARCH_KEYS = re.compile(r'\["searchFilter","orderByKey"[^\]]*\]')
CHART_KINDS = re.compile(r'\.BAR="BAR",\w+\.LINE="LINE",\w+\.SCATTER="SCATTER"[^}]*DIFFERENCE="DIFFERENCE"')


@cache
def bundle() -> str:
    import mlflow

    folder = Path(mlflow.__file__).parent / "server/js/build/static/js"
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.js")))


def decoded(key: str) -> tuple[str, dict[str, Any]]:
    """Name and state, by the checks of the page's own decoder."""
    envelope = json.loads(views.view_tags(1_700_000_000_000)[f"mlflow.sharedViewState.{key}"])
    assert isinstance(envelope["name"], str) and isinstance(envelope["createdAt"], int)
    assert isinstance(envelope["updatedAt"], int) and isinstance(envelope["state"], str)
    state: dict[str, Any] = json.loads(envelope["state"])
    return envelope["name"], state


def test_the_table_has_the_headline_columns_in_this_order() -> None:
    name, state = decoded(views.RUNS)
    assert name == "Runs" and state["searchFilter"] == "tags.role = 'parent'"
    assert [column.replace("`", "") for column in state["selectedColumns"]] == [
        "tags.method",
        "tags.seed",
        "metrics.eval/judge",
        "metrics.eval/win_rate",
        "metrics.eval/reward_gain",
        "metrics.eval/kl",
        "metrics.eval/distinct_2",
        "metrics.eval/perplexity",
        "tags.flags",
    ]
    assert all(re.fullmatch(r"\w+\.`[^`]+`", column) for column in state["selectedColumns"])
    assert state["columnOrder"][-9:] == state["selectedColumns"] and set(state["columnWidths"]) == set(
        state["columnOrder"]
    )
    assert sum(state["columnWidths"].values()) < 1400 - 330  # beside the page's own frame


def test_the_curves_of_the_runs_lie_over_each_other() -> None:
    name, state = decoded(views.CURVES)
    charts = {chart["metricKey"]: chart["type"] for chart in state["compareRunCharts"]}
    assert name == "Training curves" and set(charts.values()) == {"LINE"}
    assert {"rollout/reward", "train/kl", "train/loss"} <= charts.keys()


@pytest.mark.parametrize("key", [views.RUNS, views.CURVES])
def test_the_installed_page_knows_every_key(key: str) -> None:
    _, state = decoded(key)
    known = {
        name
        for pattern in (PAGE_KEYS, SEARCH_KEYS)
        for found in pattern.findall(bundle())
        for name in json.loads(found)
    }
    assert known and state.keys() <= known
    kinds = CHART_KINDS.search(bundle())
    assert kinds and {chart["type"] for chart in state["compareRunCharts"]} <= set(re.findall(r'"(\w+)"', kinds[0]))
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == sections
    uuids = [chart["uuid"] for chart in state["compareRunCharts"]]
    assert len(set(uuids)) == len(uuids)


def test_the_installed_page_opens_views_by_these_names() -> None:
    for text in (
        '"viewStateShareKey"',
        '"mlflow.sharedViewState."',
        '"compareRunsMode"',
        '"mlflow.runColor"',
        '"runDateAndNestInfo"',
    ):
        assert text in bundle()
    assert 'MACHINE_LEARNING="machine_learning"' in bundle() and '.get("workflowType")' in bundle()
    assert views.link("http://host:1", "7") == (
        "http://host:1/#/experiments/7/runs?workflowType=machine_learning&viewStateShareKey=posttrain-runs"
    )
    assert views.link("http://host:1", "7", views.CURVES).endswith(
        "viewStateShareKey=posttrain-curves&compareRunsMode=CHART"
    )


def test_a_tag_is_small_enough_for_older_servers() -> None:
    assert max(map(len, views.view_tags(1_700_000_000_000).values())) <= 5000


def test_what_a_person_changed_stays_and_an_older_version_of_ours_goes() -> None:
    first = views.outdated({}, 1)
    assert {key.rpartition(".")[2] for key in first} == {"experimentKind", views.RUNS, views.CURVES}
    assert views.outdated(first, 2) == {}

    key = f"mlflow.sharedViewState.{views.RUNS}"
    other = {**json.loads(first[key]), "state": "{}"}
    assert views.outdated({**first, key: json.dumps(other)}, 2).keys() == {key}
    assert views.outdated({**first, key: json.dumps({**other, "updatedAt": 5})}, 6) == {}
    assert views.outdated({**first, key: "no JSON"}, 6) == {}


def test_rows_have_the_colours_of_the_report() -> None:
    from posttrain.evaluation import canvas

    assert (views.BASELINE_COLOUR, views.COLOURS) == (canvas.BASELINE_COLOUR, canvas.COLOURS)
