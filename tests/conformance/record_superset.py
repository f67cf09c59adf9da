"""Write `recorded/superset.json`: the statements that charts of Apache Superset send.

Superset has 150 packages, so the tests send recorded statements. To record them again, run this in
an environment with `apache-superset`, `pydruid`, `flask-caching==2.3.1` and `cachetools`. It opens
no connection. They were recorded with Superset 6.1.0.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

CACHES = "{'CACHE_TYPE': 'SimpleCache'}"
CONFIG = f"""
SECRET_KEY = "{"x" * 42}"
SQLALCHEMY_DATABASE_URI = "sqlite://"
FILTER_STATE_CACHE_CONFIG = {CACHES}
EXPLORE_FORM_DATA_CACHE_CONFIG = {CACHES}
"""
HERE = Path(__file__).parent
SUM = {
    "expressionType": "SIMPLE", "column": {"column_name": "share", "type": "DOUBLE"},
    "aggregate": "SUM", "label": "SUM(share)",
}  # fmt: skip
QUERY: dict[str, Any] = {
    "granularity": "__time", "from_dttm": dt.datetime.fromisoformat("2026-11-20"),
    "to_dttm": dt.datetime.fromisoformat("2026-12-02"),
    "groupby": ["country"], "metrics": ["count", SUM],
    "is_timeseries": False, "filter": [], "extras": {}, "row_limit": 100, "columns": None,
    "orderby": [],
}  # fmt: skip
FILTERS: dict[str, tuple[str, str, object]] = {
    "==": ("country", "==", "DE"),
    "!=": ("country", "!=", "DE"),
    ">": ("added", ">", 5),
    "<=": ("share", "<=", 1.5),
    "IN": ("country", "IN", ["DE", "FR"]),
    "NOT IN": ("country", "NOT IN", ["DE"]),
    "LIKE": ("city", "LIKE", "R%"),
    "NOT LIKE": ("city", "NOT LIKE", "R%"),
    "ILIKE": ("city", "ILIKE", "r%"),
    "IS NULL": ("country", "IS NULL", None),
    "IS NOT NULL": ("country", "IS NOT NULL", None),
    "IS TRUE": ("big", "IS NOT NULL", None),
    "quote": ("city", "==", '100% "O\'Hara"'),
    "in null": ("country", "IN", ["DE", "<NULL>"]),
    "temporal": ("__time", "TEMPORAL_RANGE", "2026-11-20 : 2026-11-21"),
    "time >=": ("__time", ">=", 1763625600000),
}
AGGREGATES = ("COUNT", "COUNT_DISTINCT", "AVG", "MIN", "MAX")
DAY = {"label": "d", "sqlExpression": "FLOOR(__time TO DAY)", "expressionType": "SQL"}
AXIS = {
    "label": "__time", "sqlExpression": "__time", "columnType": "BASE_AXIS", "timeGrain": "P1W",
    "expressionType": "SQL",
}  # fmt: skip


def charts(grains: list[str]) -> dict[str, dict[str, Any]]:
    """Return what charts change in `QUERY`."""
    found: dict[str, dict[str, Any]] = {
        f"grain {one}": {
            "is_timeseries": True, "groupby": [], "columns": [], "metrics": ["count"],
            "extras": {"time_grain_sqla": one},
        }
        for one in grains
    }  # fmt: skip
    found["series"] = {
        "is_timeseries": True, "extras": {"time_grain_sqla": "P1D"}, "timeseries_limit": 2,
        "timeseries_limit_metric": "count",
    }  # fmt: skip
    for name, (column, operator, value) in FILTERS.items():
        found[f"filter {name}"] = {"filter": [{"col": column, "op": operator, "val": value}]}
    for name in AGGREGATES:
        column = {"column_name": "added", "type": "BIGINT"}
        metric = {"expressionType": "SIMPLE", "column": column, "aggregate": name, "label": name}
        found[f"agg {name}"] = {"metrics": [metric]}
    return {
        **found,
        "having": {"extras": {"having": "COUNT(*) > 1"}},
        "where": {"extras": {"where": "added > 1 OR share IS NULL"}},
        "computed column": {"groupby": ["big"]},
        "metric": {"metrics": ["rate"], "orderby": [("rate", False)]},
        "order": {"orderby": [("count", False), ("country", True)]},
        "raw": {
            "columns": ["__time", "city", "added"], "groupby": None, "metrics": None,
            "orderby": [("__time", False)], "row_offset": 1,
        },
        "distinct values": {"columns": ["country"], "metrics": [], "row_limit": 10},
        "adhoc column": {"columns": [DAY], "groupby": None},
        "time axis": {"columns": [AXIS], "groupby": None, "extras": {"time_grain_sqla": "P1W"}},
        "total": {"groupby": [], "columns": []},
    }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.py"
        config.write_text(CONFIG)
        os.environ["SUPERSET_CONFIG_PATH"] = str(config)
        logging.disable(logging.CRITICAL)
        # Superset reads its configuration when it is imported.
        from superset.app import create_app

        app = create_app()
        app.config["PREVENT_UNSAFE_DB_CONNECTIONS"] = False
        with app.app_context(), app.test_request_context():
            found = recorded()
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
    (HERE / "recorded/superset.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def recorded() -> dict[str, list[str]]:
    """Return the statements of each chart."""
    from superset.connectors.sqla.models import SqlaTable, SqlMetric, TableColumn
    from superset.models.core import Database

    database = Database(database_name="d", sqlalchemy_uri="druid://127.0.0.1:8888/druid/v2/sql/")
    types = {"country": "VARCHAR", "city": "VARCHAR", "added": "BIGINT", "share": "DOUBLE"}
    big = "CASE WHEN added > 5 THEN 'big' ELSE 'small' END"
    table = SqlaTable(
        table_name="tool_edits",
        schema="druid",
        database=database,
        main_dttm_col="__time",
        columns=[
            TableColumn(column_name="__time", type="TIMESTAMP", is_dttm=True),
            *(TableColumn(column_name=name, type=kind) for name, kind in types.items()),
            TableColumn(column_name="big", expression=big, type="VARCHAR"),
        ],
        metrics=[
            SqlMetric(metric_name="count", expression="COUNT(*)"),
            SqlMetric(metric_name="rate", expression="SUM(added) * 1.0 / COUNT(*)"),
        ],
    )
    grains = [one for one in database.db_engine_spec.get_time_grain_expressions() if one]
    return {
        name: table.get_query_str({**QUERY, **changes}).split("\n\n")
        for name, changes in charts(grains).items()
    }


if __name__ == "__main__":
    main()
