"""Run Apache Superset's own code against a Penstock: connect, look at tables, draw each chart.

    python tests/conformance/drive_superset.py http://127.0.0.1:8888

Superset has 150 packages, so no test runs this. Run it in an environment with those that
`record_superset` names. It loads the rows of `analysts_kit` into the datasource `tool_edits`, and
prints what each step found; its exit code is the number of steps that failed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.conformance.analysts_kit import ROWS, TABLE, ingestion  # noqa: E402
from tests.conformance.record_superset import CONFIG, QUERY, charts  # noqa: E402

WAIT_S = 120


def ask(url: str, body: object = None) -> Any:
    """Return what a Penstock answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def load(url: str) -> None:
    """Write the rows, and wait until queries see them."""
    task = ask(f"{url}/druid/indexer/v1/task", ingestion(TABLE, *ROWS))["task"]
    until_s = time.monotonic() + WAIT_S
    while ask(f"{url}/druid/indexer/v1/task/{task}/status")["status"]["status"] == "RUNNING":
        assert time.monotonic() < until_s
        time.sleep(1)


def steps(url: str) -> dict[str, Callable[[], object]]:
    """Return what Superset does, by name; each step raises if it fails."""
    from flask_appbuilder import Model
    from superset import db
    from superset.connectors.sqla.models import SqlaTable, SqlMetric, TableColumn
    from superset.models.core import Database
    from superset.sql.parse import Table

    host = url.partition("://")[2]
    database = Database(database_name="d", sqlalchemy_uri=f"druid://{host}/druid/v2/sql/")
    Model.metadata.create_all(db.engine)
    db.session.add(database)
    db.session.commit()
    table = SqlaTable(table_name=TABLE, schema="druid", database=database, main_dttm_col="__time")
    db.session.add(table)
    db.session.commit()

    def fetched() -> list[str]:
        table.fetch_metadata()
        return sorted(f"{one.column_name} {one.type}" for one in table.columns)

    def chart(changes: dict[str, Any]) -> Callable[[], object]:
        def draw() -> object:
            found = table.query({**QUERY, **changes})
            assert not found.error_message, found.error_message
            return found.df.to_dict("split")["data"]

        return draw

    def completed() -> list[str]:
        # Superset itself has added `count`.
        rate = "SUM(added) * 1.0 / COUNT(*)"
        table.metrics.append(SqlMetric(metric_name="rate", expression=rate))
        big = "CASE WHEN added > 5 THEN 'big' ELSE 'small' END"
        table.columns.append(TableColumn(column_name="big", expression=big, type="VARCHAR"))
        db.session.commit()
        return [one.metric_name for one in table.metrics]

    grains = [one for one in database.db_engine_spec.get_time_grain_expressions() if one]
    named = Table(TABLE, "druid")
    found: dict[str, Callable[[], object]] = {
        "schemas": lambda: sorted(database.get_all_schema_names()),
        "tables": lambda: sorted(map(str, database.get_all_table_names_in_schema(None, "druid"))),
        "views": lambda: sorted(map(str, database.get_all_view_names_in_schema(None, "druid"))),
        "columns": lambda: [str(one["type"]) for one in database.get_columns(named)],
        "indexes": lambda: database.get_indexes(named),
        "primary key": lambda: database.get_pk_constraint(named),
        "comment": lambda: database.get_table_comment(named),
        "dataset": fetched,
        "metrics": completed,
        "select star": lambda: database.select_star(named, limit=5),
        "sql lab": lambda: database.get_df(
            f"SELECT * FROM druid.{TABLE} LIMIT 3", schema="druid"
        ).to_dict("split")["data"],
        "sql lab error": lambda: refused(database),
        "values of a filter": lambda: table.values_for_column("country", limit=10),
    }
    return {**found, **{f"chart {name}": chart(one) for name, one in charts(grains).items()}}


def refused(database: Any) -> str:
    """Return the error that Superset shows for a wrong statement."""
    try:
        database.get_df(f"SELECT nope FROM druid.{TABLE}", schema="druid")
    except Exception as error:  # noqa: BLE001 - of whatever library
        return str(database.db_engine_spec.extract_error_message(error))
    raise AssertionError


def main(url: str) -> int:
    load(url)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.py"
        # Each connection to a database in memory would have one of its own.
        config.write_text(CONFIG.replace("sqlite://", f"sqlite:///{folder}/superset.db"))
        os.environ["SUPERSET_CONFIG_PATH"] = str(config)
        logging.disable(logging.CRITICAL)
        # Superset reads its configuration when it is imported.
        from superset.app import create_app

        app = create_app()
        app.config["PREVENT_UNSAFE_DB_CONNECTIONS"] = False
        with app.app_context(), app.test_request_context():
            for name, step in steps(url).items():
                try:
                    print(f"ok      {name}: {str(step())[:200]}")
                except Exception as error:  # noqa: BLE001 - it is printed
                    failed += 1
                    print(f"failed  {name}: {type(error).__name__}: {str(error)[:500]}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/")))
