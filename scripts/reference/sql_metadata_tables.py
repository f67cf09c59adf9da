"""Page of the metadata tables of SQL, from their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.sql.metadata_tables import (
    INFORMATION_SCHEMA,
    METADATA_TABLES,
    SYS,
    MetadataTable,
)
from reference.markdown import head, sentence, table

_ABOUT: Final = """\
The tables in which SQL describes itself (`INFORMATION_SCHEMA`) and the installation (`sys`), with the
names, columns and types that Druid's tables have. Tools for Druid, such as Superset and Grafana, list
tables and columns with them.

Queries read these tables like datasources, and may join both. Names of tables and columns may be
written in any case, in quotes or not; the schema is necessary: `sys.tasks`. Tasks and flows do not
read them. `DESCRIBE` and `SHOW` know only datasources.

A principal sees the rows that the HTTP API of the same things shows it. A row filter or a mask hides
the segments of its datasource, but not its name and columns. The rows are those at the time of the
query. All segments of one query are of one revision of the metadata. If the overlord does not answer,
a query of `sys.tasks` or `sys.supervisors` fails with status 503.

A condition such as `datasource = 'clicks'` on `sys.segments`, or `TABLE_NAME = 'clicks'` on tables and
columns, makes a query faster if many segments exist, and so does naming columns instead of `*`.
"""
_TITLES: Final = {INFORMATION_SCHEMA: "INFORMATION_SCHEMA", SYS: "sys"}


def page() -> str:
    """Return docs/reference/sql-metadata-tables.md."""
    lines = [head("SQL metadata tables", "the definitions of the tables", _ABOUT)]
    for schema, title in _TITLES.items():
        lines += ["", f"## {title}"]
        for one in METADATA_TABLES.values():
            if one.schema == schema:
                lines += _described(one)
    return "\n".join(lines) + "\n"


def _described(one: MetadataTable) -> Iterator[str]:
    yield from ("", f"### {one.name}", "")
    yield f"A row: {sentence(one.about)[:1].lower()}{sentence(one.about)[1:]} Needs: {one.needs}."
    rows = [
        (f"`{column.name}`", "BIGINT" if column.is_number else "VARCHAR", sentence(column.about))
        for column in one.columns
    ]
    yield from table(("column", "type", "meaning"), rows)
