"""Drives pydruid: its DB-API, its dialect of SQLAlchemy, and its clients of native queries.

A connection, an engine or a client goes by the name with which it was made.
"""

from __future__ import annotations

import asyncio
import tempfile
import urllib.request  # noqa: F401 - pydruid imports urllib alone, and uses this part
import warnings
from pathlib import Path
from typing import Any

import sqlalchemy
from pydruid import db
from pydruid.async_client import AsyncPyDruid
from pydruid.client import PyDruid
from pydruid.utils import aggregators, dimensions, filters, having, postaggregator
from sqlalchemy import func
from tornado.platform.asyncio import to_asyncio_future

from tests.conformance.lines_kit import serve

warnings.simplefilter("ignore", sqlalchemy.exc.SADeprecationWarning)


class Driver:
    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    async def version(self, name: str) -> str:
        return str(sqlalchemy.__version__)

    # DB-API

    async def connect(self, name: str, port: int, **more: Any) -> None:
        self.made[name] = db.connect("127.0.0.1", port, path="/druid/v2/sql/", **more)

    async def execute(
        self, name: str, sql: str, parameters: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        cursor = self.made[name].cursor()
        cursor.execute(sql, parameters)
        return {"rows": [list(row) for row in cursor], "description": cursor.description}

    async def execute_all(self, name: str, statements: list[str]) -> list[list[list[Any]]]:
        return [(await self.execute(name, one))["rows"] for one in statements]

    async def fetch(self, name: str, sql: str) -> list[Any]:
        cursor = self.made[name].cursor()
        cursor.execute(sql)
        count, first = cursor.rowcount, cursor.fetchone()
        return [count, first._asdict(), cursor.fetchmany(2), cursor.fetchall(), cursor.fetchone()]

    # SQLAlchemy

    async def engine(self, name: str, url: str) -> None:
        self.made[name] = sqlalchemy.create_engine(url)

    async def inspect(self, name: str, table: str) -> dict[str, Any]:
        found = sqlalchemy.inspect(self.made[name])
        return {
            "schemas": found.get_schema_names(),
            "tables": table in found.get_table_names(),
            "of druid": table in found.get_table_names("druid"),
            "views": found.get_view_names(),
            "columns": [
                [one["name"], repr(one["type"]), one["nullable"], one["default"]]
                for one in found.get_columns(table, "druid")
            ],
            "keys": [
                found.get_pk_constraint(table)["constrained_columns"],
                found.get_foreign_keys(table),
                found.get_indexes(table),
            ],
            "ping": self.made[name].dialect.do_ping(self.made[name].raw_connection()),
        }

    async def scalar(self, name: str, sql: str) -> Any:
        with self.made[name].connect() as connection:
            return connection.execute(sqlalchemy.text(sql)).scalar()

    async def has_table(self, name: str, table: str) -> bool:
        return bool(sqlalchemy.inspect(self.made[name]).has_table(table))

    async def select(self, name: str, table: str) -> dict[str, Any]:
        """Read the columns of a table, and send statements that SQLAlchemy writes."""
        own = sqlalchemy.Table(table, sqlalchemy.MetaData(), autoload_with=self.made[name])
        country, city, added = own.c.country, own.c.city, own.c.added
        count = func.count().label("n")
        size = sqlalchemy.literal_column("CASE WHEN added > 5 THEN 'big' ELSE 'small' END")
        statements = {
            "groups": sqlalchemy.select(country, count, func.sum(own.c.share))
            .where(added > 0)
            .group_by(country)
            .order_by(count.desc(), country)
            .limit(2),
            "values": sqlalchemy.select(city)
            .where(city.in_(["Bonn", "100% \"O'Hara\""]))
            .order_by(city)
            .limit(2)
            .offset(1),
            "time": sqlalchemy.select(own.c["__time"], (added > 5).label("large"))
            .order_by(own.c["__time"])
            .limit(1),
            "expression": sqlalchemy.select(size.label("size"), count)
            .select_from(own)
            .group_by(size)
            .order_by(size),
        }  # fmt: skip
        with self.made[name].connect() as connection:
            return {
                what: [list(row) for row in connection.execute(statement)]
                for what, statement in statements.items()
            }

    # Native queries

    async def client(
        self, name: str, url: str, user: str | None = None, password: str | None = None
    ) -> None:
        kind = AsyncPyDruid if name.startswith("async") else PyDruid
        self.made[name] = kind(url, "druid/v2/")
        if user is not None:
            self.made[name].set_basic_auth_credentials(user, password)

    async def native(self, name: str, scenario: str, **more: Any) -> Any:
        found = QUERIES[scenario](self.made[name], more)
        if name.startswith("async"):
            found = await to_asyncio_future(found)
        return found.result

    async def export(self, name: str, scenario: str, **more: Any) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.tsv"
            QUERIES[scenario](self.made[name], more).export_tsv(str(path))
            return path.read_text()


COUNT = {"n": aggregators.count("n")}
DAY = dimensions.DimensionSpec(
    "__time", "day", extraction_function=dimensions.TimeFormatExtraction("EEEE")
)
FIRST = dimensions.DimensionSpec(
    "city", "first", extraction_function=dimensions.RegexExtraction("^(.)")
)
NAME = dimensions.DimensionSpec(
    "country",
    "name",
    extraction_function=dimensions.MapLookupExtraction(
        {"DE": "Germany"}, retain_missing_values=True
    ),
)
COUNTRY = filters.Dimension("country")


def copied(found: dict[str, Any]) -> dict[str, Any]:
    """Return aggregators that pydruid may change."""
    return {name: dict(one) for name, one in found.items()}


def sum_of(client: Any, more: dict[str, Any], filter_: Any) -> Any:
    return client.timeseries(granularity="all", aggregations=copied(COUNT), filter=filter_, **more)


QUERIES: dict[str, Any] = {
    "timeseries": lambda client, more: client.timeseries(
        granularity="day",
        aggregations={
            **copied(COUNT),
            "a": aggregators.longsum("added"),
            "f": aggregators.filtered(COUNTRY == "DE", aggregators.doublesum("share")),
        },
        post_aggregations={
            "mean": postaggregator.Field("a") / postaggregator.Field("n"),
            "twice": postaggregator.Field("n") * postaggregator.Const(2),
        },
        filter=COUNTRY != "XX",
        context={"skipEmptyBuckets": True},
        **more,
    ),
    "topn": lambda client, more: client.topn(
        granularity="all", dimension="country", metric="n", threshold=2,
        aggregations={**copied(COUNT), "u": aggregators.cardinality("city")}, **more,
    ),
    "topn of an extraction": lambda client, more: client.topn(
        granularity="all", dimension=FIRST, metric="n", threshold=1,
        aggregations=copied(COUNT), **more,
    ),
    "groupby": lambda client, more: client.groupby(
        granularity="all", dimensions=["country", DAY],
        aggregations={**copied(COUNT), "m": aggregators.longmax("added")},
        having=(having.Aggregation("n") > 0) & (having.Aggregation("m") < 100),
        limit_spec={"type": "default", "limit": 2, "columns": [
            {"dimension": "m", "direction": "descending"}]},
        **more,
    ),
    "groupby of a lookup": lambda client, more: client.groupby(
        granularity="all", dimensions=[NAME], aggregations=copied(COUNT),
        filter=COUNTRY == "DE", **more,
    ),
    "groupby of a groupby": lambda client, more: client.groupby(
        granularity="all", dimensions=[], aggregations={"m": aggregators.longmax("n")},
        **{**more, "datasource": client.sub_query(
            granularity="all", dimensions=["country"], aggregations=copied(COUNT), **more)},
    ),
    "scan": lambda client, more: client.scan(
        granularity="all", limit=1, order="ascending", columns=["__time", "city"], **more
    ),
    "time_boundary": lambda client, more: client.time_boundary(datasource=more["datasource"]),
    "segment_metadata": lambda client, more: client.segment_metadata(**more),
    "select": lambda client, more: client.select(
        granularity="all", paging_spec={"pagingIdentifiers": {}, "threshold": 1}, **more
    ),
    "javascript": lambda client, more: client.timeseries(
        granularity="all", aggregations={"n": aggregators.javascript(["added"], "a", "b", "c")},
        **more,
    ),
    "sketches": lambda client, more: client.timeseries(
        granularity="all",
        aggregations={
            "h": aggregators.hyperunique("city"), "t": aggregators.thetasketch("country"),
            "first": aggregators.stringfirst("city"), "last": aggregators.stringlast("city"),
        },
        post_aggregations={
            "e": postaggregator.ThetaSketchEstimate(postaggregator.ThetaSketch("t")),
            "c": postaggregator.HyperUniqueCardinality("h"),
            "g": postaggregator.LongGreatest([postaggregator.Const(1), postaggregator.Const(2)]),
        },
        **more,
    ),
    "bound": lambda client, more: sum_of(
        client, more, filters.Bound("added", lower="5", upper="20", ordering="numeric")
    ),
    "not": lambda client, more: sum_of(client, more, ~(COUNTRY == "DE")),
    "search": lambda client, more: sum_of(
        client, more, filters.Filter(type="search", dimension="city", value="r")
    ),
}  # fmt: skip


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
