"""What we ask of an MLflow store: one experiment, one parent run per entry of `runs:` and one for the SFT baseline.

Everything here imports MLflow, inside functions, and nothing here runs in a stage's own process: `init_store` is a host
rule, the rest belongs to the sender.

MLflow makes local artifact locations absolute when an experiment is created. `_make_relocatable` writes the relative
one back, so that the project folder can be moved: MLflow derives each run's location from its experiment's, and clients
and servers started in the project folder resolve it there.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.schema import Config
from posttrain.errors import UserError
from posttrain.tracking import notes, views
from posttrain.tracking.destination import Destination, destination, mask

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

BASELINE = "sft"
_PARAM_LIMIT = 6000  # characters of one value in MLflow's stores
_TOO_LONG = "see the artifact long_params.json"
_BATCH = 100  # params of one request
_ROLE, _FORMER = "parent", "former"  # of rows: the current one of a run, and those of its earlier settings


def init_store(config: Config, root: Path, log: logging.Logger) -> Destination:
    """Create or migrate the store, and find or make the experiment and its parent runs.

    A server that does not answer is a warning: stages keep their metrics and make what is missing once it does.
    Raises UserError where a SQLite store cannot be written, or MLflow knows no store of such a URI.
    """
    where = destination(config, root)
    be_brief()
    try:
        with quiet_logging():
            if where.database:
                _prepare_database(where)
            client, experiment = connect(where)
            for name, facts in parent_facts(config).items():
                ensure_parent(client, where, experiment, name, facts)
            notes.describe(client, experiment)
    except Exception as error:
        problem = mask(str(error)).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if where.database:
            mend = "free some space, mend the file or its folder, or set tracking.uri"
            raise UserError(f"{where.database}: the MLflow store cannot be written ({problem}); {mend}") from error
        if "unsupported URI" in str(error):
            text = f"{mask(where.uri)} is no place for MLflow; mend MLFLOW_TRACKING_URI or tracking.uri: sqlite:/// or http://"
            raise UserError(text) from error
        text = "the MLflow store %s does not answer (%s); metrics stay in each stage's metrics.jsonl"
        log.warning(text, mask(where.uri), problem)
    return where


def be_brief() -> None:
    """Let MLflow give up within seconds on a server that does not answer: its own patience is minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


def parent_facts(config: Config) -> dict[str, dict[str, str]]:
    """Tags of the parent runs: the baseline and every entry of `runs:`."""
    facts = {BASELINE: {"method": "sft", "seed": str(config.seed)}}
    for name, run in config.runs.items():
        facts[name] = {"method": run.method, "seed": str(config.seed if run.seed is None else run.seed)}
    return facts


def connect(where: Destination) -> tuple[MlflowClient, str]:
    """A client of the store and the id of the experiment, which is made where it does not exist."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(where.client_uri)
    with locked(where):
        found = client.get_experiment_by_name(where.experiment)
        if found is None:
            location = where.artifacts and f"{where.artifacts}/{where.experiment}"
            tags = views.outdated({}, round(time.time() * 1000))
            identity = client.create_experiment(where.experiment, location, tags=tags)
            _make_relocatable(where, identity, location)
        else:
            identity = found.experiment_id
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(identity)
    return client, str(identity)


def ensure_parent(
    client: MlflowClient,
    where: Destination,
    experiment: str,
    name: str,
    facts: Mapping[str, str],
    params: Mapping[str, str] | None = None,
) -> str:
    """The id of the parent run of `name`, found by its tags or made; `facts` become its tags.

    MLflow's params cannot be changed. So where `params` differ from the row's, a former row with these params takes
    its place, or a new one.
    """
    with locked(where):
        current = _rows(client, experiment, name, _ROLE)
        row = _with_params(current, params) or _with_params(
            _rows(client, experiment, name, _FORMER) if params else [], params
        )
        identity = row.info.run_id if row else _new_row(client, experiment, name)
        known = row.data.tags if row else {}
        for key, value in {**facts, "role": _ROLE}.items():
            if known.get(key) != value:
                client.set_tag(identity, key, value)
        for other in current:
            if other.info.run_id != identity:
                client.set_tag(other.info.run_id, "role", _FORMER)
        if params and not (row and row.data.params):
            _send_params(client, identity, params)
    return str(identity)


def _rows(client: MlflowClient, experiment: str, name: str, role: str) -> list[Run]:
    return list(client.search_runs([experiment], f"tags.role = '{role}' and tags.run = '{name}'", max_results=1000))


def _with_params(rows: Sequence[Run], params: Mapping[str, str] | None) -> Run | None:
    return next((row for row in rows if not params or not row.data.params or row.data.params == params), None)


def _new_row(client: MlflowClient, experiment: str, name: str) -> str:
    """A new row takes the place and the colour of the one that its run had before."""
    rows = client.search_runs([experiment], "tags.role = 'parent'", max_results=1000)
    before = next((row for row in rows if row.data.tags["run"] == name), None)
    if before:
        colour = before.data.tags.get(views.COLOUR, views.COLOURS[0])
    else:
        number = len({row.data.tags["run"] for row in rows} - {BASELINE})
        colour = views.BASELINE_COLOUR if name == BASELINE else views.COLOURS[number % len(views.COLOURS)]
    tags = {"role": _ROLE, "run": name, views.COLOUR: colour}
    start = before.info.start_time if before else None
    identity = str(client.create_run(experiment, start_time=start, tags=tags, run_name=name).info.run_id)
    client.update_run(identity, status="SCHEDULED")  # never RUNNING: it takes the status of its last stage
    return identity


def ensure_child(
    client: MlflowClient, experiment: str, parent: str, name: str, tags: Mapping[str, str], known: str | None
) -> str:
    """The MLflow run of a stage's execution: the one that it had before it was interrupted (`known`), or a new one."""
    from mlflow.exceptions import MlflowException

    if known:
        try:
            client.get_run(known)
            client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            return known
    tags = {**tags, "role": "stage", "mlflow.parentRunId": parent, "mlflow.source.type": "JOB"}
    colour = client.get_run(parent).data.tags.get(views.COLOUR)
    if colour:
        tags[views.COLOUR] = colour
    return str(client.create_run(experiment, tags=tags, run_name=name).info.run_id)


def supersede(client: MlflowClient, experiment: str, current: str, stage: str, run: str) -> None:
    """Tag the other executions of this stage: their outputs have been replaced by the current one's."""
    others: list[Run] = client.search_runs(
        [experiment], f"tags.role = 'stage' and tags.stage = '{stage}' and tags.run = '{run}'", max_results=1000
    )
    for other in others:
        if other.info.run_id == current and "superseded" in other.data.tags:
            client.delete_tag(current, "superseded")  # settings of before are back
        if other.info.run_id != current and "superseded" not in other.data.tags:
            client.set_tag(other.info.run_id, "superseded", "true")


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    """Log a nested mapping as flat params; values that are too long go to the artifact long_params.json."""
    long = {key: value for key, value in flatten(params).items() if len(value) > _PARAM_LIMIT}
    if long:
        client.log_dict(run_id, long, "long_params.json")
    _send_params(client, run_id, short_params(params))


def short_params(params: Mapping[str, Any]) -> dict[str, str]:
    """A nested mapping as the flat params that MLflow takes."""
    flat = flatten(params)
    return {key: value if len(value) <= _PARAM_LIMIT else _TOO_LONG for key, value in flat.items()}


def _send_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(key, value) for key, value in params.items()]
    for start in range(0, len(rows), _BATCH):
        client.log_batch(run_id, params=rows[start : start + _BATCH])


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"run": {"beta": 0.1}}` as `{"run.beta": "0.1"}`; lists and None as JSON."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


@contextmanager
def locked(where: Destination, seconds: float = 60.0) -> Iterator[None]:
    """Hold the experiment's file lock, so that two stages never make the same thing."""
    from filelock import FileLock

    where.lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(where.lock, timeout=seconds):
        yield


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Keep MLflow's and Alembic's messages below warnings, and leave the process's logging as it was found."""
    import mlflow.tracking  # noqa: F401  (its own logger is set up by the import, and would undo the levels set here)

    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    disabled = {name: logger.disabled for name, logger in _loggers()}
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for name, logger in _loggers():
            logger.disabled = disabled.get(name, False)


def _loggers() -> list[tuple[str, logging.Logger]]:
    return [(n, logger) for n, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]


def _prepare_database(where: Destination) -> None:
    """Create the SQLite file or migrate its schema, and let readers and a writer work side by side."""
    from mlflow.store.db import utils

    assert where.database is not None
    where.database.parent.mkdir(parents=True, exist_ok=True)
    with locked(where), closing(sqlite3.connect(where.database, timeout=20)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    engine = utils.create_sqlalchemy_engine(where.client_uri)
    try:
        with locked(where):
            if utils._all_tables_exist(engine):
                if utils._get_schema_version(engine) != utils._get_latest_schema_revision():
                    utils._upgrade_db(engine)
            else:
                utils._safe_initialize_tables(engine)
    finally:
        engine.dispose()


def _make_relocatable(where: Destination, experiment: str, location: str | None) -> None:
    if where.database is None or location is None or Path(location).is_absolute():
        return
    with closing(sqlite3.connect(where.database, timeout=20)) as connection, connection:
        connection.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (location, int(experiment))
        )
